"""What differs between two answers, as rows of one shape: the keys of a table, the records of a topic, the keys of a store.

One rule: a check first counts; where something differs the rows are kept in a file, so that what is shown, what is counted and
what is written elsewhere are the same. Frames in, a `Found` out; `auditing` says what is compared with what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.spark.one_file import one_file
from pipeline.spark.rows import COLUMNS, PLACE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DIFFERENCE = (
    "subject string, kind string, partition int, copy int, key binary, expected binary, found binary, "
    "timestamp_ms bigint, headers binary, times bigint"
)
FIELDS = tuple(column.split()[0] for column in DIFFERENCE.split(", "))
PLACE_OF_KEY = ("subject", "partition", "copy", "key")
WHOLE = ("subject", "partition", "key", "value", "timestamp_ms", "headers")


@dataclass(frozen=True)
class Found:
    """What a check of a subject came to: how many were expected and found, how many differ by kind, and the file with the rows
    ("" for none). `left_out`: keys that were written meanwhile, so that they cannot be compared."""

    expected: int = 0
    found: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    rows: str = ""
    left_out: int = 0

    @property
    def differ(self) -> int:
        return sum(self.kinds.values())

    @property
    def holds(self) -> bool:
        """Nothing differs, and where anything was left out something was compared all the same."""
        return not self.differ and (not self.left_out or self.left_out < max(self.expected, self.found))


def kept(rows: DataFrame, folder: Path, name: str) -> tuple[str, dict[str, dict[str, int]]]:
    """The rows in a file, and how many there are of each subject and kind."""
    path = str(folder / "differences" / name)
    rows.select(*FIELDS).write.parquet(path)
    read = rows.sparkSession.read.schema(DIFFERENCE).parquet(one_file(path))
    found: dict[str, dict[str, int]] = {}
    for subject, kind, times in read.groupBy("subject", "kind").sum("times").collect():
        found.setdefault(subject, {})[kind] = int(times)
    return path, found


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class Changelogs:
    """The side of a comparison that changelogs, or compacted outputs, have, in the column `side`, and what they say later, when all else
    was read: `after`, the keys that were written after the moment and up to now; `again`, the same values as before, with deletions as
    null, in `there`."""

    side: str
    after: Callable[[], DataFrame]
    again: Callable[[], DataFrame]


def last_values(changes: DataFrame, *by: str, name: str = "found") -> DataFrame:
    """The last value of each key of a changelog (columns `by`, key, value, offset), deletions left out."""
    return last_words(changes, *by, name=name).where(f"{name} is not null")


def last_words(changes: DataFrame, *by: str, name: str) -> DataFrame:
    """The same with deletions, whose value is null."""
    from pyspark.sql import functions as F

    last = changes.groupBy(*by, "key").agg(F.max(F.struct("offset", "value")).alias("last"))
    return last.select(*by, "key", F.col("last.value").alias(name))


def computed_tables(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """What Spark computed of tables: subject, partition, copy, key, expected."""
    from pyspark.sql import functions as F

    path = F.col("_metadata.file_path")
    number = F.regexp_extract(path, r"/\d+_(\d+)/state/", 1).cast("int")
    name = F.url_decode(F.regexp_extract(path, r"/state/([^/]+)\.parquet", 1))
    read = session.read.schema("key binary, value binary").parquet(*map(one_file, paths))
    copy = F.lit(0).alias("copy")
    return read.select(name.alias("subject"), number.alias("partition"), copy, "key", F.col("value").alias("expected"))


def tables(expected: DataFrame, found: DataFrame, folder: Path, name: str, changelogs: Changelogs) -> dict[str, Found]:
    """Every key of every subject, byte by byte. Both have PLACE_OF_KEY and their value.

    Of a key that was written after the moment, compaction may have removed what it had then: it is left out, unless that stands in
    the changelog still. For compaction removes the earlier records of a key first: what was removed behind it took it along."""
    from pyspark.sql import functions as F

    by = list(PLACE_OF_KEY)
    both = expected.join(found, by, "full")
    differs = ~F.col("expected").eqNullSafe(F.col("found"))
    counts = both.groupBy("subject").agg(F.count("expected"), F.count("found"), F.count_if(differs)).collect()
    made = {row[0]: Found(int(row[1]), int(row[2])) for row in counts}
    differing = [row[0] for row in counts if row[3]]
    if not differing:
        return made
    kind = F.when(F.col("found").isNull(), "missing").when(F.col("expected").isNull(), "extra").otherwise("differs")
    rows = both.where(differs).select(kind.alias("kind"), *by, "expected", "found", *_untimed())
    return made | _sure(rows, folder, name, changelogs, by, {subject: made[subject] for subject in differing})


def _sure(
    rows: DataFrame, folder: Path, name: str, changelogs: Changelogs, by: list[str], made: Mapping[str, Found]
) -> dict[str, Found]:
    """What was made of subjects that differ in these rows, without the keys that are left out."""
    from pyspark.sql import functions as F

    path, differing = kept(rows, folder, name)
    whole = rows.sparkSession.read.schema(DIFFERENCE).parquet(one_file(path))
    still = whole.join(changelogs.again(), by).where(F.col("there").eqNullSafe(F.col(changelogs.side))).select(*by)
    unsure = changelogs.after().select(*by).distinct().join(still, by, "left_anti")
    path, kinds = kept(whole.join(unsure, by, "left_anti"), folder, f"{name}-sure")
    found: dict[str, Found] = {}
    for subject, one in made.items():
        of_kinds = kinds.get(subject, {})
        left_out = sum(differing[subject].values()) - sum(of_kinds.values())
        found[subject] = replace(one, kinds=of_kinds, rows=path if of_kinds else "", left_out=left_out)
    return found


def _untimed() -> list[Column]:
    from pyspark.sql import functions as F

    return [
        F.lit(None).cast("bigint").alias("timestamp_ms"),
        F.lit(None).cast("binary").alias("headers"),
        F.lit(1).cast("bigint").alias("times"),
    ]


# ---------------------------------------------------------------- records


def sent(session: SparkSession, paths: Sequence[str]) -> DataFrame:
    """What Spark computed of topics: the columns of `rows.ROWS`, with `subject` (the topic) and the task that sent it."""
    from pyspark.sql import functions as F

    read = (
        session.read.schema(COLUMNS).parquet(*map(one_file, paths)) if paths else session.createDataFrame([], COLUMNS)
    )
    sender = F.regexp_extract(F.col("_metadata.file_path"), r"/(\d+_\d+)/outputs/", 1) if paths else F.lit("")
    return read.withColumns({"sender": sender, "subject": F.col("topic"), "partition": F.col("pid")})


def records(
    expected: DataFrame, found: DataFrame, folder: Path, name: str, *, untimed: Sequence[str], ordered: Sequence[str]
) -> dict[str, Found]:
    """By subject as multisets of (partition, key, value, time, headers): nothing lost, nothing doubled. Of those that are
    `ordered` also the order of the records of a key that one task alone sends. Times of `untimed` are not compared."""
    from pyspark.sql import functions as F

    time = F.when(~F.col("subject").isin(list(untimed)), F.col("timestamp_ms"))
    wanted, there = (frame.withColumn("timestamp_ms", time) for frame in (expected, found))
    one = wanted.groupBy(*WHOLE).agg(F.count("*").alias("expected"))
    other = there.groupBy(*WHOLE).agg(F.count("*").alias("found"))
    both = one.join(other, _same(one, other, WHOLE), "full").select(
        *(F.coalesce(one[column], other[column]).alias(column) for column in WHOLE),
        F.coalesce(one["expected"], F.lit(0)).alias("expected"),
        F.coalesce(other["found"], F.lit(0)).alias("found"),
    )
    more = F.col("expected") - F.col("found")
    counts = both.groupBy("subject").agg(F.sum("expected"), F.sum("found"), F.sum(F.abs(more))).collect()
    made = {row[0]: Found(int(row[1]), int(row[2])) for row in counts}
    if any(row[3] for row in counts):
        lost = both.where(more > 0).select(*_record("lost", F.col("value"), F.lit(None), more))
        doubled = both.where(more < 0).select(*_record("doubled", F.lit(None), F.col("value"), -more))
        path, kinds = kept(lost.unionByName(doubled), folder, name)
        made |= {subject: replace(made[subject], kinds=counted, rows=path) for subject, counted in kinds.items()}
    looked_at = [subject for subject in ordered if subject in made and not made[subject].kinds]
    if looked_at:
        chosen = F.col("subject").isin(looked_at)
        path, kinds = kept(_out_of_order(wanted.where(chosen), there.where(chosen)), folder, f"{name}-order")
        made |= {subject: replace(made[subject], kinds=counted, rows=path) for subject, counted in kinds.items()}
    return made


def _record(kind: str, expected: Column, found: Column, times: Column) -> list[Any]:
    from pyspark.sql import functions as F

    return [
        "subject",
        F.lit(kind).alias("kind"),
        "partition",
        F.lit(0).alias("copy"),
        "key",
        expected.cast("binary").alias("expected"),
        found.cast("binary").alias("found"),
        "timestamp_ms",
        "headers",
        times.cast("bigint").alias("times"),
    ]


def _same(one: DataFrame, other: DataFrame, columns: Sequence[str]) -> Column:
    """Equal in all of the columns, nulls too."""
    found = one[columns[0]].eqNullSafe(other[columns[0]])
    for column in columns[1:]:
        found = found & one[column].eqNullSafe(other[column])
    return found


def _out_of_order(wanted: DataFrame, there: DataFrame) -> DataFrame:
    """Of each key that one task alone sends to a partition: the first record that stands in another place."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by = ("subject", "partition", "key")
    key = Window.partitionBy(*by)
    columns = ("value", "timestamp_ms", "headers")
    several = F.min("sender").over(key) != F.max("sender").over(key)
    one = wanted.withColumns({"several": several, "nth": F.row_number().over(key.orderBy(*PLACE))})
    one = one.where("not several and key is not null").select(*by, "nth", F.struct(*columns).alias("expected"))
    other = there.withColumn("nth", F.row_number().over(key.orderBy("offset")))
    other = other.select(*by, "nth", F.struct(*columns).alias("found"))
    moved = one.join(other, [*by, "nth"]).where(~F.col("expected").eqNullSafe(F.col("found")))
    first = moved.groupBy(*by).agg(F.min(F.struct("nth", "expected", "found")).alias("first"))
    return first.select(
        "subject",
        F.lit("order").alias("kind"),
        "partition",
        F.lit(0).alias("copy"),
        "key",
        F.col("first.expected.value").alias("expected"),
        F.col("first.found.value").alias("found"),
        F.col("first.expected.timestamp_ms").alias("timestamp_ms"),
        F.col("first.expected.headers").alias("headers"),
        F.lit(1).cast("bigint").alias("times"),
    )


def last_records(
    expected: DataFrame, found: DataFrame, folder: Path, name: str, compacted: Changelogs | None = None
) -> dict[str, Found]:
    """The last result of each key alone: what came before it are intermediate ones, which depend on when messages came. So does
    whether there was one at all of a key that has none in the end: none is no other answer than one that was taken back.

    Of `compacted` topics keys are left out as those of tables are: see there."""
    from pyspark.sql import functions as F

    by = ("subject", "key")
    one = expected.groupBy(*by).agg(F.max(F.struct(*PLACE, "value")).alias("last"))
    one = one.select(*by, F.col("last.value").alias("expected"))
    other = found.groupBy(*by).agg(F.max(F.struct("offset", "value")).alias("last"))
    other = other.select(*by, F.col("last.value").alias("found"))
    both = one.join(other, _same(one, other, by), "full").select(
        *(F.coalesce(one[column], other[column]).alias(column) for column in by), "expected", "found"
    )
    same = F.col("expected").eqNullSafe(F.col("found"))
    counts = both.groupBy("subject").agg(F.count("expected"), F.count("found"), F.count_if(~same)).collect()
    made = {row[0]: Found(int(row[1]), int(row[2])) for row in counts}
    differing = [row[0] for row in counts if row[3]]
    if not differing:
        return made
    kind = F.when(F.col("found").isNull(), "missing").when(F.col("expected").isNull(), "extra").otherwise("differs")
    nowhere = [F.lit(None).cast("int").alias("partition"), F.lit(0).alias("copy")]
    rows = both.where(~same).select(kind.alias("kind"), *by, *nowhere, "expected", "found", *_untimed())
    if compacted is not None:
        return made | _sure(rows, folder, name, compacted, list(by), {subject: made[subject] for subject in differing})
    path, kinds = kept(rows, folder, name)
    return made | {subject: replace(made[subject], kinds=counted, rows=path) for subject, counted in kinds.items()}
