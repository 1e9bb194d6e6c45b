"""The judge notices what it is for: each kind of harm to outputs and tables that are right otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.oracle import expected, problems
from tests.chaos.plan import KINDS, drawn

PAYMENTS = [(f"a{number % 3}", number, number % 7 - 3) for number in range(30)]
OUTPUTS = [(key, number) for key, number, _ in PAYMENTS]
TABLE = dict(expected(PAYMENTS, by_shop=False).balances)
HARMS: dict[str, Callable[[list[tuple[str, int]], dict[str, int]], None]] = {
    "lost": lambda outputs, table: outputs.remove(("a1", 4)),
    "doubled": lambda outputs, table: outputs.append(("a1", 4)),
    "of no input": lambda outputs, table: outputs.append(("a1", 99)),
    "not in the order": lambda outputs, table: outputs.reverse(),
    "balances are wrong": lambda outputs, table: table.update(a1=table["a1"] + 1),
    "1 balances are wrong (a2: None": lambda outputs, table: table.pop("a2") and None,
    "1 balances are wrong (b: 0": lambda outputs, table: table.update(b=0),
}


def test_what_is_right_is_taken() -> None:
    assert problems(expected(PAYMENTS, by_shop=False), OUTPUTS, {"changelog": TABLE}) == []
    shops = expected(PAYMENTS, by_shop=True)
    assert problems(shops, OUTPUTS[::-1], {"changelog": dict(shops.balances)}) == []


@pytest.mark.parametrize("harm", HARMS)
def test_harm_is_named(harm: str) -> None:
    outputs, table = list(OUTPUTS), dict(TABLE)
    HARMS[harm](outputs, table)
    found = problems(expected(PAYMENTS, by_shop=False), outputs, {"changelog": table})
    assert found and harm in " ".join(found), found


def test_an_input_that_has_an_id_twice_is_named() -> None:
    payments = [*PAYMENTS, PAYMENTS[3]]
    assert "the input itself" in problems(expected(payments, by_shop=False), OUTPUTS, {})[0]


def test_a_plan_is_its_seeds_alone() -> None:
    assert drawn(7, 40) == drawn(7, 40) != drawn(8, 40)
    drawn_kinds = {event.kind for seed in range(20) for event in drawn(seed, 25).events}
    assert drawn_kinds == set(KINDS)
