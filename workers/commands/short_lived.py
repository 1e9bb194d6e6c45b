"""Records that Kafka will not keep: brokers go by the times of records, and those of history are old.

One rule: a warning comes before the records are written, since they may be gone before an app has read them. An embedded log goes by when
a record was appended, and needs none. Place: `produce` looks at its input, a backfill at its outputs (pipeline/spark/remarks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from pipeline.files.shape import FileRecord
from state.log.protocol import TopicInfo
from workers.commands.topic_list import span

Look = Callable[[Iterable[FileRecord]], None]
_SINCE = datetime(1970, 1, 1, tzinfo=UTC)


def goes_by_own_times(log_url: str) -> bool:
    """Whether the log keeps records by their own times."""
    return log_url.startswith("kafka://")


def warning(application: str, topic: str, kept_ms: int, what: str, at_ms: int) -> str:
    """`what` is of the time `at_ms`, and the topic keeps `kept_ms`."""
    day = (_SINCE + timedelta(milliseconds=max(0, at_ms))).date()
    return (
        f"warning: topic {topic} keeps records for {span(kept_ms)} by their own times, and {what} is of {day}: brokers remove such records "
        f"within minutes, read or not; `orchestrator topics set {application} {topic} --retention forever`, before it or at once, keeps them"
    )


def old_records(log_url: str, application: str, topic: TopicInfo, now_ms: int, say: Callable[[str], None]) -> Look:
    """What looks at the records that are written next, and warns once. Where brokers give records the time at which they are
    written, none of them is old."""
    if topic.retention.ms is None or topic.has_append_times or not goes_by_own_times(log_url):
        return lambda records: None
    kept, has_warned = topic.retention.ms, False

    def look(records: Iterable[FileRecord]) -> None:
        nonlocal has_warned
        if has_warned:
            return
        for one in records:
            if one.timestamp_ms is not None and one.timestamp_ms < now_ms - kept:
                has_warned = True
                say(warning(application, topic.name, kept, f"line {one.line}", one.timestamp_ms))
                return

    return look
