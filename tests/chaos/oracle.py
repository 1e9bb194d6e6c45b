"""What outputs and tables must be, from the records that are in the input: plain code, without any of ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SHOPS = 13


def shop_of(number: int) -> str:
    """The shop of a payment."""
    return f"s{number % SHOPS}"


@dataclass
class Expected:
    """`order`: the ids of each key as its outputs have them; empty where several partitions feed a key."""

    ids: list[int] = field(default_factory=list)
    balances: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    order: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def expected(payments: Iterable[tuple[str, int, int]], *, by_shop: bool) -> Expected:
    """Of (key, id, amount), those of a key in their order."""
    found = Expected()
    for key, number, amount in payments:
        found.ids.append(number)
        found.balances[shop_of(number) if by_shop else key] += amount
        if not by_shop:
            found.order[key].append(number)
    return found


def problems(
    wanted: Expected, outputs: Sequence[tuple[str, int]], tables: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """What differs, in a line each. `outputs` are (key, id); `tables` are what each source says that the table holds."""
    found: list[str] = []
    if sorted(wanted.ids) != list(range(len(wanted.ids))):
        found.append(f"the input itself: {len(wanted.ids)} records, not each id once")
    times: dict[int, int] = defaultdict(int)
    order: dict[str, list[int]] = defaultdict(list)
    for key, number in outputs:
        times[number] += 1
        order[key].append(number)
    if lost := sorted(set(wanted.ids) - times.keys()):
        found.append(f"{len(lost)} lost, the first {lost[:5]}")
    if doubled := sorted(number for number, count in times.items() if count > 1):
        found.append(f"{len(doubled)} doubled, the first {doubled[:5]}")
    if strange := sorted(times.keys() - set(wanted.ids)):
        found.append(f"{len(strange)} outputs of no input, the first {strange[:5]}")
    if wrong := [key for key, ids in wanted.order.items() if order.get(key, []) != ids]:
        found.append(f"outputs of {len(wrong)} keys are not in the order of their inputs, the first {wrong[:3]}")
    for source, table in tables.items():
        if bad := [key for key in wanted.balances.keys() | table.keys() if table.get(key) != wanted.balances.get(key)]:
            values = [f"{key}: {table.get(key)} for {wanted.balances.get(key)}" for key in sorted(bad)[:3]]
            found.append(f"{source}: {len(bad)} balances are wrong ({'; '.join(values)})")
    return found
