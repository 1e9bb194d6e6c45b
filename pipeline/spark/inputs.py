"""What a computation on Spark reads, and what comes of it. One rule: the records themselves are in files of its work folder.

In the flow: commands -> Inputs -> engine (`stage_rows` reads, `stage` computes) -> Computed -> who wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.files.shape import Shape
from pipeline.spark.bad_rows import BadRecords
from pipeline.spark.log_range import LOG
from pipeline.spark.skew import Skewed
from pipeline.spark.sources import From
from pipeline.spark.stage import TaskFacts
from pipeline.spark.under_way import UnderWay
from state.log.protocol import Partition
from workers.prepare import Prepared

Say = Callable[[str], None]
History = Mapping[str, Sequence[str | From]]  # patterns of files, and what Spark reads, by topic
MEMORY_BYTES = 256 << 20
NO_SHAPE = Shape()
Files = tuple[list[str], dict[str, str]]  # in the order given, and how errors call those that stand for something else
EARLIER = "earlier"  # in the work folder: what earlier stages of subtopologies sent that are computed again


@dataclass(frozen=True)
class Inputs:
    """What is computed: of which app, from which log from where (`begins`; where nothing is named, from the beginning) up to
    where, after which files of which shape, without what is `under_way` in re-keys; with how much memory for the tables of a task.
    `follow`: what the app writes into its own inputs is read on the way, because no log has it yet (a backfill; where the app
    ran, its log has it)."""

    app_ref: str
    prepared: Prepared
    log_url: str
    log_id: str
    until: Mapping[Partition, int]
    history: History
    memory_bytes: int = MEMORY_BYTES
    shape: Shape = NO_SHAPE
    follow: bool = False
    begins: Mapping[Partition, int] = field(default_factory=dict)
    bad: BadRecords | None = None
    under_way: UnderWay = field(default_factory=dict)


@dataclass
class Computed:
    """What came of it; the records themselves are in `work`."""

    work: Path
    tasks: dict[str, TaskFacts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)  # rows of history that were left out, by topic
    skewed: list[Skewed] = field(default_factory=list)
    files: dict[str, Files] = field(default_factory=dict)  # of history, by topic
    reading: dict[str, float] = field(default_factory=dict)  # seconds of all slots until runs were packed
    strangers: int = 0  # of what is under way, not among what was computed

    def total(self, what: str) -> int:
        return sum(getattr(facts, what) for facts in self.tasks.values())

    def spent(self) -> dict[str, float]:
        """Seconds of all slots together, by stage of the way of a record."""
        found = {stage: round(seconds, 3) for stage, seconds in self.reading.items()}
        for facts in self.tasks.values():
            for stage, seconds in facts.spent.items():
                found[stage] = round(found.get(stage, 0.0) + seconds, 3)
        return found

    def sums(self, what: str) -> dict[str, int]:
        """Of a mapping of every task."""
        found: dict[str, int] = {}
        for facts in self.tasks.values():
            for name, count in getattr(facts, what).items():
                found[name] = found.get(name, 0) + count
        return dict(sorted(found.items()))

    def unnamed(self, history: History) -> list[tuple[str, str]]:
        """What was read of topics of other logs that were named without positions: for which topic, and what with its positions."""
        given = {one.text.strip() for sources in history.values() for one in sources if isinstance(one, From)}
        read = {(topic, name) for topic, (_, shown) in self.files.items() for name in shown.values()}
        return [(topic, name) for topic, name in sorted(read) if name.startswith(f"{LOG}:") and name not in given]

    def ranges(self, history: History) -> list[str]:
        """The same as options of a command."""
        return [f"--from '{topic}={name}'" for topic, name in self.unnamed(history)]

    def placed(self) -> dict[Partition, int]:
        """How many outputs each partition gets."""
        found: dict[Partition, int] = {}
        for facts in self.tasks.values():
            for topic, counts in facts.placed.items():
                for number, count in counts.items() if topic in facts.outputs else ():
                    found[Partition(topic, number)] = found.get(Partition(topic, number), 0) + count
        return found

    def outputs(self, topic: str) -> list[Path]:
        return whole(self.work, f"*/outputs/{topic}.parquet")

    def state(self, task: str, table: str) -> Path:
        return self.work / task / "state" / f"{table}.parquet"


def whole(folder: Path, pattern: str) -> list[Path]:
    """The files of attempts that ended: one that was killed leaves a folder whose name begins with a dot."""
    return sorted(path for path in folder.glob(pattern) if not path.relative_to(folder).parts[0].startswith("."))


def external(prepared: Prepared) -> list[str]:
    """The topics that are read from the log: all sources but the re-keys."""
    sources = {name for sub in prepared.topology.subtopologies for name in sub.sources}
    return sorted(name for name in sources if prepared.topics[name].kind != "repartition")


def followed(inputs: Inputs) -> list[str]:
    """Inputs, other than re-keys, that the app itself writes, where what it writes is to be read."""
    return written_inputs(inputs.prepared) if inputs.follow else []


def written_inputs(prepared: Prepared) -> list[str]:
    """Inputs, other than re-keys, that the app itself writes."""
    written = {name for sub in prepared.topology.subtopologies for name in sub.sinks}
    return [name for name in external(prepared) if name in written]
