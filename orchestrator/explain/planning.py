"""What the whole group waits for, in sentences: why nothing is planned now, and who keeps a barrier closed.

One rule: reads the group, decides nothing; each phase in which nothing is assigned has its sentence here.
Used by task.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.durations import show_duration
from orchestrator.group.convergence import holder_of
from orchestrator.group.members import is_released
from orchestrator.group.phases import absent_transactional_ids
from orchestrator.group.state import GroupState, Phase
from orchestrator.model import TaskId
from orchestrator.names import natural

SHOWN_MAX = 5  # names in a list; the others are counted


def why_not_planned(group: GroupState, now_ms: int, called: Callable[[TaskId], str] = str) -> str | None:
    """What has to happen before the group plans again; None where nothing is in the way."""
    match group.phase:
        case Phase.FENCING:
            return f"nothing is planned until the log has fenced {some(_fenced_members(group))}"
        case Phase.GATHERING:
            return _who_may_come(group, now_ms)
        case Phase.HELD:
            return "nothing is planned: the group is on hold"
        case Phase.BARRIER:
            waits = Barrier(group, called=called).awaited()
            for_whom = f", which waits for {some(waits, ' and ')}" if waits else ""
            return f"nothing else is planned until all that moves now has changed hands{for_whom}"
        case Phase.COMPUTING:
            return "a new assignment is being computed"
        case Phase.PLANNING | Phase.MOVING | Phase.STABLE:
            return None


def _who_may_come(group: GroupState, now_ms: int) -> str | None:
    """Who is waited for while the group gathers, and for how long."""
    if absent := absent_transactional_ids(group):
        names = {
            group.owners[next(iter(group.by_transactional_id.of(transactional_id)))].member
            for transactional_id in absent
        }
        left = time_left(group.started_ms + group.settings.rejoin_grace_ms, now_ms)
        verb = "is" if len(names) == 1 else "are"
        return (
            f"nothing is planned until {some(names)} {verb} back with this coordinator or fenced, in at most {left} "
            "(rejoin_grace)"
        )
    if group.gathering:
        left = time_left(group.started_ms + group.settings.gathering_ms, now_ms)
        return f"nothing is planned for another {left}: the coordinator is new, and those without tasks may still come back"
    if group.first_join_ms is None:
        return None
    left = time_left(group.first_join_ms + group.settings.initial_delay_ms, now_ms)
    return f"nothing is placed for another {left}, so that others may join first (initial_delay)"


def _fenced_members(group: GroupState) -> set[str]:
    records = [*group.owners.values(), *group.recording.values()]
    return {record.member for record in records if record.writer in group.fencing}


def time_left(until_ms: int, now_ms: int) -> str:
    return show_duration(max(0, until_ms - now_ms))


def is_given_up(group: GroupState, task: TaskId) -> bool:
    """Whether the task is without an owner, provably: it never had an owner, that was fenced, or its own report says so."""
    owner, holder = group.owners.get(task), holder_of(group, task)
    if owner is None or not owner.writer:
        return True
    return holder is not None and is_released(owner, holder)


class Barrier:
    """Moves that are made all at once: who still holds some of their tasks."""

    def __init__(
        self, group: GroupState, task: TaskId | None = None, own: str = "", called: Callable[[TaskId], str] = str
    ) -> None:
        """Those that `task` waits for beside its owner `own`, if that has not given it up yet."""
        self.group = group
        self.called = called
        self.fenced: set[str] = set()
        self.recorded: set[TaskId] = set()
        self.held: dict[str, set[TaskId]] = {}
        for other in group.moves if group.barrier else ():
            owner = group.owners.get(other)
            if other == task:
                continue
            if other in group.recording:
                self.recorded.add(other)
            elif owner is not None and owner.writer in group.fencing:
                self.fenced.add(owner.member)
            elif owner is not None and owner.member != own and not is_given_up(group, other):
                self.held.setdefault(owner.member, set()).add(other)

    def awaited(self) -> list[str]:
        """`S2 to give up T3, T4`, one for each of those that are waited for."""
        found = [
            f"{member} to give up {some(map(self.called, self.held[member]))}"
            for member in sorted(self.held, key=natural)[:SHOWN_MAX]
        ]
        if len(self.held) > SHOWN_MAX:
            found.append(f"{len(self.held) - SHOWN_MAX} more to give up theirs")
        if self.fenced:
            found.append(f"the log to fence {some(self.fenced)}")
        if self.recorded:
            found.append(f"owner records of {some(map(self.called, self.recorded))}")
        return found

    def deadlines(self, now_ms: int) -> list[str]:
        """Until when; a member that does not keep to it is fenced, and holds up the others no more."""
        group, found = self.group, list[str]()
        for member in sorted(self.held, key=natural)[:SHOWN_MAX]:
            tasks = self.held[member]
            asked = [move.since_ms for task in tasks if (move := group.moves[task]).asked]
            if asked:
                left = time_left(min(asked) + group.settings.release_timeout_ms, now_ms)
                what = some(map(self.called, tasks))
                found.append(
                    f"{member} is fenced if it is silent and has not given {what} up in {left} (release_timeout)"
                )
        return found


def some(names: Iterable[str], between: str = ", ") -> str:
    """Names in their natural order, the first of them where there are many."""
    ordered = sorted(names, key=natural)
    more = len(ordered) - SHOWN_MAX
    return between.join(ordered[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
