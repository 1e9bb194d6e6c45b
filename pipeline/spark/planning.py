"""`backfill --dry-run`: how much a backfill would read, and in how many tasks.

One rule: nothing is made or changed, neither log nor topic nor folder; a file whose columns do not fit is refused as the
backfill would refuse it. Rows of text are estimated from the beginning of each file. Spark is started for what it alone
can read.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestratorError, RefusedBySafety, WrongUse
from orchestrator.names import counted
from pipeline.definitions.topology import Topology
from pipeline.files import parquet, parts, text
from pipeline.files.columns import Columns
from pipeline.files.shape import BadFile, Reading, Shape
from pipeline.loading import load
from pipeline.spark.backfill import refuse_used
from pipeline.spark.history import BadHistory
from pipeline.spark.inputs import History
from pipeline.spark.own_words import own_words
from pipeline.spark.remarks import shortened
from pipeline.spark.running import in_thread, spark
from pipeline.spark.sources import From, read_as
from state.errors import LogMissing, StateError
from state.log.protocol import GroupLog, Partition
from workers.commands.cluster import Cluster
from workers.commands.show import table
from workers.log.logs import open_log
from workers.prepare import refuse_half_done

SAMPLE_BYTES = 1 << 20
RECORDS_S = 20_000  # of one core with a plain count, what a slow machine did; the app's own calls are not known
START_S = 15.0


async def planned(app_ref: str, url: str, history: History, shape: Shape, cluster: Cluster) -> dict[str, Any]:
    """The facts: `inputs` with rows and bytes (null where Spark reads), `tasks`, `seconds`, an estimate; `gone`: by topic, how many
    positions the log has no more; `refused`: why a backfill would be, by what it has of the app, or null. Raises WrongUse."""
    app = load(app_ref)
    topology, in_log, gone, refused = await _log_side(app.id, app.topology(), url)
    names = {topic.name: topic.topic for topic in app.topics.values()}
    known = {topic for sub in topology.subtopologies for topic in sub.sources} - {
        name for name, topic in topology.topics.items() if topic.kind == "repartition"
    }
    by_topic = {topic.topic: topic for topic in app.topics.values()}
    rows: list[dict[str, Any]] = []
    for name, sources in history.items():
        topic = names.get(name, name)
        if topic not in known:
            raise WrongUse(f"'{name}' is no input of '{app.id}'; its inputs are {', '.join(sorted(known))}")
        about = by_topic[topic]
        reading = Reading(topic, about.key_codec, about.value_codec, topology.topics[topic].partitions)
        rows += _of_files([one for one in sources if isinstance(one, str)], topic, reading, shape)
        rows += await _of_spark([one for one in sources if isinstance(one, From)], topic, reading, shape, cluster)
    rows += [{"topic": topic, "source": url, "rows": count, "bytes": None} for topic, count in in_log.items()]
    total = sum(row["rows"] for row in rows)
    return {
        "application": app.id,
        "inputs": rows,
        "rows": total,
        "tasks": sum(sub.partitions for sub in topology.subtopologies),
        "cores": cores(cluster.master),
        "seconds": round(START_S + total / RECORDS_S / cores(cluster.master)),
        "gone": {
            topic: count for topic, count in gone.items() if topic not in {names.get(one, one) for one in history}
        },
        "refused": refused,
    }


def plan_text(plan: dict[str, Any]) -> str:
    """The facts for people."""
    shown = [
        (row["topic"], row["source"], f"{row['rows']:,}", "" if row["bytes"] is None else f"{row['bytes']:,}")
        for row in plan["inputs"]
    ]
    listed = table(shown, ("topic", "from", "rows", "bytes")) + "\n" if shown else ""
    listed += "".join(f"{line}\n" for line in shortened(plan["gone"]))
    refused = "" if plan["refused"] is None else f"\na backfill would be refused: {plan['refused']}"
    return (
        f"{listed}about {plan['rows']:,} records in {counted(plan['tasks'], 'task')}, about {plan['seconds']} s with "
        f"{counted(plan['cores'], 'core')} at {RECORDS_S:,} records a second and core; nothing was changed{refused}"
    )


def cores(master: str) -> int:
    """How many tasks a master runs at once, as far as its name says; 1 where it does not."""
    found = re.match(r"local\[(\d+)|local-cluster\[(\d+), ?(\d+)", master)
    if found is None:
        return 1
    here, hosts, each = found.groups()
    return int(here) if here else int(hosts) * int(each)


async def _log_side(
    application: str, topology: Topology, url: str
) -> tuple[Topology, dict[str, int], dict[str, int], str | None]:
    """The topology with the counts of the log, how many records inputs have there, how many they have lost, and why a backfill
    would be refused."""
    try:
        log = await open_log(url, create=False)
    except LogMissing:
        return topology, {}, {}, None
    try:
        known = await log.topics(list(topology.topics))
        counts = {name: info.partitions for name, info in known.items()}
        found: dict[str, int] = {}
        gone: dict[str, int] = {}
        inputs: list[Partition] = []
        for topic in sorted({name for sub in topology.subtopologies for name in sub.sources} & set(counts)):
            partitions = [Partition(topic, number) for number in range(counts[topic])]
            starts, ends = await log.starts(partitions), await log.ends(partitions)
            inputs += partitions
            lost = sum(starts.values())
            found[topic] = sum(ends.values()) - lost
            if lost and topology.topics[topic].start != "end" and topology.topics[topic].kind != "repartition":
                gone[topic] = lost
        return topology.with_partitions(counts), found, gone, await _refused(log, application, inputs)
    finally:
        await log.close()


async def _refused(log: GroupLog, application: str, inputs: Sequence[Partition]) -> str | None:
    try:
        await log.check_alone(application)
        await refuse_half_done(log, application)
        await refuse_used(log, application, inputs)
    except OrchestratorError as error:
        return str(error)
    except StateError as error:
        if error.exit_code != RefusedBySafety.exit_code:  # the log is away, or a right is missing
            raise
        return str(error)
    return None


def _of_files(patterns: Sequence[str], topic: str, reading: Reading, shape: Shape) -> list[dict[str, Any]]:
    found = []
    try:
        for name in parts.files(patterns) if patterns else ():
            parts.check(name, reading, shape)
            found.append(
                {"topic": topic, "source": name, "rows": _rows_there(name), "bytes": Path(name).stat().st_size}
            )
    except BadFile as error:
        raise BadHistory(str(error)) from None
    return found


def _rows_there(name: str) -> int:
    """Raises BadFile."""
    try:
        return _rows(name)
    except parts.BROKEN as error:
        raise parts.broken(name, error) from None


def _rows(name: str) -> int:
    """Exact for Parquet; of text as many as the lines at its beginning let expect."""
    if parts.kind_of(name) == "parquet":
        return parquet.rows(name)
    with text.opened(name) as file:
        sample = file.read(SAMPLE_BYTES)
        read = file.tell() if not name.lower().endswith(text.COMPRESSED) else len(sample)
    lines = sample.count(b"\n") + (not sample.endswith(b"\n") and bool(sample)) - (parts.kind_of(name) == "csv")
    whole = len(sample) < SAMPLE_BYTES
    return lines if whole else int(lines * Path(name).stat().st_size / read)


async def _of_spark(
    sources: Sequence[From], topic: str, reading: Reading, shape: Shape, cluster: Cluster
) -> list[dict[str, Any]]:
    if not sources:
        return []
    found = []
    async with spark(None, "backfill --dry-run", cluster) as session:
        for source in sources:

            def count(source: From = source) -> int:
                with tempfile.TemporaryDirectory(prefix="stream-orchestrator-") as folder:
                    frame = read_as(session, source.text.strip(), Path(folder) / "files")
                    if isinstance(frame, dict):
                        return sum(map(_rows, frame))
                    Columns(reading, shape, frame.columns, text=False, file=source.shown)
                    return frame.count()

            try:
                rows = await in_thread(session, count)
            except (BadFile, WrongUse) as error:
                raise BadHistory(str(error)) from None
            except Exception as error:
                raise BadHistory(f"{source.shown}: {own_words(str(error))}") from error
            found.append({"topic": topic, "source": source.shown, "rows": rows, "bytes": None})
    return found
