"""Outputs that brokers will not keep: they go by the times of records, and what a late or repeated input writes has old ones.

One rule: a worker warns once of each topic, with the first commit whose records are past the topic's retention as they are written. They are
written all the same: who reads them at once has them. Used by `writers`, for commits; `produce` and backfills warn before they write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from state.clocks import wall_ms
from state.log.batches import Batch, largest_time_ms
from state.log.kafka.topics import Purpose
from state.log.protocol import Partition

log = logging.getLogger("orchestrator.log")
_SINCE = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MS = 3_600_000


class ShortLived:
    """What it has warned of."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def look(self, built: Mapping[Partition, Sequence[Batch]], purposes: Mapping[str, Purpose]) -> None:
        """Takes each commit, as it is built."""
        for (topic, _), batches in built.items():
            purpose = purposes[topic]
            kept_ms = purpose.retention.ms
            if kept_ms is None or purpose.kind != "plain" or purpose.has_append_times or topic in self._warned:
                continue
            latest_ms = max(largest_time_ms(batch.data) for batch in batches)
            if latest_ms >= wall_ms() - kept_ms:
                continue
            self._warned.add(topic)
            log.warning(
                "topic %s keeps records for %s by their own times, and what is written to it is of %s: brokers remove such records within "
                "minutes, read or not; `orchestrator topics set APP %s --retention forever` keeps those that are still there",
                topic,
                f"{kept_ms / _HOUR_MS / 24:g} d" if kept_ms >= 24 * _HOUR_MS else f"{kept_ms / _HOUR_MS:g} h",
                (_SINCE + timedelta(milliseconds=max(0, latest_ms))).date(),
                topic,
            )
