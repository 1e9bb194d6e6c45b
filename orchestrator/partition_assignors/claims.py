"""What members may keep of what they report. One rule: a partition is claimed by one member at most.

Comes after `reading`, before the rules that keep something. Of the members that claim a partition the one with the
newest generation keeps it: what it reports, an older one has lost; what no newer one claims, no member was given since
(Kafka since 3.x). A partition that two members claim in its newest generation stays with neither (KIP-341), and one that
its last owner does not subscribe to any more is not kept. Void claims are remembered as `released`, because a member
that reports a partition may still be working on it, which the cooperative protocol must respect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter

from orchestrator.partition_assignors.model import TopicPartition
from orchestrator.partition_assignors.reading import Group, checked_owned

SEVERAL = -1  # in `released`: more than one member reports it

_partition = itemgetter(1)
_PLAIN = {TopicPartition}


@dataclass(frozen=True, slots=True)
class Claims:
    """Per member, what it may keep: partition numbers ascending, and the objects it reported them with."""

    ids: list[list[int]]
    objects: list[Sequence[TopicPartition]]
    released: dict[int, int]  # reported, not kept: the member that reports it, or SEVERAL
    free: bytearray  # per partition: 1 when no member keeps it

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
    found = Claims([], [], {}, free)
    foreign: list[tuple[int, int]] = []
    plain = _plain(group)
    for member in range(members):
        own, held = _numbered(group, member, tables[group.kind_of[member]], everything, foreign, plain)
        if own and not keep:
            for number in own:
                note(found.released, number, member)
            own, held = [], ()
        found.ids.append(own)
        found.objects.append(held)
    for own in found.ids:
        for number in own:
            free[number] = 0
    for number, member in foreign:
        note(found.released, number, member)
    if foreign or free.count(1) != group.total - sum(map(len, found.ids)):
        _settle_contested(group, found, foreign)
    return found


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
    foreign: list[tuple[int, int]],
    plain: bool,
) -> tuple[list[int], Sequence[TopicPartition]]:
    """One member's report as ascending numbers; what it does not subscribe to (any more) goes to `foreign`."""
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
                    foreign.append((known[pair.partition], member))
        items = kept
    ordered = sorted(numbers)
    if ordered != numbers:
        items = list(map(dict(zip(numbers, items, strict=True)).__getitem__, ordered))
    return ordered, items


def _settle_contested(group: Group, claims: Claims, foreign: Sequence[tuple[int, int]]) -> None:
    """Leave each partition that is claimed more than once with its newest claim, if that is one member's and valid.

    `foreign` are claims, as (partition number, member), of members that do not subscribe to the topic: they win over
    older ones, and keep nothing.
    """
    for member, own in enumerate(claims.ids):
        if len(set(own)) < len(own):  # one member names it twice: that is one claim
            once = dict(zip(own, claims.objects[member], strict=True))
            claims.ids[member], claims.objects[member] = list(once), list(once.values())
    distinct = set(foreign)
    times = Counter(chain(chain.from_iterable(claims.ids), (number for number, _ in distinct)))
    contested = {number for number, claimed in times.items() if claimed > 1}
    if not contested:
        return
    newest: dict[int, tuple[int, int]] = {}  # partition number: its newest generation and the claimant, or SEVERAL
    generations = [subscription.generation for subscription in group.subscriptions]
    valid = ((number, member) for member, own in enumerate(claims.ids) for number in own)
    for number, member in chain(valid, distinct):
        if number in contested:
            generation, holder = newest.get(number, (generations[member], member))
            if generations[member] > generation:
                newest[number] = generations[member], member
            else:
                same = generations[member] == generation and member != holder
                newest[number] = generation, SEVERAL if same else holder
    for member, own in enumerate(claims.ids):
        if contested.isdisjoint(own):
            continue
        stays = [number not in contested or newest[number][1] == member for number in own]
        for number in compress(own, [not kept for kept in stays]):
            note(claims.released, number, member)
        claims.ids[member] = list(compress(own, stays))
        claims.objects[member] = list(compress(claims.objects[member], stays))
    kept = set(chain.from_iterable(claims.ids))
    for number in contested - kept:
        claims.free[number] = 1
