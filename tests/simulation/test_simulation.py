"""The short form of the simulation (`make simulate` is the long one): some lives, replay by seed, and the mutations that it must catch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from orchestrator.group.end_offsets import EndOffsets
from orchestrator.model import MemberStatus, TaskId
from tests.often import often
from tests.simulation.caught import CAUGHT_BY
from tests.simulation.find import breaks
from tests.simulation.mutations import MUTATIONS
from tests.simulation.world import World

LIVES, CHUNK, SHORT = 150, 25, 25  # the others are `make test-long`'s: they are the same ones in every run
FIRSTS = often(range(0, LIVES, CHUNK), *range(0, SHORT, CHUNK))


@pytest.mark.parametrize("first", FIRSTS)
def test_lives(first: int) -> None:
    """Safety all the time; once the faults stop, convergence."""
    for seed in range(first, first + CHUNK):
        try:
            World(seed).live()
        except Exception as error:
            raise AssertionError(
                f"seed {seed}: {error}; replay: python -m tests.simulation --from {seed} --seeds 1 --trace"
            ) from error


def test_an_end_that_is_looked_up_is_the_highest_that_was_ever_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the table that keeps nothing while its members tell it, one that notes every heartbeat."""
    replaced, of = EndOffsets.replaced, EndOffsets.of
    noted: dict[EndOffsets, dict[TaskId, int]] = {}
    asked = 0

    def note(ends: EndOffsets, before: MemberStatus, after: MemberStatus) -> None:
        highest = noted.setdefault(ends, {})
        for task, end in after.ends.items():
            highest[task] = max(end, highest.get(task, 0))
        replaced(ends, before, after)

    def compare(ends: EndOffsets, task: TaskId, otherwise: int) -> int:
        nonlocal asked
        asked += 1
        found = of(ends, task, otherwise)
        assert found == noted.get(ends, {}).get(task, otherwise), task
        return found

    monkeypatch.setattr(EndOffsets, "replaced", note)
    monkeypatch.setattr(EndOffsets, "of", compare)
    for seed in range(3):
        World(seed).live()
    assert asked > 500


# Lives that never come to rest, or only late.
SLOW = {"bounce_learners", "forget_standbys", "ignore_versions", "keep_standbys_together", "no_balance"}


@pytest.mark.parametrize("name", often(sorted(MUTATIONS), *sorted(MUTATIONS.keys() - SLOW)))
def test_every_removed_rule_is_noticed(name: str) -> None:
    """A rule is removed, and the seed that is known to need it must break."""
    assert breaks(name, CAUGHT_BY[name]) is not None


def test_a_seed_replays_whatever_the_hash_seed() -> None:
    """The same trace, to the letter, in processes with different PYTHONHASHSEED."""
    traces = set()
    for hash_seed in ("0", "1", "2"):
        told = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--from", "4", "--seeds", "1", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add("\n".join(line for line in told.stdout.splitlines() if " lives in " not in line))
    assert len(traces) == 1
