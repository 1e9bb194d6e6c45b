"""What an audit compares with what: tables with their changelogs, topics with what the log has, stores with changelogs.

One rule: every table, topic and store gets a check, also where it cannot be compared: then the check failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.app import App
from pipeline.definitions.join import JoinDef
from pipeline.definitions.topology import Subtopology
from pipeline.spark import differences, letters
from pipeline.spark.differences import Changelogs, Found, computed_tables, last_values, last_words, sent
from pipeline.spark.inputs import Computed, Inputs, Say, external
from pipeline.spark.join_entries import heads, together
from pipeline.spark.live_stores import Copy, store_frame
from pipeline.spark.log_source import NOTHING, log_frame
from pipeline.spark.moment import Moment
from pipeline.spark.session import failure
from pipeline.spark.shown_differences import Subject
from pipeline.spark.snapshot_source import snapshot_frame
from pipeline.spark.stage_order import of_batches
from state.log import base

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_TOO = " (the app reads it too: records of others count as doubled)"
LAST_ALONE = "the last result of every key (a join by foreign key sends intermediate results)"
LAST_OF_COMPACTED = "the last record of every key (the topic is compacted)"
ANOTHER_ORDER = " (behind a re-key, taken in another order than by time: times are not compared)"
NO_TIMES = " (a batch processor sends it: times are not compared)"


@dataclass(frozen=True)
class Base:
    """What changelogs go on from: topic -> base, all in one folder."""

    root: Path
    by_topic: Mapping[str, base.Base]


@dataclass(frozen=True)
class Compared:
    """A check that was made."""

    text: str
    subject: Subject
    found: Found
    ok: bool
    more: dict[str, Any] = field(default_factory=dict)


def not_whole(topic: str, gone: int) -> Compared:
    """Of outputs that cannot be compared, as retention has removed some."""
    text = f"outputs {topic} are whole in the log: {gone} are gone"
    return Compared(text, Subject(False, topic), Found(0, gone), False)


class Comparing:
    """All comparisons of an audit. Blocks: call it from a thread."""

    def __init__(
        self,
        session: SparkSession,
        inputs: Inputs,
        moment: Moment,
        bases: Base,
        computed: Computed,
        folder: Path,
        say: Say,
    ) -> None:
        self._session, self._inputs, self._moment, self._bases = session, inputs, moment, bases
        self._computed, self._folder, self._say = computed, folder, say
        self._prepared = inputs.prepared
        self._mixed: set[str] = set()

    def run(self, stores: tuple[Sequence[Copy], Sequence[str]] | None) -> list[Compared]:
        """All subjects of a kind are compared at once. Raises SparkFailed."""
        made: list[Compared] = []
        try:
            for group in (self._tables, self._topics, partial(self._stores, stores)):
                for one in group():
                    made.append(one)
                    self._say(f"{one.text}: {one.found.found} of {one.found.expected}, {'ok' if one.ok else 'DIFFERS'}")
        except Exception as error:
            raise failure(self._session, error) from error
        return made

    # ---- tables

    def _by_table(self) -> dict[str, Subtopology]:
        return {table: sub for sub in self._prepared.topology.subtopologies for table in sub.tables}

    def _tables(self) -> list[Compared]:
        from pyspark.sql import functions as F

        tables = self._by_table()
        if not tables:
            return []
        paths = [
            str(self._computed.state(f"{sub.number}_{n}", table))
            for table, sub in tables.items()
            for n in range(sub.partitions)
        ]
        alone = F.lit(0).alias("copy")
        ends = {str(p): end for p, end in self._moment.ends.items()}
        live = last_values(self._changelogs(ends), "subject", "partition")
        joins = self._joins_behind()

        def after() -> DataFrame:
            return heads(self._records_of_changelogs(None, ends, goes_on=True).withColumn("copy", alone), joins)

        def again() -> DataFrame:
            words = last_words(self._changelogs(ends), "subject", "partition", name="there").withColumn("copy", alone)
            return together(words, "there", joins)

        changelogs = Changelogs("found", after, again)
        found = differences.tables(
            together(computed_tables(self._session, paths), "expected", joins),
            together(live.select("subject", "partition", alone, "key", "found"), "found", joins),
            self._folder,
            "tables",
            changelogs,
        )
        return [
            Compared(f"table {table}: every key", Subject(True, table), one, one.holds, one.kinds)
            for table, one in ((table, found.get(table, Found())) for table in tables)
        ]

    def _records_of_changelogs(
        self, until: Mapping[str, int] | None, since: Mapping[str, int] = NOTHING, *, goes_on: bool = False
    ) -> DataFrame:
        """subject (the table), partition, offset, key, value; see log_frame."""
        from pyspark.sql import functions as F

        topics = {self._prepared.app.tables[table].changelog: table for table in self._by_table()}
        found = log_frame(self._session, self._inputs.log_url, list(topics), until, since, goes_on=goes_on)
        names = F.create_map([F.lit(word) for pair in topics.items() for word in pair])
        return found.select(names[F.col("topic")].alias("subject"), "partition", "offset", "key", "value")

    def _changelogs(self, until: Mapping[str, int] | None) -> DataFrame:
        """What was written to the tables: their changelogs, behind the entries that they go on from."""
        from pyspark.sql import functions as F

        found = self._records_of_changelogs(until)
        for table, sub in self._by_table().items():
            based = self._bases.by_topic.get(self._prepared.app.tables[table].changelog)
            if based is None:
                continue
            scopes = {number: f"{sub.number}_{number}" for number in range(sub.partitions)}
            before = snapshot_frame(self._session, self._bases.root, based.snapshot, table, scopes)
            behind = (F.col("subject") != table) | (F.col("offset") >= based.offset)
            found = found.where(behind).unionByName(before.withColumn("subject", F.lit(table)))
        return found

    # ---- topics

    def _topics(self) -> list[Compared]:
        from pyspark.sql import functions as F

        app, starts = self._prepared.app, self._moment.starts
        sinks = {name for sub in self._prepared.topology.subtopologies for name in sub.sinks}
        outputs = sorted(name for name in sinks if self._prepared.topics[name].kind != "repartition")
        gone = {topic: sum(start for p, start in starts.items() if p.topic == topic) for topic in outputs}
        made = [not_whole(topic, lost) for topic, lost in gone.items() if lost]
        whole = [topic for topic in outputs if not gone[topic]]
        last = [topic for topic in whole if topic in _with_intermediate_results(app) or self._is_compacted(topic)]
        each = [topic for topic in whole if topic not in last]
        found: dict[str, Found] = {}
        for name, topics in (("topics", each), ("last", last)):
            if not topics:
                continue
            ends = {str(p): end for p, end in self._moment.ends.items() if p.topic in topics}
            there = log_frame(self._session, self._inputs.log_url, topics, ends).withColumn("subject", F.col("topic"))
            wanted = sent(self._session, [str(path) for topic in topics for path in self._computed.outputs(topic)])
            rejected = self._letters() & set(topics), self._rekeys()
            there, wanted = letters.compared(there, *rejected), letters.compared(wanted, *rejected)
            if name == "last":
                compacted = self._compacted(topics, ends, *rejected)
                found |= differences.last_records(wanted, there, self._folder, name, compacted)
                continue
            ordered = [topic for topic in topics if topic not in external(self._prepared) and self._is_ordered(topic)]
            untimed = sorted(of_batches(app))
            found |= differences.records(wanted, there, self._folder, name, untimed=untimed, ordered=ordered)
            mixed = [topic for topic in self._behind_rekeys() if topic in found and found[topic].differ]
            if mixed:
                found |= self._in_any_order(wanted, there, mixed)
        return made + [self._topic(topic, found.get(topic, Found()), topic in last) for topic in whole]

    def _compacted(
        self, topics: Sequence[str], ends: Mapping[str, int], letters_: set[str], rekeys: set[str]
    ) -> Changelogs | None:
        """What the compacted ones among them say later; None where there are none."""
        from pyspark.sql import functions as F

        chosen = [topic for topic in topics if self._is_compacted(topic)]
        if not chosen:
            return None
        log = partial(log_frame, self._session, self._inputs.log_url)

        def again() -> DataFrame:
            of_all = log(topics, ends).withColumn("subject", F.col("topic"))
            return last_words(letters.compared(of_all, letters_, rekeys), "subject", name="there")

        def after() -> DataFrame:
            since = {place: end for place, end in ends.items() if place.rpartition("-")[0] in chosen}
            return log(chosen, None, since, goes_on=True).withColumn("subject", F.col("topic"))

        return Changelogs("found", after, again)

    def _rekeys(self) -> set[str]:
        return {name for name, info in self._prepared.topics.items() if info.kind == "repartition"}

    def _behind(self) -> list[Subtopology]:
        """Those that read what several tasks have sent on."""
        rekeys = self._rekeys()
        return [sub for sub in self._prepared.topology.subtopologies if rekeys & set(sub.sources)]

    def _behind_rekeys(self) -> list[str]:
        """Outputs of tasks that read what several others have sent on: live, in the order in which that came."""
        return sorted({name for sub in self._behind() for name in sub.sinks} - self._rekeys())

    def _joins_behind(self) -> set[str]:
        """The tables of joins of streams among what they have."""
        tables = self._prepared.app.tables
        return {name for sub in self._behind() for name in sub.tables if isinstance(tables[name], JoinDef)}

    def _letters(self) -> set[str]:
        """The topics of their dead letters, which name places that are others here."""
        return {name for sub in self._behind() for name in letters.letters_of(self._prepared.app, sub)}

    def _in_any_order(self, wanted: DataFrame, there: DataFrame, topics: list[str]) -> dict[str, Found]:
        """Those of the topics that differ in times alone: a count that is sent on, say, goes with the time of another record."""
        from pyspark.sql import functions as F

        chosen = F.col("subject").isin(topics)
        again = differences.records(
            wanted.where(chosen), there.where(chosen), self._folder, "any-order", untimed=topics, ordered=[]
        )
        alike = {topic: found for topic, found in again.items() if not found.differ}
        self._mixed |= alike.keys()
        return alike

    def _topic(self, topic: str, found: Found, is_last: bool) -> Compared:
        subject = Subject(False, topic)
        if is_last:
            text = LAST_OF_COMPACTED if self._is_compacted(topic) else LAST_ALONE
            return Compared(f"outputs {topic}: {text}", subject, found, found.holds, found.kinds)
        more = {"lost": found.kinds.get("lost", 0), "doubled": found.kinds.get("doubled", 0), **found.kinds}
        notes = (NO_TIMES if topic in of_batches(self._prepared.app) else "") + (
            READ_TOO if topic in external(self._prepared) else ""
        )
        notes += ANOTHER_ORDER if topic in self._mixed else ""
        return Compared(f"outputs {topic}: every record{notes}", subject, found, not found.differ, more)

    def _is_compacted(self, topic: str) -> bool:
        """Whether earlier records of a key may have gone."""
        return self._prepared.topics[topic].kind == "changelog"

    def _is_ordered(self, topic: str) -> bool:
        """Whether records of a key have one order: those that one function sends for records of one input, one at a time."""
        app = self._prepared.app
        senders = [one for one in app.processors.values() if topic in {sink.topic for sink in one.sinks}]
        if len(senders) != 1 or len(senders[0].sources) != 1:
            return False
        [sender] = senders
        kind = self._prepared.topics[sender.sources[0].topic].kind
        return kind == "plain" and not sender.batch and sender.concurrency == 1 and sender.due is None

    # ---- stores

    def _stores(self, stores: tuple[Sequence[Copy], Sequence[str]] | None) -> list[Compared]:
        """All copies at once, each up to its own place in the changelog."""
        from pyspark.sql import functions as F

        if stores is None:
            return []
        tables = self._by_table()
        chosen = [one for one in stores[0] if one.table in tables]
        made = [Compared(f"stores: {problem}", Subject(True, ""), Found(1, 0), False) for problem in stores[1]]
        if not chosen:
            return made
        rows = [(one.table, number, one.partition, one.offset) for number, one in enumerate(chosen)]
        columns = "subject string, copy int, partition int, until bigint"
        copies = F.broadcast(self._session.createDataFrame(rows, columns))
        stored, bad = store_frame(self._session, chosen)
        for number, problem in bad.collect():
            one = chosen[number]
            subject = Subject(True, one.table)
            made.append(Compared(f"store of {one.table}, {one}: {problem}", subject, Found(1, 0), False))
        by = ("subject", "partition", "copy")

        def before() -> DataFrame:
            return self._changelogs(None).join(copies, ["subject", "partition"]).where("offset < until")

        def after() -> DataFrame:
            later = self._records_of_changelogs(None, goes_on=True).join(copies, ["subject", "partition"])
            return later.where("offset >= until")

        changelogs = Changelogs("expected", after, lambda: last_words(before(), *by, name="there"))
        expected = last_values(before(), *by, name="expected")
        found = differences.tables(expected, stored, self._folder, "stores", changelogs)
        for table in tables:
            places = {number: str(one) for number, one in enumerate(chosen) if one.table == table}
            if places:
                one_table = found.get(table, Found())
                text = f"stores of {table}: every key of {len(places)}"
                made.append(Compared(text, Subject(True, table, places), one_table, one_table.holds, one_table.kinds))
        return made


def _with_intermediate_results(app: App) -> set[str]:
    """Topics that functions of joins by foreign keys send to."""
    joins = [processor for processor in app.processors.values() if processor.foreign_key is not None]
    return {topic.topic for processor in joins for topic in processor.sinks}
