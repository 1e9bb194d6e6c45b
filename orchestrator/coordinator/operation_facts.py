"""A scale-down as the log keeps it, so that it goes on under the next coordinator.

One rule: what is written here is read by other versions too; a fact that a version does not know is left alone, and one
that is missing has its default. Written by admin.py, read by shell.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.clocks import monotonic_ms
from orchestrator.group import events as ev
from orchestrator.group.scale_down import incarnations
from orchestrator.group.state import GroupState

KEPT = ("from", "to", "leaving", "staying", "since", "term")  # of the answer to a scale-down


def operation_facts(
    group: GroupState,
    answer: Mapping[str, Any],
    request: str,
    deadline_wall_ms: int | None,
    *,
    timeout_ms: int | None,
    force: bool,
) -> Mapping[str, object]:
    """Of a scale-down that is about to begin; `answer` is its client's, `request` the request's id, `timeout_ms` what its leavers
    are given from now on."""
    return {
        "id": str(answer["plan"]),
        "deadline_wall_ms": deadline_wall_ms,
        "timeout_ms": timeout_ms,
        "force": force,
        "request": request,
        "incarnations": incarnations(group, answer["leaving"]),
        **{fact: answer[fact] for fact in KEPT},
    }


def left_by(facts: Mapping[str, Any], before: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The incarnations that the log is to have of instances that left, now that the scale-down of `facts` is over: one of them that
    comes back late leaves, whoever coordinates then. `before`: those that it has; `known`: those of the group, which has forgotten
    what was taken back."""
    left = {instance: known[instance] for instance in map(str, facts["leaving"]) if known.get(instance)}
    return {instance: one for instance, one in {**before, **left}.items() if known.get(instance) == one}


def taken_back(operations: Iterable[Mapping[str, Any]], before: Mapping[str, str]) -> dict[str, str]:
    """The same where these scale-downs are about to be taken back: who is named by one stays, whatever ended before."""
    named = {str(instance) for facts in operations for instance in facts["leaving"]}
    return {instance: one for instance, one in before.items() if instance not in named}


def resumed(facts: Mapping[str, Any], wall_ms: int) -> ev.Leaving:
    """The scale-down under a new coordinator, which began at `wall_ms`. Where the clock of its machine is behind that of the one
    before, leavers are given as long as at the beginning, and no longer."""
    deadline, timeout_ms = facts.get("deadline_wall_ms"), facts.get("timeout_ms")
    left_ms = 0 if deadline is None else int(deadline) - wall_ms
    left_ms = left_ms if timeout_ms is None else min(left_ms, int(timeout_ms))
    return ev.Leaving(
        str(facts["id"]),
        tuple(str(instance) for instance in facts["leaving"]),
        None if deadline is None else monotonic_ms() + left_ms,
        bool(facts.get("force")),
        resumed=True,
        incarnations=facts.get("incarnations", {}),
    )
