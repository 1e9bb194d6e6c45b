"""What `produce` says of records that Kafka will not keep: brokers go by the times of records, and those of history are old.

One rule: one warning, before the first of them is written, since they may be gone before the app has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from pipeline.files.shape import FileRecord
from workers.commands.topic_list import span

Look = Callable[[Iterable[FileRecord]], None]
KAFKA = "kafka://"
_SINCE = datetime(1970, 1, 1, tzinfo=UTC)


def old_records(
    url: str, application: str, topic: str, kept_ms: int | None, now_ms: int, say: Callable[[str], None]
) -> Look:
    """Looks at what is written next. `kept_ms`: how long the topic keeps records, None for ever."""
    if kept_ms is None or not url.startswith(KAFKA):  # an embedded log goes by when a record was appended
        return lambda records: None
    kept, has_warned = kept_ms, False

    def look(records: Iterable[FileRecord]) -> None:
        nonlocal has_warned
        if has_warned:
            return
        for one in records:
            if one.timestamp_ms is not None and one.timestamp_ms < now_ms - kept:
                has_warned = True
                day = (_SINCE + timedelta(milliseconds=max(0, one.timestamp_ms))).date()
                say(
                    f"warning: topic {topic} keeps records for {span(kept)} by their own times, and line {one.line} is of {day}: brokers "
                    f"remove such records within minutes, read or not; `orchestrator topics set {application} {topic} --retention forever`, "
                    "before it or at once, keeps them"
                )
                return

    return look
