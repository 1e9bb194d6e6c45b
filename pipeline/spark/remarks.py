"""What a user should know of a backfill once it is computed and before it is written: what was read of topics that go on, or had
lost their beginning, and outputs that will not stay.

One rule: it is said while something can be done about it, with the option or the command that does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.names import counted
from pipeline.spark import log_range
from pipeline.spark.inputs import Computed, Inputs
from workers.commands.short_lived import goes_by_own_times, warning
from workers.prepare import from_the_end


def remarks(computed: Computed, inputs: Inputs, now_ms: int) -> Iterator[str]:
    """Lines for people."""
    yield from shortened(dict(_removed(computed, inputs)))
    for read in computed.ranges(inputs.history):
        yield f"to verify and audit, name what was read of a topic, which may go on: {read}"
    if goes_by_own_times(inputs.log_url):
        yield from _short_lived(computed, inputs, now_ms)


def shortened(removed: Mapping[str, int]) -> Iterator[str]:
    """A line for each topic of which positions at its beginning are gone."""
    for topic, count in sorted(removed.items()):
        if count:
            yield f"warning: {topic} has lost its first {counted(count, 'position')} to its retention; this history begins behind them"


def _removed(computed: Computed, inputs: Inputs) -> Iterator[tuple[str, int]]:
    """By topic; of those of other logs where no positions were named."""
    own: dict[str, int] = {}
    for partition, begins in inputs.begins.items():
        is_rekey = inputs.prepared.topics[partition.topic].kind == "repartition"
        if not (is_rekey or partition.topic in inputs.history or from_the_end(inputs.prepared, partition)):
            own[partition.topic] = own.get(partition.topic, 0) + begins
    yield from own.items()
    for _, name in computed.unnamed(inputs.history):
        found = log_range.parsed(name.removeprefix(f"{log_range.LOG}:"))
        yield f"{found.url}/{found.topic}", sum(start for start, _ in found.bounds)


def _short_lived(computed: Computed, inputs: Inputs, now_ms: int) -> Iterator[str]:
    """Kafka keeps records by their own times, and those of history are old."""
    oldest: dict[str, int] = {}
    for facts in computed.tasks.values():
        for topic, at_ms in facts.oldest_ms.items():
            oldest[topic] = min(at_ms, oldest.get(topic, at_ms))
    for topic, at_ms in sorted(oldest.items()):
        info = inputs.prepared.topics[topic]
        kept_ms = None if info.has_append_times else info.retention.ms
        if kept_ms is not None and at_ms < now_ms - kept_ms:
            yield warning(inputs.prepared.app.id, topic, kept_ms, "the oldest of these outputs", at_ms)
