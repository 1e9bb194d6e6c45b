"""Random programs over everything that keeps time give what the rules give (`tests.time.plain`): in a Driver, and in a task that is given
up and opened again between its calls."""

from __future__ import annotations

import pytest

from tests.time.programs import difference


@pytest.mark.parametrize("first", range(1, 121, 30))
def test_programs_give_what_the_rules_give(first: int) -> None:
    for seed in range(first, first + 30):
        found = difference(seed, 50)
        assert found is None, f"seed {seed} (python -m tests.time.programs --from {seed} --to {seed}): {found}"


@pytest.mark.long
def test_many_programs() -> None:
    for seed in range(1_000, 5_000):
        found = difference(seed)
        assert found is None, f"seed {seed} (python -m tests.time.programs --from {seed} --to {seed}): {found}"
