"""The plan of a scale-down or scale-up: counts and percentages of instances, who leaves, and what that costs.

One rule: whole-number arithmetic, no floats. A share is always written with `%`; a bare number is a count. The leavers are
those that cost the least to move. Reads the group, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from orchestrator.errors import RefusedBySafety, WrongUse
from orchestrator.group.assignor_view import knows_end
from orchestrator.group.state import GroupState
from orchestrator.model import TaskId
from orchestrator.names import counted, natural


@dataclass(frozen=True, slots=True)
class Amount:
    """`80%` or `32`. `percent` is exact."""

    count: int | None = None
    percent: Fraction | None = None


def parse_amount(text: str, option: str, *, percent_max: int = 100) -> Amount:
    """Read the value of --to or --by. Raises WrongUse with what to write instead. Only growing knows more than 100%."""
    value = text.strip()
    try:
        if value.endswith("%"):
            number = value[:-1]
            if not number or not number.replace(".", "", 1).isdecimal() or not number.isascii():
                raise ValueError
            percent = Fraction(number)
            if not 0 < percent <= percent_max:
                raise WrongUse(f"{option} {text}: out of range; write a share above 0% and up to {percent_max}%")
            return Amount(percent=percent)
        if value.isascii() and value.isdecimal():
            count = int(value)
            if count == 0:
                why = "that changes nothing" if option == "--by" else "one instance always stays"
                raise WrongUse(f"{option} 0: {why}; write a count of 1 or more")
            return Amount(count=count)
        is_share = value.isascii() and value.replace(".", "", 1).isdecimal()  # an exponent could be of any size
        share = Fraction(value) if is_share else None
    except (ValueError, ZeroDivisionError):
        share = None
    if share is not None and 0 < share < 1:
        exact = share * 100
        shown = str(exact.numerator) if exact.denominator == 1 else f"{float(exact):g}"
        raise WrongUse(f"{option} {text}: a share is written with a percent sign; write {shown}%")
    raise WrongUse(f"{option} {text}: not a count or a share; write a count such as 3, or a share such as 80%")


def target_size(current: int, *, to: Amount | None, by: Amount | None, grow: bool = False) -> int:
    """How many instances there should be. Shrinking: `to P%` leaves max(1, ceil(n*P/100)), `by P%` takes
    floor(n*P/100) away; growing mirrors it (`by P%` adds ceil). Never below one, never across `current`.
    Raises WrongUse."""
    if to is not None:
        if to.count is not None:
            size = to.count
        else:
            assert to.percent is not None
            size = _ceil(current * to.percent / 100)
    elif by is not None:
        if by.count is not None:
            step = by.count
        else:
            assert by.percent is not None
            share = current * by.percent / 100
            step = _ceil(share) if grow else share.numerator // share.denominator
        size = current + step if grow else current - step
    else:
        raise WrongUse("how many: give --to or --by")
    size = max(1, size)
    return max(size, current) if grow else min(size, current)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def choose_leaving(costs: Mapping[str, tuple[int, int]], leave: int, *, last: str | None = None) -> list[str]:
    """The `leave` instances that cost the least to move. `costs`: instance -> (size of what has to move and has no ready
    copy elsewhere, number of tasks). `last` (the coordinator's host) goes only when all others have gone; ties: the last by
    name leaves first, as the newest usually is."""
    names = sorted(costs, key=natural)
    position = {name: index for index, name in enumerate(names)}
    order = sorted(names, key=lambda name: (name == last, costs[name], -position[name]))
    return sorted(order[: max(0, min(leave, len(names) - 1))], key=natural)


# ---- read from the group


@dataclass(frozen=True, slots=True)
class Choice:
    """Who leaves, of how many that run. Some may leave already: then the scale-down joins those that run."""

    leaving: list[str]
    before: int
    staying: list[str]


def choose(
    group: GroupState,
    *,
    to: Amount | None = None,
    by: Amount | None = None,
    instances: Sequence[str] = (),
    current: int | None = None,
    last: str | None = None,
) -> Choice:
    """Who leaves. Counts and shares are of those that run and do not leave; a count that is reached already, or
    instances that leave already, are waited for. Raises WrongUse, RefusedBySafety."""
    present = running(group)
    if current is not None and current != len(present):
        raise RefusedBySafety(
            f"{counted(len(present), 'instance')} {'runs' if len(present) == 1 else 'run'}, not {current}; look at `status` and decide again"
        )
    already = {m.join_request.instance for m in group.members if m.is_leaving and not m.fenced} - present
    if instances:
        leaving = set(instances)
        if unknown := sorted(leaving - present - already, key=natural):
            there = ", ".join(sorted(present | already, key=natural))
            raise WrongUse(f"no instance '{unknown[0]}' runs; there are {there}")
        if leaving & present and leaving >= present:
            raise WrongUse("all instances would leave, and one always stays; name fewer")
    else:
        size = target_size(len(present), to=to, by=by)
        leaving = set(choose_leaving(leaver_costs(group, present), len(present) - size, last=last))
        if not leaving and to is not None and to.count is not None and to.count >= len(present):
            leaving = already
    return Choice(sorted(leaving, key=natural), len(present | leaving), sorted(present - leaving, key=natural))


def leaver_costs(group: GroupState, present: set[str]) -> dict[str, tuple[int, int]]:
    """Instance -> (MiB to move that have no ready copy elsewhere, at least 1 a task; number of tasks)."""
    result = dict.fromkeys(present, (0, 0))
    for owner in group.owners.values():
        member = group.members.get(owner.member)
        if member is None or not owner.writer or member.join_request.instance not in result:
            continue
        task = group.tasks.get(owner.task)
        cost, count = result[member.join_request.instance]
        moves_state = (
            task is not None and task.stateful and not _ready_elsewhere(group, owner.task, member.join_request.instance)
        )
        known = member.status.facts_of(owner.task)
        size = (known.state_bytes if known is not None else task.state_bytes) >> 20 if task is not None else 0
        result[member.join_request.instance] = (cost + (max(1, size) if moves_state else 0), count + 1)
    return result


def _ready_elsewhere(group: GroupState, task: TaskId, instance: str) -> bool:
    for other in group.members.reporting(task):
        copy = other.status.copies.get(task)
        if (
            copy is not None
            and other.join_request.instance != instance
            and (copy.ready or (knows_end(copy) and copy.lag <= group.settings.acceptable_recovery_lag))
        ):
            return True
    return False


def running(group: GroupState) -> set[str]:
    """The instances that a share is counted of: running or joining, not leaving. Raises RefusedBySafety while owners may
    still come back to a new coordinator: a share of those who are back already would be another number."""
    here = group.members.transactional_ids()
    absent = sorted(
        {
            group.owners[next(iter(group.by_transactional_id.of(w)))].member
            for w in group.by_transactional_id.keys() - here - group.fencing
        }
    )
    left = group.started_ms + group.settings.rejoin_grace_ms - group.last_step_ms
    if absent and left > 0:
        raise RefusedBySafety(
            f"{', '.join(absent)} had tasks and {'is' if len(absent) == 1 else 'are'} not back with this coordinator; "
            f"how many instances run is known in {left / 1000:.1f} s at most (rejoin_grace): try again then"
        )
    return {m.join_request.instance for m in group.members if not m.is_leaving and not m.fenced}
