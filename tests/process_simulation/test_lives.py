"""Lives of the whole process, rules removed one at a time, and that a life is lived again as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.often import often
from tests.process_simulation.caught import CAUGHT_BY
from tests.process_simulation.find import breaks
from tests.process_simulation.mutations import MUTATIONS
from tests.process_simulation.plan import Fault, Plan, draw
from tests.process_simulation.shrink import broken, shrunk
from tests.process_simulation.snapshots import FORGED

LIVES, PIECE, SHORT = 100, 20, 20  # the others are `make test-long`'s: they are the same ones in every run
LIVES_AT_LEAST_ONCE, SHORT_AT_LEAST_ONCE = 60, 20
LIVES_RESTORING = 24  # in fewer of them not everything befalls a snapshot


def pieces(lives: int, piece: int, short: int) -> list[Any]:
    """Where each piece begins."""
    return often(range(0, lives, piece), *range(0, short, piece))


@pytest.mark.parametrize("first", pieces(LIVES, PIECE, SHORT))
def test_lives_hold(first: int) -> None:
    """Nothing is lost, nothing doubled, every life comes to rest."""
    for seed in range(first, first + PIECE):
        error, _ = broken(draw(seed))
        if error is not None:
            pytest.fail(f"python -m tests.process_simulation --start {seed} --seeds 1 --trace: {error}")


@pytest.mark.parametrize("first", pieces(LIVES_AT_LEAST_ONCE, SHORT_AT_LEAST_ONCE, SHORT_AT_LEAST_ONCE))
def test_lives_at_least_once_hold(first: int) -> None:
    """Nothing is lost; what was put out again was so after a fault, and never once positions say that it is done."""
    again = 0
    for seed in range(first, first + SHORT_AT_LEAST_ONCE):
        error, life = broken(draw(seed, application="repeating"))
        if error is not None:
            pytest.fail(f"python -m tests.process_simulation --app repeating --start {seed} --seeds 1 --trace: {error}")
        again += len(life.receipts.repeated())
    assert again or first, (
        "no life of these was cut between the two writes of a commit: nothing was judged"
    )  # of a piece it may be


def test_lives_that_restore_hold() -> None:
    """Tables that are restored from snapshots are their changelogs; what may not be used is not."""
    befell, restored = Counter[str](), 0
    for seed in range(LIVES_RESTORING):
        error, life = broken(draw(seed, application="saving"))
        if error is not None:
            pytest.fail(f"python -m tests.process_simulation --app saving --start {seed} --seeds 1 --trace: {error}")
        befell.update(life.snapshots.befell)
        restored += life.disk.ingested
    assert restored and all(befell[kind] for kind in ("taken", "damaged", *FORGED)), f"{restored} restores; {befell}"


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_every_removed_rule_is_noticed(name: str) -> None:
    """A rule is removed, and the seed that is known to need it must break."""
    assert breaks(name, CAUGHT_BY[name]) is not None


def test_a_seed_replays_whatever_the_hash_seed() -> None:
    """The same trace, to the letter, in processes with different PYTHONHASHSEED."""
    traces = set()
    for hash_seed in ("0", "1"):
        told = subprocess.run(
            [sys.executable, "-m", "tests.process_simulation", "--start", "3", "--seeds", "4", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,  # whether these lives hold is not asked here
        )
        traces.add("\n".join(line for line in told.stdout.splitlines() if " lives in " not in line))
    assert len(traces) == 1 and "started task=" in traces.pop()


def test_its_deviations_alone_make_the_same_life() -> None:
    plan = replace(draw(3), order_rate=0.3)
    _, life = broken(plan)
    assert life.loop.order.deviations
    _, again = broken(replace(plan, only=tuple(life.loop.order.deviations.items())))
    assert again.loop.trace == life.loop.trace
    _, in_order = broken(replace(plan, only=()))
    assert in_order.loop.trace != life.loop.trace


def test_a_life_that_breaks_is_shrunk_to_what_breaks_it() -> None:
    """With the rule removed that an unknown outcome is not tried again, one such outcome is all that is needed."""
    faults = (Fault(900, "stall", 300), Fault(1_500, "unknown"), Fault(2_000, "clock", 0, 9), Fault(2_500, "lock", 400))
    plan = Plan(1, records=150, produce_ms=2_500, order_rate=0.3, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))
    with ExitStack() as stack:
        MUTATIONS["go_on_after_an_unknown_outcome"](stack)
        error, _ = broken(plan)
        assert error is not None
        small = shrunk(plan, lives=80)
        assert [fault.kind for fault in small.faults] == ["unknown"]
        assert small.only == () and small.instances == 1
    assert broken(small)[0] is None


def test_calls_that_are_longer_than_a_session_are_processed() -> None:
    error, life = broken(Plan(1, instances=2, records=6, produce_ms=500, cost_ms=4_000))
    assert error is None
    assert all(times == 1 for times in life.receipts.out.values()) and len(life.receipts.out) == 6
