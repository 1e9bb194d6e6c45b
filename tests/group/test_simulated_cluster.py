"""The parts that scenario files, the rebalance benchmark and the simulation with faults share: virtual time, processes,
the ledger and its fences, and a coordinator whom the ledger refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.group import events as ev
from orchestrator.member import events as mem
from orchestrator.model import Owner, Settings, Task, TaskId
from orchestrator.simulator.benchmark.rehearsal import Rehearsal
from orchestrator.simulator.benchmark.workload import parse_workload
from orchestrator.simulator.coordinator import Coordinator, Watch
from orchestrator.simulator.ledger import Ledger, Refused
from orchestrator.simulator.processes import Process
from orchestrator.simulator.scenario_cluster import ScenarioCluster
from orchestrator.simulator.scheduler import Scheduler, TooManyEvents

FIRST, SECOND, THIRD = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)


# ---- time


def test_equal_times_run_in_the_order_they_were_planned() -> None:
    scheduler, ran = Scheduler(), list[tuple[str, int]]()

    def note(what: str) -> None:
        ran.append((what, scheduler.now_ms))

    scheduler.after(5, lambda: note("later"))
    scheduler.after(3, lambda: note("one"))
    scheduler.after(3, lambda: (note("two"), scheduler.after(0, lambda: note("three")))[0])
    scheduler.after(9, lambda: note("beyond"))
    assert not scheduler.run_until(8)
    assert ran == [("one", 3), ("two", 3), ("three", 3), ("later", 5)] and scheduler.now_ms == 8


def test_what_goes_round_in_circles_is_stopped() -> None:
    scheduler = Scheduler()

    def again() -> None:
        scheduler.after(0, again)

    again()
    scheduler.allow(100)
    with pytest.raises(TooManyEvents, match="more than 100 events"):
        scheduler.run_until(1)
    assert scheduler.happened == 101


def test_a_stalled_process_catches_up_in_order_and_a_dead_one_does_nothing() -> None:
    scheduler = Scheduler()
    process, ran = Process(scheduler, "I1"), list[int]()
    process.stalled = True
    process.after(1, lambda: ran.append(1))
    scheduler.run_until(2)
    process.stalled = False
    process.after(0, lambda: ran.append(2))  # behind what waits, although it runs again
    scheduler.run_until(3)
    assert ran == []
    process.catch_up()
    assert ran == [1, 2]
    process.after(1, lambda: ran.append(3))
    process.kill()
    scheduler.run_until(5)
    assert ran == [1, 2]


# ---- the ledger


def owned() -> Ledger:
    """Two tasks of A, one of B, under the first term."""
    ledger = Ledger()
    assert ledger.acquire("I1", None) is not None
    ledger.record(1, [Owner(FIRST, 1, "A", "A#1", 1), Owner(SECOND, 4, "B", "B#1", 1), Owner(THIRD, 2, "A", "A#1", 1)])
    return ledger


def test_the_lease_goes_to_who_saw_it_last() -> None:
    ledger = owned()
    seen = ledger.lease
    ledger.renew(1)
    assert ledger.acquire("I2", seen) is None, "it was renewed since"
    taken = ledger.acquire("I2", ledger.lease)
    assert taken is not None and (taken.term, taken.holder) == (2, "I2")
    with pytest.raises(Refused, match="term 1 is over"):
        ledger.renew(1)


def test_a_fenced_writer_is_refused_for_all_its_tasks() -> None:
    ledger = owned()
    ledger.check_owner("A#1", THIRD, 2)
    with pytest.raises(Refused):
        ledger.check_owner("A#1", THIRD, 1)
    assert ledger.fence(1, "A#1") == (FIRST, THIRD)
    for task, epoch in ((FIRST, 1), (THIRD, 2), (FIRST, 2), (THIRD, 3)):
        with pytest.raises(Refused, match="A#1 does not own"):
            ledger.check_owner("A#1", task, epoch)
    assert ledger.owners[THIRD] == Owner(THIRD, 3, "A", "", 1)
    ledger.check_owner("B#1", SECOND, 4)
    assert ledger.fence(1, "A#1") == ()


def test_a_deposed_coordinator_writes_nothing() -> None:
    ledger = owned()
    operation = ev.Leaving("scale-down 1", ("I1",))
    ledger.operations[operation.operation] = operation
    before = dict(ledger.owners)
    ledger.acquire("I2", ledger.lease)
    for write in (
        lambda: ledger.record(1, [Owner(FIRST, 9, "C", "C#1", 1)]),
        lambda: ledger.fence(1, "A#1"),
        lambda: ledger.end_operation(1, operation.operation),
    ):
        with pytest.raises(Refused):
            write()
    assert ledger.owners == before and ledger.operations == {operation.operation: operation}


# ---- a coordinator


class Seen(Watch):
    """Which effects are carried out, and who is refused."""

    def __init__(self) -> None:
        self.effects: list[ev.Effect] = []
        self.refused: list[Coordinator] = []

    def effect(self, coordinator: Coordinator, effect: ev.Effect) -> None:
        self.effects.append(effect)

    def lost_lease(self, coordinator: Coordinator) -> None:
        self.refused.append(coordinator)


def test_a_coordinator_that_is_refused_does_nothing_more() -> None:
    """Another one took the lease. The first learns it from its first write: of two members that it would fence in one step
    it fences neither, and whoever still joins is not heard."""
    cluster = ScenarioCluster(Settings())
    cluster.declare([Task(FIRST), Task(SECOND), Task(THIRD)], {"S1": [FIRST], "S2": [SECOND], "S3": [THIRD]})
    coordinator, seen = cluster.coordinator, Seen()
    coordinator.watch = seen
    cluster.stall(cluster.nodes["S1"])
    cluster.stall(cluster.nodes["S2"])
    cluster.tick(5_000)
    cluster.take_lease("somebody else")
    assert not seen.effects and coordinator.in_office, "it has not noticed yet"
    cluster.tick(10_000)
    assert seen.refused == [coordinator] and not coordinator.in_office
    assert [effect for effect in seen.effects if isinstance(effect, ev.Fence)] == [ev.Fence("S1#1")]
    assert {owner.writer for owner in cluster.ledger.owners.values()} == {"S1#1", "S2#1", "S3#1"}
    cluster.join(cluster.new_node("S4", "S4", 1, ""))
    assert coordinator.group.members.get("S4") is None


def test_what_is_sent_over_a_session_that_is_over_does_not_arrive() -> None:
    """A message takes its time; where the member has connected again meanwhile, it is lost."""
    rehearsal = Rehearsal(parse_workload("tasks 2 stateless rate=1\ninstances 2\nspeeds message=50ms\n"), Settings())
    rehearsal.start()
    worker = rehearsal.hosts["I1"].workers[0]
    for connects_again in (False, True):
        assert worker.session is not None
        assignment = replace(worker.machine.assignment, generation=rehearsal.group.generation)
        rehearsal.network.down(worker.session, mem.Assigned(assignment))
        rehearsal.run_until(rehearsal.now_ms + 49)
        assert worker.machine.assignment is not assignment
        if connects_again:
            rehearsal.connect(worker)
        rehearsal.run_until(rehearsal.now_ms + 1)
        assert (worker.machine.assignment is assignment) is not connects_again


# ---- one cluster


@pytest.mark.parametrize(
    ("effect", "place"), [(ev.CloseSession, "simulator/coordinator.py"), (mem.ChangeRole, "simulator/nodes.py")]
)
def test_effects_are_carried_out_in_one_place(effect: type, place: str) -> None:
    """No use of the cluster has an answer of its own to what a core wants: it would drift from the others."""
    root = Path(__file__).resolve().parents[2]
    folders = (root / "orchestrator" / "simulator", root / "benchmarks", root / "tests" / "simulation")
    found = [path for folder in folders for path in folder.rglob("*.py") if effect.__name__ in path.read_text()]
    assert found == [root / "orchestrator" / place]
