"""The linear path for equal subscriptions (KIP-54 constrained). One rule: floor or ceiling, and not a move too many.

Three passes: every member keeps what it holds up to its quota; what is over becomes free; the free partitions go, in
(topic, partition) order, to the member with the fewest. The ceiling slots go to the first members in id order that hold
more than the floor, so that no slot is spent on a member that would have to be given something.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter

from orchestrator.partition_assignors.claims import Claims
from orchestrator.partition_assignors.plan import Plan
from orchestrator.partition_assignors.reading import Group

_partition = itemgetter(1)


def assign_equal(group: Group, claims: Claims, readers: Sequence[int], *, keep_all: bool = False) -> Plan:
    """Plan for members that all read the same topics; with `keep_all` no member gives up a partition."""
    plan = Plan.of(claims)
    if not keep_all:
        _cut(group, claims, plan, readers)
    _fill(group, claims, plan, readers)
    return plan


def _cut(group: Group, claims: Claims, plan: Plan, readers: Sequence[int]) -> None:
    """Take from each member what is over its quota: the last ones in (partition, topic) order, so that what stays is
    spread over the topics."""
    floor, ceilings = divmod(group.total, len(readers))
    for member in readers:
        kept = plan.kept[member]
        quota = floor
        if len(kept) > floor and ceilings:
            quota, ceilings = floor + 1, ceilings - 1
        if len(kept) > quota:
            # Objects ascend by topic and sorting keeps that order, so this is (partition, topic).
            partition = list(map(_partition, plan.kept_objects[member]))
            plan.drop_at(claims, member, sorted(range(len(kept)), key=partition.__getitem__)[quota:])


def _fill(group: Group, claims: Claims, plan: Plan, readers: Sequence[int]) -> None:
    """Hand the free partitions out in order, each to the member with the fewest, ties by id.

    While the same members are the lowest they are dealt to in turns, so a whole stretch is handed out by slices.
    """
    everything = range(group.total)
    # A first assignment hands out everything, and slices of a range cost nothing.
    free: Sequence[int] = everything if all(claims.free) else list(compress(everything, claims.free))
    objects = group.objects(free)
    levels: dict[int, list[int]] = {}
    for member in readers:
        levels.setdefault(len(plan.kept[member]), []).append(member)
    heights = sorted(levels)
    lowest: list[int] = []
    at = 0
    for step, height in enumerate(heights):
        if at == len(free):
            return
        lowest = sorted(lowest + levels[height])
        turn = len(lowest)
        room = (heights[step + 1] - height) * turn if step + 1 < len(heights) else len(free)
        stop = min(len(free), at + room)
        for first, member in enumerate(lowest[: stop - at], start=at):
            before, part = plan.given[member], free[first:stop:turn]
            if isinstance(before, list):
                before += part
            else:
                plan.given[member] = [*before, *part] if before else part
            plan.given_objects[member] += objects[first:stop:turn]
        at = stop
