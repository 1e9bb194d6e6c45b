"""The phases of a rebalance, as a table: where the group stands between a change and rest.

One rule: a target assignment is computed in the phase PLANNING and in no other, and what the group waits for is its phase.
step.py turns the table; reconcile.py and explain/ read the phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum
from types import MappingProxyType

from orchestrator.group.state import GroupState, Phase


class Turn(StrEnum):
    """What makes a group enter a phase; of several facts the first of these counts."""

    FENCE_REQUESTED = "fence requested"
    COORDINATOR_NEW = "coordinator is new"
    OWNERS_ABSENT = "owners are absent"
    FIRST_JOINED = "first member joined"
    HELD = "held by an operator"
    MOVES_TOGETHER = "moves agreed, all at once"
    TARGET_REQUESTED = "target requested"
    TARGET_OUTDATED = "target outdated"
    MOVES_AGREED = "moves agreed"
    NOTHING_MOVES = "nothing moves"


_ENTERED = {
    Turn.FENCE_REQUESTED: Phase.FENCING,
    Turn.OWNERS_ABSENT: Phase.GATHERING,
    Turn.COORDINATOR_NEW: Phase.GATHERING,
    Turn.FIRST_JOINED: Phase.GATHERING,
    Turn.HELD: Phase.HELD,
    Turn.MOVES_TOGETHER: Phase.BARRIER,
    Turn.TARGET_REQUESTED: Phase.COMPUTING,
    Turn.TARGET_OUTDATED: Phase.PLANNING,
    Turn.MOVES_AGREED: Phase.MOVING,
    Turn.NOTHING_MOVES: Phase.STABLE,
}
# These interrupt a rebalance wherever it is, and what they interrupted goes on after them.
_INTERRUPTIONS = (Phase.GATHERING, Phase.FENCING, Phase.HELD)
_INTERRUPTING = (Turn.FENCE_REQUESTED, Turn.OWNERS_ABSENT, Turn.FIRST_JOINED, Turn.HELD)
# A rebalance that nothing interrupts; a target assignment always comes from PLANNING. Drawn in the docs.
IN_ORDER: Mapping[tuple[Phase, Turn], Phase] = MappingProxyType(
    {
        (phase, turn): _ENTERED[turn]
        for phase, turns in {
            Phase.PLANNING: (Turn.TARGET_REQUESTED, Turn.MOVES_TOGETHER, Turn.MOVES_AGREED, Turn.NOTHING_MOVES),
            Phase.COMPUTING: (Turn.TARGET_REQUESTED, Turn.MOVES_TOGETHER, Turn.MOVES_AGREED, Turn.NOTHING_MOVES),
            Phase.BARRIER: (Turn.TARGET_REQUESTED, Turn.MOVES_TOGETHER, Turn.MOVES_AGREED, Turn.NOTHING_MOVES),
            Phase.MOVING: (Turn.MOVES_TOGETHER, Turn.MOVES_AGREED, Turn.NOTHING_MOVES),
            Phase.STABLE: (Turn.NOTHING_MOVES,),
        }.items()
        for turn in (Turn.TARGET_OUTDATED, *turns)
    }
)
# (phase, what happened) -> phase; a KeyError is a defect of the rules. Executed with each `Turned`.
REBALANCE: Mapping[tuple[Phase, Turn], Phase] = MappingProxyType(
    {
        **IN_ORDER,
        **{(phase, turn): _ENTERED[turn] for phase in Phase for turn in _INTERRUPTING},
        **{(phase, turn): _ENTERED[turn] for phase in _INTERRUPTIONS for turn in Turn},
    }
)


def turn_of(group: GroupState, now_ms: int) -> Turn:
    """Returns the first of the facts that decide on the phase."""
    if group.fencing:
        return Turn.FENCE_REQUESTED
    if group.gathering:
        return Turn.COORDINATOR_NEW
    if not group.by_transactional_id.keys() <= group.members.transactional_ids():
        return Turn.OWNERS_ABSENT  # until they are back, or fenced: with the first tick after the rejoin grace
    if _is_delayed(group, now_ms):
        return Turn.FIRST_JOINED
    if group.paused:
        return Turn.HELD
    if group.barrier and group.moves and not _broken_move(group):
        return Turn.MOVES_TOGETHER
    if group.computing is not None:
        return Turn.TARGET_REQUESTED
    if group.dirty:
        return Turn.TARGET_OUTDATED
    return Turn.MOVES_AGREED if group.moves or group.recording else Turn.NOTHING_MOVES


def are_all_back(group: GroupState) -> bool:
    """Whether a group that gathers waits for no member of the last generation any more."""
    return group.gathering and len(group.before) > 0 and all(_is_here(group, name) for name in group.before)


def _is_here(group: GroupState, name: str) -> bool:
    member = group.members.get(name)
    return member is not None and member.session is not None


def absent_transactional_ids(group: GroupState) -> Set[str]:
    """Transactional ids that the log names, of members that did not come back to this coordinator yet."""
    return group.by_transactional_id.keys() - group.members.transactional_ids()


def _is_delayed(group: GroupState, now_ms: int) -> bool:
    """Whether a fresh group still waits for more members to join."""
    if group.by_transactional_id or group.generation != group.inherited:
        return False
    if 0 < group.started_with <= len(group.members):
        return False
    since_ms = now_ms - (group.first_join_ms if group.first_join_ms is not None else now_ms)
    return since_ms < group.settings.initial_delay_ms


def _broken_move(group: GroupState) -> bool:
    """Whether the target of a move is gone, or came back as a version of the app without the task."""
    for name in group.moves.named():
        target = group.members.get(name)
        if target is None:
            return True
        if not group.knows_all(target) and any(not group.can_run(target, task) for task in group.moves.of(name)):
            return True
    return False
