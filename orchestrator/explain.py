"""Why a task is where it is, and what it waits for, in sentences. One rule: reads the group, decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.group import Group
from orchestrator.model import TaskId


def explain_task(group: Group, task: TaskId, names: Mapping[TaskId, str] | None = None) -> tuple[list[str], list[str]]:
    """(why it is there, what it waits for)."""
    name = (names or {}).get(task, str(task))
    why: list[str] = []
    waiting: list[str] = []
    owner = group.owners.get(task)
    if task not in group.tasks:
        why.append(
            f"{name} is in no version of the app that runs here; it comes back with a member whose version has it"
        )
        return why, waiting
    if owner is None:
        why.append(f"{name} has never had an owner")
    elif not owner.writer:
        why.append(f"{name} has no owner: {owner.member}, its last one, was fenced at epoch {owner.epoch - 1}")
    else:
        why.append(f"{name} is active on {owner.member} since epoch {owner.epoch}")
    why += _copies(group, task, name)
    move = group.moves.get(task)
    if move is not None:
        source = group.roster.get(move.source)
        if source is not None and owner is not None and owner.writer == source.hello.writer:
            waiting.append(f"{name} goes to {move.target}, which waits for {move.source} to give it up")
        else:
            waiting.append(f"{name} goes to {move.target} as soon as its owner record is written")
    elif task in group.recording:
        waiting.append(f"{name} goes to {group.recording[task].member}; its owner record is being written")
    learner = group.learners.get(task)
    if learner is not None and move is None:
        member = group.roster.get(learner)
        copy = member.status.copies.get(task) if member is not None else None
        lag = f", {copy.lag} behind" if copy is not None and copy.lag else ""
        waiting.append(f"{name} moves to {learner} when {learner} has restored its state{lag}")
    holder = group.roster.get(owner.member) if owner is not None and owner.writer else None
    if holder is not None and holder.is_leaving and learner is None and move is None:
        waiting.append(f"{holder.name} is leaving; {name} waits for an instance with room in its learner budget")
    if owner is not None and not owner.writer and move is None:
        waiting.append(f"{name} is kept for {owner.member} until its session ends")
    return why, waiting


def _copies(group: Group, task: TaskId, name: str) -> list[str]:
    found: list[str] = []
    learner = group.learners.get(task)
    if learner is not None:
        owner = group.owners.get(task)
        holder = group.roster.get(owner.member) if owner is not None else None
        reason = "because its owner is leaving" if holder is not None and holder.is_leaving else "to balance the load"
        found.append(f"{learner} is learning {name} {reason}")
    for standby in group.standbys.get(task, ()):
        found.append(f"{standby} keeps a standby of {name}")
    return found
