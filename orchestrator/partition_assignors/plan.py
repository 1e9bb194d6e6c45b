"""Who keeps what and who is given what, before it is made public. One rule: what is kept is listed apart from what
is given, because only what is given can be withheld.

The sticky rules (`constrained`, `general`, `racks`) fill a Plan; `sticky` and `cooperative` turn it into lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from orchestrator.partition_assignors.claims import Claims
from orchestrator.partition_assignors.model import Assignment, TopicPartition
from orchestrator.partition_assignors.reading import Group


@dataclass(frozen=True, slots=True)
class Plan:
    """Per member: numbers and objects kept, and numbers and objects given; all ascending."""

    kept: list[list[int]]
    kept_objects: list[Sequence[TopicPartition]]
    given: list[Sequence[int]]
    given_objects: list[list[TopicPartition]]
    released: dict[int, int]  # reported but not kept, see claims.Claims

    @staticmethod
    def of(claims: Claims) -> Plan:
        """Every member keeps what it may; nothing is given yet."""
        members = len(claims.ids)
        return Plan(
            kept=claims.ids,
            kept_objects=claims.objects,
            given=[()] * members,
            given_objects=[[] for _ in range(members)],
            released=claims.released,
        )

    def drop(self, claims: Claims, member: int, numbers: Sequence[int]) -> None:
        """Take kept partitions away from a member; they are free then."""
        kept = self.kept[member]
        self.drop_at(claims, member, [bisect_left(kept, number) for number in numbers])

    def drop_at(self, claims: Claims, member: int, places: Sequence[int]) -> None:
        """The same by their places in the member's list."""
        kept, objects = self.kept[member], list(self.kept_objects[member])
        for place in sorted(places, reverse=True):
            claims.release(kept[place], member)
            del kept[place], objects[place]
        self.kept_objects[member] = objects

    def loads(self) -> list[int]:
        return [len(kept) + len(given) for kept, given in zip(self.kept, self.given, strict=True)]

    def withheld(self, member: int) -> list[int]:
        """What is given to a member while another still reports it."""
        if not self.released:
            return []
        return [number for number in self.given[member] if self.released.get(number, member) != member]

    def assignment(self, group: Group, *, withhold: bool = False) -> Assignment:
        """The public lists, by topic and partition."""
        out: Assignment = {}
        for member, name in enumerate(group.members):
            given: Sequence[int] = self.given[member]
            objects = self.given_objects[member]
            if withhold and (back := set(self.withheld(member))):
                goes = [number not in back for number in given]
                given, objects = list(compress(given, goes)), list(compress(objects, goes))
            out[name] = _merged(self.kept[member], self.kept_objects[member], given, objects)
        return out


def _merged(
    kept: list[int], kept_objects: Sequence[TopicPartition], given: Sequence[int], given_objects: list[TopicPartition]
) -> list[TopicPartition]:
    """Two ascending runs as one list of objects; a few given ones are put in their places, many are sorted in."""
    if not kept:
        return given_objects
    merged = list(kept_objects)
    if len(given) * 8 < len(kept):
        for number, item in zip(reversed(given), reversed(given_objects), strict=True):
            merged.insert(bisect_left(kept, number), item)
        return merged
    merged += given_objects
    by_number = dict(zip([*kept, *given], merged, strict=True))
    return list(map(by_number.__getitem__, sorted(by_number)))
