"""What a topic on Kafka is for, by its settings, and the settings that say so. Pure.

One rule: what a topic is for is read from its settings alone, so no other ones given for topics that are created change them: compacted ones are changelogs; those with the settings of Kafka
Streams' repartition topics are repartition topics; all others are plain. `topics.py` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from state.log.protocol import DELETE_RETENTION_MS, FOR_EVER, Retention

# What is written to our own topics has the time of a record that was taken, and keeps it whatever the brokers' default is. From 4.0
# on brokers refuse one that is an hour ahead.
_ANY_TIME = {f"message.timestamp.{side}.max.ms": str((1 << 63) - 1) for side in ("before", "after")}
_ANY_TIME["message.timestamp.type"] = "CreateTime"
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "changelog": {"cleanup.policy": "compact", "delete.retention.ms": str(DELETE_RETENTION_MS), **_ANY_TIME},
    "repartition": {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",  # a cluster may have a limit of its own
        "segment.bytes": "52428800",
        **_ANY_TIME,
    },
}


def retention_of(settings: Mapping[str, str | None]) -> Retention:
    """What the brokers delete by time and size. A topic that is compacted alone has none; by `compact,delete` it has one, too."""
    if "delete" not in (settings["cleanup.policy"] or ""):
        return FOR_EVER
    ms, size = (int(settings[name] or -1) for name in ("retention.ms", "retention.bytes"))
    return Retention(None if ms < 0 else ms, None if size < 0 else size)


def as_settings(retention: Retention) -> dict[str, str]:
    ms, size, _ = retention
    return {"retention.ms": str(-1 if ms is None else ms), "retention.bytes": str(-1 if size is None else size)}


def kind_of(settings: Mapping[str, str | None]) -> str:
    if "compact" in (settings["cleanup.policy"] or ""):
        return "changelog"
    wanted = {name: value for name, value in SETTINGS["repartition"].items() if name not in _ANY_TIME}
    return "repartition" if {name: settings[name] for name in wanted} == wanted else "plain"
