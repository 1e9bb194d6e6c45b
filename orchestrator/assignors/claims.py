"""What members may keep of what they report. One rule: a partition is claimed by one member or by nobody.

Comes after `reading`, before the rules that keep something. Only the newest generation counts: what an older one
reports is void, and so is what two members report in the same generation. Void reports are remembered as `released`,
because a member that reports a partition may still be working on it, which the cooperative protocol must respect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter

from orchestrator.assignors.model import TopicPartition
from orchestrator.assignors.reading import Group, checked_owned

SEVERAL = -1  # in `released`: more than one member reports it

_partition = itemgetter(1)
_PLAIN = {TopicPartition}


@dataclass(frozen=True, slots=True)
class Claims:
    """Per member, what it may keep: partition numbers ascending, and the objects it reported them with."""

    ids: list[list[int]]
    objects: list[Sequence[TopicPartition]]
    released: dict[int, int]  # reported, not kept: the member that reports it, or SEVERAL
    free: bytearray  # per partition: 1 when nobody keeps it

    def release(self, number: int, member: int) -> None:
        note(self.released, number, member)
        self.free[number] = 1


def note(released: dict[int, int], number: int, member: int) -> None:
    """Remember who reports a partition that it may not keep."""
    released[number] = member if released.get(number, member) == member else SEVERAL


def read_claims(group: Group, *, keep: bool = True) -> Claims:
    """Resolve all reports; with `keep=False` nothing may be kept and everything is `released`."""
    free = bytearray(b"\1") * group.total
    members = len(group.members)
    if not any(subscription.owned for subscription in group.subscriptions):
        return Claims([[] for _ in range(members)], [()] * members, {}, free)
    everything = {
        topic: list(range(base, base + count))
        for topic, base, count in zip(group.topics, group.bases, group.counts, strict=True)
    }
    tables = [
        everything if len(kind) == len(group.topics) else {group.topics[t]: everything[group.topics[t]] for t in kind}
        for kind in group.kinds
    ]
    ids: list[list[int]] = []
    objects: list[Sequence[TopicPartition]] = []
    released: dict[int, int] = {}
    newest = max((s.generation for s in group.subscriptions if s.owned), default=-1)
    plain = _plain(group)
    for member, subscription in enumerate(group.subscriptions):
        own, held = _numbered(group, member, tables[group.kind_of[member]], everything, released, plain)
        if own and (not keep or subscription.generation < newest):
            for number in own:
                note(released, number, member)
            own, held = [], ()
        ids.append(own)
        objects.append(held)
    for own in ids:
        for number in own:
            free[number] = 0
    if free.count(1) != group.total - sum(map(len, ids)):
        _drop_doubles(ids, objects, released, free)
    return Claims(ids, objects, released, free)


def _plain(group: Group) -> bool:
    """Whether all reports are made of TopicPartitions numbered 0 or more, as they are unless something is wrong."""
    reports = [subscription.owned for subscription in group.subscriptions]
    try:
        if set(map(type, chain.from_iterable(reports))) != _PLAIN:
            return False
        lowest: int = min(map(_partition, chain.from_iterable(reports)))
        return lowest >= 0
    except TypeError:
        return False


def _numbered(
    group: Group,
    member: int,
    table: Mapping[str, list[int]],
    everything: Mapping[str, list[int]],
    released: dict[int, int],
    plain: bool,
) -> tuple[list[int], Sequence[TopicPartition]]:
    """One member's report as ascending numbers; what it does not subscribe to (any more) is released."""
    owned = group.subscriptions[member].owned
    if not owned:
        return [], ()
    items: Sequence[TopicPartition] = owned
    numbers: list[int] | None = None
    if plain:
        try:
            numbers = [table[pair[0]][pair[1]] for pair in owned]
        except (KeyError, IndexError, TypeError):
            numbers = None
    if numbers is None:  # something is unknown, shrunk, foreign or wrong: look at each
        numbers, kept = [], []
        for pair in [checked_owned(group.members[member], pair) for pair in owned]:
            known = everything.get(pair.topic, ())
            if pair.partition < len(known):
                if pair.topic in table:
                    numbers.append(known[pair.partition])
                    kept.append(pair)
                else:
                    note(released, known[pair.partition], member)
        items = kept
    ordered = sorted(numbers)
    if ordered != numbers:
        items = list(map(dict(zip(numbers, items, strict=True)).__getitem__, ordered))
    return ordered, items


def _drop_doubles(
    ids: list[list[int]], objects: list[Sequence[TopicPartition]], released: dict[int, int], free: bytearray
) -> None:
    """A partition reported twice stays with none of the members that report it."""
    for member, own in enumerate(ids):
        if len(set(own)) < len(own):  # one member names it twice: that is one claim
            once = dict(zip(own, objects[member], strict=True))
            ids[member], objects[member] = list(once), list(once.values())
    twice = {number for number, times in Counter(chain.from_iterable(ids)).items() if times > 1}
    for member, own in enumerate(ids):
        if not twice.isdisjoint(own):
            single = [number not in twice for number in own]
            objects[member] = list(compress(objects[member], single))
            ids[member] = list(compress(own, single))
    for number in twice:
        released[number] = SEVERAL
        free[number] = 1
