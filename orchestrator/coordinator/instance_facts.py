"""What `status` says of the instances: a row for each, and the versions of the app that they run.

One rule: it reads the group and changes nothing. `admin` puts it into an answer.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.durations import show_duration
from orchestrator.explain.task import is_silent
from orchestrator.group.state import GroupState
from orchestrator.group.topology_versions import ranges
from orchestrator.model import TaskRange
from orchestrator.names import natural


def instances(group: GroupState) -> list[dict[str, Any]]:
    """One row an instance; workers are counted."""
    rows: dict[str, dict[str, Any]] = {}
    loads: Counter[str | None] = Counter()
    for task in group.tasks:
        loads[group.effective_owner(task)] += group.weight(task)
    for member in sorted(group.members, key=lambda m: natural(m.name)):
        if member.fenced:
            continue  # what is left of a dead one until its session ends
        name = member.join_request.instance
        row = rows.setdefault(
            name,
            {
                "id": name,
                "state": "leaving" if member.is_leaving else "running" if member.sent is not None else "joining",
                "workers": 0,
                "load": 0,
                "silent": False,
                "host": member.join_request.host,
                "pid": member.join_request.pid,
                "notices": [],
                "guarantees": [],
                "app_versions": [],
                "package_versions": [],
            },
        )
        _add(row["guarantees"], member.join_request.guarantee)
        _add(row["app_versions"], member.join_request.app_version)
        _add(row["package_versions"], member.join_request.package_version)
        row["notices"] += member.status.notice.splitlines()
        if is_silent(group, member):
            row["silent"] = True
            who = "" if member.name == name else f"{member.name} "
            row["notices"].append(f"{who}has been silent for {show_duration(member.silent_for(group.last_step_ms))}")
        row["workers"] += 1
        row["load"] += loads[member.name]
    return list(rows.values())


def _add(found: list[str], text: str) -> None:
    """Workers of one instance may differ: one that crashed comes back with the code of now."""
    if text and text not in found:
        found.append(text)


def versions(group: GroupState) -> list[dict[str, Any]]:
    """The versions of the app that run, by what tells them apart: how many partitions each subtopology has in them. A member
    that does not say so has the coordinator's own."""
    found: dict[tuple[TaskRange, ...], set[str]] = {}
    for member in group.members:
        if not member.fenced:
            asked = member.join_request
            tasks = ranges(group.declared.values()) if asked.tasks is None else asked.tasks
            found.setdefault(tuple(r._replace(weight=1) for r in tasks), set()).add(asked.instance)
    rows: list[dict[str, Any]] = []
    for version in sorted(found):
        partitions: Counter[str] = Counter()
        for r in version:
            partitions[str(r.subtopology)] += r.partitions
        names = sorted(found[version], key=natural)
        rows.append({"tasks": partitions.total(), "partitions": dict(partitions), "instances": names})
    return rows
