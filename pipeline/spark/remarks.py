"""What a user should know of a backfill once it is computed and before it is written: what was read of topics that go on, and outputs
that will not stay.

One rule: it is said while something can be done about it, with the option or the command that does it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.spark.inputs import Computed, Inputs
from workers.commands.short_lived import goes_by_own_times, warning


def remarks(computed: Computed, inputs: Inputs, now_ms: int) -> Iterator[str]:
    """Lines for people."""
    for read in computed.ranges(inputs.history):
        yield f"to verify and audit, name what was read of a topic, which may go on: {read}"
    if goes_by_own_times(inputs.log_url):
        yield from _short_lived(computed, inputs, now_ms)


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
