"""What a failure leaves behind: a smaller life that still breaks, and a file that a scenario can read."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.simulator.scenario import Scenario, parse
from tests.simulation.caught import CAUGHT_BY
from tests.simulation.faults import FAULTS
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import GROW, KINDS, draw
from tests.simulation.shrink import breaks, fewer, save, shrunk, written


@given(needed=st.sets(st.integers(0, 40), min_size=1, max_size=4))
def test_what_is_needed_is_found(needed: set[int]) -> None:
    assert set(fewer(range(41), lambda kept: needed <= set(kept))) == needed


def test_every_kind_of_fault_is_drawn_and_performed() -> None:
    assert KINDS.keys() | {GROW} == FAULTS.keys()


def test_a_broken_life_becomes_smaller_and_readable(tmp_path: Path) -> None:
    """A rule is removed; what is left of the life is what needs that rule, and it can be played as a scenario."""
    plan = draw(CAUGHT_BY["no_session_timeout"])
    with ExitStack() as stack:
        MUTATIONS["no_session_timeout"](stack)
        small = shrunk(plan, lives=80)
        error = breaks(small)
    assert error is not None and "too long" in error
    assert 1 <= len(small.faults) < len(plan.faults) and len(small.tasks) <= len(plan.tasks)
    assert breaks(small) is None, "with the rule it does not break"
    text = save(tmp_path / "shrunk", small, error, "abc").read_text()
    assert f"# seed {plan.seed} at commit abc: {error}" in text
    played(text)


def test_every_life_can_be_written_as_a_scenario() -> None:
    """The words that are written are those that scenarios know; a command may well be refused by the group."""
    for seed in range(40):
        played(written(draw(seed), "nothing", "abc"))


def played(text: str) -> None:
    scenario = Scenario()
    for block in parse(text):
        outcome = scenario.run(block)
        unknown = outcome.error is not None and ("unknown" in outcome.error or "write" in outcome.error)
        assert not unknown, f"{block.command}: {outcome.error}"
