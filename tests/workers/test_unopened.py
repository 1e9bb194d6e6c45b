"""What a worker shows of tasks whose state cannot be opened."""

from __future__ import annotations

import pytest

from orchestrator.model import TaskId
from state.errors import ChangelogCut, DirectoryFull, StateError, StoreDamaged
from workers.worker.unopened import SHOWN_S, Unopened

TASK = TaskId(0, 3)


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def held(now: list[float]) -> Unopened:
    return Unopened(lambda: now[0])


@pytest.mark.parametrize(
    ("error", "passes"), [(DirectoryFull("full"), True), (ChangelogCut("cut"), True), (StoreDamaged("bad"), False)]
)
def test_what_may_pass_is_shown(held: Unopened, error: StateError, passes: bool) -> None:
    assert held.hold(TASK, error) is passes
    assert held.notices(()) == ([f"0_3 does not run: {error}"] if passes else [])


def test_the_last_reason_is_shown_until_some_time_after_it(held: Unopened, now: list[float]) -> None:
    held.hold(TASK, DirectoryFull("full"))
    now[0] += SHOWN_S - 1
    held.hold(TASK, ChangelogCut("cut"))
    now[0] += SHOWN_S - 1
    assert held.notices(()) == ["0_3 does not run: cut"]
    now[0] += 1
    assert held.notices(()) == []


def test_a_task_that_processes_is_shown_no_more(held: Unopened) -> None:
    held.hold(TASK, DirectoryFull("full"))
    assert held.notices({TaskId(0, 4)}) == ["0_3 does not run: full"]
    assert held.notices({TASK}) == held.notices(()) == []
