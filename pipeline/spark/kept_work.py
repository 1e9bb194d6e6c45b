"""What a backfill has computed and could not write: kept for the same command, so that no hour of Spark is lost to a log that is full,
away, or too slow for one transaction.

One rule: it is used where all that it was made of is the same: the app's source, the history, the log and its topics. The cut is
that of the first run: what the inputs have behind it is for live instances, as ever. In the flow: `backfill` keeps it where the log
refuses, finds it with the next run, and writes it; it is removed once it is written, or where no run can write it any more.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from orchestrator.errors import RefusedBySafety
from pipeline.loading import module_of
from pipeline.spark import half_made
from pipeline.spark.inputs import Computed, Inputs, Say
from pipeline.spark.skew import Skewed
from pipeline.spark.source import packed, pieces
from pipeline.spark.sources import From, made_of
from pipeline.spark.stage import TaskFacts
from state.errors import LeaseLost
from state.log.protocol import Partition
from state.scratch import Scratch
from workers.fleet.held_lease import Held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = half_made.KEPT
SQL = "spark.sql."
OWN_FOLDER = "spark.sql.warehouse.dir"  # a new one each time, unless it is named; files have their paths
FRAMES = ".history-"  # folders below the snapshots with the rows of DataFrames, for as long as a backfill runs


class Kept(msgspec.Struct, frozen=True):
    """`made_of`: a sum; `name`: of the snapshot whose folder has the SST files; `files`: all that was computed, with their sizes, by their
    names below the snapshots; the rest is what a run that has computed knows."""

    application: str
    log_id: str
    made_of: str
    name: str
    time_ms: int
    until: list[tuple[Partition, int]]
    begins: list[tuple[Partition, int]]
    tasks: dict[str, TaskFacts]
    bad: dict[str, int]
    skewed: list[Skewed]
    seconds: dict[str, float]
    reading: dict[str, float]
    files: dict[str, int]

    def inputs(self, found: Inputs) -> Inputs:
        """With the cut of the run that has computed."""
        return replace(found, until=dict(self.until), begins=dict(self.begins))

    def computed(self, work: Path) -> Computed:
        return Computed(work, self.tasks, {}, self.bad, self.skewed, reading=self.reading)


def is_of_use(error: BaseException, held: Held) -> bool:
    """Whether a later run can write what this one could not: not where the app has begun, or its inputs are others."""
    return not (held.is_lost or isinstance(error, LeaseLost | RefusedBySafety))


def forget(scratch: Scratch) -> None:
    """The log has it all: what a kill leaves of the folder from now on is removed as that of any job."""
    (scratch.path / FILE).unlink(missing_ok=True)


def note(scratch: Scratch, inputs: Inputs, computed: Computed, made_of: str, name: str, time_ms: int) -> str:
    """Writes, once, by what the same command knows it. Done before the log is given anything, so that it outlives a kill as well.
    Returns why not: no other run can know it for its own, or its disk, which may be that of the log, has no place for the facts."""
    if (scratch.path / FILE).exists():
        return ""
    if not made_of:
        return "whether its history would be the same again is not known"
    until, begins = sorted(inputs.until.items()), sorted(inputs.begins.items())
    facts = Kept(
        *(inputs.prepared.app.id, inputs.log_id, made_of, name, time_ms, until, begins),
        *(computed.tasks, computed.bad, computed.skewed, computed.seconds, computed.reading),
        _files_of(scratch.path.parent, scratch.path, name),
    )
    unnamed = scratch.path / f".{FILE}"  # it has its name once it is whole, whenever this is killed
    try:
        unnamed.write_bytes(msgspec.json.encode(facts))
        unnamed.rename(scratch.path / FILE)
    except OSError as error:
        return f"{scratch.path / FILE} cannot be written ({error.strerror})"
    return ""


def keep(scratch: Scratch, inputs: Inputs, computed: Computed, made_of: str, name: str, time_ms: int, say: Say) -> bool:
    """From now on the folder stays until the same command has written what is in it. False where it cannot be noted."""
    if why := note(scratch, inputs, computed, made_of, name, time_ms):
        say(f"what was computed is not kept: {why}")
        return False
    scratch.keep()
    say(f"what was computed is kept in {scratch.path}: the same command goes on from there; or remove it")
    return True


def find(root: Path, inputs: Inputs, made_of: str, say: Say) -> Kept | None:
    """The newest that the same command has left below `root`; folders of others of the app are named, and stay."""
    found: Kept | None = None  # of none where `made_of` is not known
    for path in sorted(root.glob(f".*/{FILE}")):
        kept = _read(path)
        if kept is None:
            say(
                f"{path.parent} has what a backfill computed and could not write, and its {FILE} cannot be read: it is not used; remove it"
            )
            continue
        if (kept.application, kept.log_id) != (inputs.prepared.app.id, inputs.log_id):
            continue
        if kept.made_of == made_of and _files_of(root, path.parent, kept.name) != kept.files:
            say(f"{path.parent}, or {root / kept.name}, is not as a backfill has left it: it is not used; remove both")
        elif kept.made_of == made_of:
            found = kept
        else:
            say(
                f"{path.parent} has what a backfill of '{kept.application}' computed of another source or history, or with other {SQL}* "
                "properties, and could not write: it is not used; remove it"
            )
    return found


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _files_of(root: Path, work: Path, name: str) -> dict[str, int]:
    """What whole attempts have computed, and their snapshot."""
    return {
        str(path.relative_to(root)): path.stat().st_size
        for folder in (work, root / name)
        for path in folder.rglob("*")
        if path.is_file()
        and path.name != FILE
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def sum_of(session: SparkSession, inputs: Inputs, *, snapshot_only: bool) -> str:
    """Of all that an answer is made of but the records of the log, which are there up to the cut as long as the topics are. "" where it
    is not known whether the same would be read again: what is computed of that is of no use to another run."""
    prepared = inputs.prepared
    history: dict[str, list[object]] = {}
    for topic, sources in sorted(inputs.history.items()):
        facts = [_file(one) if isinstance(one, str) else _source(session, one) for one in sources]
        if None in facts:
            return ""
        history[topic] = list(facts)
    topics = {name: (info.topic_id, info.partitions) for name, info in sorted(prepared.topics.items())}
    is_sql = any(not isinstance(one, str) for sources in inputs.history.values() for one in sources)
    how = _sql_properties(session) if is_sql else []
    made_with = (inputs.shape, inputs.bad, how, snapshot_only)
    parts = (inputs.app_ref, prepared.topology.numbering(), topics, history, made_with)
    found = hashlib.blake2b(packed(pieces(module_of(inputs.app_ref))), digest_size=16)
    found.update(msgspec.json.encode(parts))
    return found.hexdigest()


def _sql_properties(session: SparkSession) -> list[tuple[str, str]]:
    """By which Spark reads what it is asked for: a query has other rows by some of them."""
    found: dict[str, str] = session.conf.getAll
    return sorted((name, value) for name, value in found.items() if name.startswith(SQL) and name != OWN_FOLDER)


def _source(session: SparkSession, one: From) -> tuple[object, ...] | None:
    files = made_of(session, one)
    return None if files is None else (one.text, files)


def _file(name: str) -> tuple[object, ...] | None:
    if any(part.startswith(FRAMES) for part in Path(name).parts):
        return None
    facts = Path(name).stat()
    # The last one, too: an archive that is unpacked sets the time of its files.
    return name, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
