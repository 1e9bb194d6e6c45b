"""The prediction of a restore, and what it makes of a learner: ready by time only where it gains on the writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.member import events as mem
from orchestrator.member.machine import MemberMachine
from orchestrator.member.recovery import Recovery
from orchestrator.model import Assignment, Role, Settings, TaskId

T = TaskId(0, 0)


def restored(restore: int, write: int, seconds: float, start: int = 100_000) -> tuple[Recovery, int, int]:
    """A copy after so many seconds at these rates a second, told ten times a second."""
    recovery, position, end = Recovery(), 0, start
    for tenth in range(int(seconds * 10) + 1):
        position, end = restore * tenth // 10, start + write * tenth // 10
        recovery.note(position, end, tenth * 100)
    return recovery, position, end


@given(restore=st.integers(100, 10_000), write=st.integers(0, 10_000), seconds=st.floats(1, 9))
def test_the_time_is_the_lag_over_the_difference_of_the_rates(restore: int, write: int, seconds: float) -> None:
    recovery, position, end = restored(restore, write, seconds)
    eta = recovery.eta_ms(position, end)
    if position >= end:
        assert eta == 0
    elif restore - write <= 0:
        assert eta is None, "writes outrun the restore"
    elif restore - write > 20:  # below that whole positions decide
        assert eta is not None
        expected = (end - position) * 1000 / (restore - write)
        assert abs(eta - expected) <= 0.1 * expected + 1


def test_one_sample_is_no_rate() -> None:
    recovery, position, end = restored(1_000, 0, 0.5)
    assert recovery.eta_ms(position, end) is None
    assert recovery.eta_ms(end, end) == 0


def test_a_burst_and_a_pause_are_smoothed() -> None:
    """All of a second's share comes in one tenth of it: the time told never leaves the truth by half."""
    recovery, told = Recovery(), []
    for tenth in range(100):
        position = (tenth + 9) // 10 * 1_000
        recovery.note(position, 100_000, tenth * 100)
        if tenth >= 30:
            eta = recovery.eta_ms(position, 100_000)
            assert eta is not None
            told.append(eta / ((100_000 - position) / 1_000 * 1000))
    assert min(told) > 0.5 and max(told) < 1.5, (min(told), max(told))


def test_a_restore_that_begins_anew_forgets() -> None:
    recovery, _, end = restored(10_000, 0, 5)
    recovery.note(10, end, 6_000)
    assert recovery.eta_ms(10, end) is None


@given(restore=st.integers(100, 10_000), write=st.integers(0, 10_000), seconds=st.floats(1.2, 9))
def test_the_gap_is_the_lag_at_the_rate_of_the_restore(restore: int, write: int, seconds: float) -> None:
    recovery, position, end = restored(restore, write, seconds)
    gap, expected = recovery.gap_ms(position, end), max(0, end - position) * 1000 / restore
    assert gap is not None and abs(gap - expected) <= 0.1 * expected + 1


@given(restore=st.integers(100, 10_000), write=st.integers(0, 20_000), lag=st.integers(1, 100_000))
def test_settled_is_a_lag_that_shrinks_no_more(restore: int, write: int, lag: int) -> None:
    recovery, position, end = restored(restore, write, 5, start=lag)
    if write >= restore:
        assert recovery.is_settled(position, end)
    elif (restore - write) * 5 > lag // 9 + 2:
        assert not recovery.is_settled(position, end)


def learner(restore: int, write: int, settings: Settings, start: int = 100_000) -> bool:
    """Whether a learner at these rates announces itself within six seconds, far from level."""
    machine = MemberMachine(settings)
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)
    for tenth in range(60):
        machine.step(mem.Progress(T, restore * tenth // 10, start + write * tenth // 10), tenth * 100)
    copy = machine.status().copies[T]
    assert copy.role is Role.LEARNER and copy.lag > settings.acceptable_recovery_lag
    return copy.ready


def test_ready_by_time() -> None:
    ten = Settings(acceptable_recovery_lag=10, acceptable_recovery_time_ms=10_000)
    assert learner(restore=9_000, write=9_000, settings=ten, start=50_000), "as near as it will come: a gap of 5.6 s"
    assert learner(restore=9_000, write=9_100, settings=ten, start=50_000), "it will only get worse"
    assert not learner(restore=9_000, write=9_000, settings=ten, start=100_000), "a gap of 11 s is too long"
    assert not learner(restore=9_000, write=0, settings=ten, start=60_000), "a little patience makes the gap nothing"
    assert not learner(restore=0, write=0, settings=ten, start=50_000), "it stands still: no rate, no promise"


def test_a_snapshot_that_is_read_is_progress_and_never_close() -> None:
    """It is not given up meanwhile, and neither it nor the group takes it for a copy that could go on at once."""
    machine = MemberMachine(Settings(acceptable_recovery_lag=100))
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)
    seen: list[int] = []
    for now, position in enumerate((100, 500, 900, 950, 990)):
        assert not machine.step(mem.Reading(T, position, 1_000, 1 + now), now * 1_000)
        assert machine.status().copies[T].read == 1 + now
        seen.append(machine.status().copies[T].position)
        assert not machine.status().copies[T].ready and machine.status().copies[T].lag > 100
    assert seen == [100, 500, 899, 899, 899]
    machine.step(mem.Progress(T, 1_000, 1_000), 6_000)
    assert machine.status().copies[T].ready
    machine.step(mem.Reading(T, 10, 1_000, 9), 7_000)  # said late
    assert machine.status().copies[T].position == 1_000


def test_the_rate_of_a_snapshot_is_none_of_what_follows() -> None:
    """Offsets pass by the million while files are copied; what is behind them are records."""
    machine = MemberMachine(Settings())
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)
    for step in range(20):
        machine.step(mem.Reading(T, step * 2_000_000, 40_009_000, step), step * 200)
    machine.step(mem.Progress(T, 40_000_000, 40_009_000), 4_000)
    assert not machine.status().copies[T].ready


def test_a_close_learner_that_still_gains_is_ready_once_what_is_left_would_not_be_noticed() -> None:
    """100,000 a second: 10,000 positions are a tenth of a second without an owner, 400 are nothing."""
    machine = MemberMachine(Settings(acceptable_recovery_lag=10_000))
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)

    def ready(position: int, now_ms: int) -> bool:
        machine.step(mem.Progress(T, position, 100_000), now_ms)
        return machine.status().copies[T].ready

    assert not any(ready(second * 20_000, second * 200) for second in range(5))
    assert not ready(90_500, 905) and not ready(99_000, 990)
    assert ready(99_600, 996)


def test_a_close_learner_that_is_no_faster_than_what_is_written_is_ready() -> None:
    """It gained for a while, and gains no more: whatever time is acceptable, it is as close as it will come."""
    machine = MemberMachine(Settings(acceptable_recovery_lag=1_000, acceptable_recovery_time_ms=0))
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)
    ready: list[bool] = []
    for tenth in range(80):
        gained = 100 * min(tenth, 16)
        machine.step(mem.Progress(T, 100 * tenth + gained, 100 * tenth + 2_000), tenth * 100)
        ready.append(machine.status().copies[T].ready)
    assert not any(ready[:20]) and ready[-1]


def test_few_positions_of_large_values_are_waited_for() -> None:
    """1,000 positions are within any lag. At 100 a second they are ten seconds without an owner: first no rate is known, then it is slow."""
    machine = MemberMachine(Settings())
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)

    def ready(now_ms: int) -> bool:
        machine.step(mem.Progress(T, now_ms // 10, 1_000), now_ms)
        return machine.status().copies[T].ready

    assert not any(ready(now_ms) for now_ms in range(0, 9_950, 50))
    assert ready(10_000)


def test_a_close_learner_that_reads_nothing_is_ready_in_the_end() -> None:
    """Nothing can be said of its rate; it is as close as it will come."""
    machine = MemberMachine(Settings())
    machine.step(mem.Assigned(Assignment(1, 1, learners=(T,))), 0)
    ready: list[bool] = []
    for second in range(60):
        machine.step(mem.Progress(T, 500 if second > 20 else 100, 1_000), second * 1_000)
        ready.append(machine.status().copies[T].ready)
    assert not any(ready[:50]) and ready[-1]
