"""The sticky rule: as even as possible, then as few moves as possible. One rule: evenness wins over stickiness,
unless the setting says otherwise.

Chooses between the linear path (equal subscriptions), the general path, and the exact path for racks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from orchestrator.partition_assignors.claims import Claims, read_claims
from orchestrator.partition_assignors.collector import collector_paused
from orchestrator.partition_assignors.constrained import assign_equal
from orchestrator.partition_assignors.general import assign_unequal
from orchestrator.partition_assignors.model import Assignment, AssignorError, PartitionRacks, Subscription
from orchestrator.partition_assignors.plan import Plan
from orchestrator.partition_assignors.racks import assign_beside, racks_matter
from orchestrator.partition_assignors.reading import Group, read

Prefer = Literal["balance", "stickiness", "fair"]


@dataclass(frozen=True, slots=True)
class StickyAssignor:
    """`prefer`: "balance" moves what evenness needs; "stickiness" never moves what a member holds, only new partitions
    go where they even things out; "fair" starts from nothing, whatever was held."""

    prefer: Prefer = "balance"
    name: ClassVar[str] = "sticky"
    protocols: ClassVar[tuple[str, ...]] = ("eager",)

    def __post_init__(self) -> None:
        if self.prefer not in get_args(Prefer):
            raise AssignorError(f"prefer={self.prefer!r} is unknown; sticky assignor; use one of {get_args(Prefer)}")

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, Subscription],
        partition_racks: PartitionRacks | None = None,
    ) -> Assignment:
        with collector_paused():
            group = read(partitions_per_topic, members, partition_racks)
            return sticky_plan(group, partition_racks, self.prefer).assignment(group)


def sticky_plan(group: Group, partition_racks: PartitionRacks | None, prefer: Prefer) -> Plan:
    """Who keeps what and who is given what."""
    keep, keep_all = prefer != "fair", prefer == "stickiness"
    plan = _without_racks(group, read_claims(group, keep=keep), keep_all)
    if partition_racks is None or not racks_matter(group, partition_racks):
        return plan
    # The plan so far has changed its claims, so the flow reads its own.
    return assign_beside(group, read_claims(group, keep=keep), partition_racks, plan.loads(), keep_all=keep_all)


def _without_racks(group: Group, claims: Claims, keep_all: bool) -> Plan:
    reading = [kind for kind, topics in enumerate(group.kinds) if topics]
    if not reading:
        return Plan.of(claims)
    if len(reading) == 1:
        readers = [member for member, kind in enumerate(group.kind_of) if kind == reading[0]]
        return assign_equal(group, claims, readers, keep_all=keep_all)
    return assign_unequal(group, claims, keep_all=keep_all)
