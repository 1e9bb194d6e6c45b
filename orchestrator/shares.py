"""Counts and percentages of instances, and who leaves. One rule: whole-number arithmetic, no floats.

A share is always written with `%`; a bare number is a count. The leavers are those that cost the least to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from orchestrator.errors import WrongUse
from orchestrator.names import natural


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
                raise WrongUse(f"{option} 0: one instance always stays; write a count of 1 or more")
            return Amount(count=count)
        share = Fraction(value) if "." in value else None
    except (ValueError, ZeroDivisionError):
        share = None
    if share is not None and 0 < share < 1:
        exact = share * 100
        shown = str(exact.numerator) if exact.denominator == 1 else f"{float(exact):g}"
        raise WrongUse(f"{option} {text}: a share is written with a percent sign; write {shown}%")
    raise WrongUse(f"{option} {text}: not a count or a share; write a count such as 3, or a share such as 80%")


def target_size(current: int, *, to: Amount | None, by: Amount | None, grow: bool = False) -> int:
    """How many instances there should be. Shrinking: `to P%` leaves max(1, ceil(n*P/100)), `by P%` takes
    floor(n*P/100) away; growing mirrors it (`by P%` adds ceil). Never below one, never across `current`."""
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
    """The `leave` instances that cost the least to move. `costs`: instance -> (bytes to move that have no ready copy
    elsewhere, number of tasks). `last` (the coordinator's host) goes only when all others have gone; ties: the last by
    name leaves first, as the newest usually is."""
    names = sorted(costs, key=natural)
    position = {name: index for index, name in enumerate(names)}
    order = sorted(names, key=lambda name: (name == last, costs[name], -position[name]))
    return sorted(order[: max(0, min(leave, len(names) - 1))], key=natural)
