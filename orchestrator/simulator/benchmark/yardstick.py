"""The yardstick: random scenarios as Kafka's refiner of warm-ups is fuzzed with, and the moves that one change costs.

One rule: what happens in a scenario depends on its seed alone, not on the protocol. On the rehearsal (rehearsal.py);
benchmarks/yardstick.py writes its table.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from orchestrator.group import events as ev
from orchestrator.model import Protocol, Settings, TaskId
from orchestrator.simulator.benchmark.rehearsal import Rehearsal
from orchestrator.simulator.benchmark.workload import Change, Speeds, TaskLoad, Workload

TICK_MS = 1_000
SEED = 1071
STANDBYS = (0, 0, 1, 2)
BUDGETS = (1, 1, 2, 2, 3, 5, 20)
EVENTS = ("add", "remove", "restart", "add member", "remove member", "standbys", "budget", "failover", "return")
LEARNING = {
    "without learners": (Protocol.COOPERATIVE, False),
    "with learners": (Protocol.LEARNER, False),
    "with learners and snapshots": (Protocol.LEARNER, True),
}


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one scenario, or of all."""

    cold: int = 0
    cold_announced: int = 0
    downtime_ticks: int = 0
    ticks: int = 0
    rebalances: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.cold + other.cold,
            self.cold_announced + other.cold_announced,
            self.downtime_ticks + other.downtime_ticks,
            self.ticks + other.ticks,
            self.rebalances + other.rebalances,
        )


def draw_workload(chance: random.Random) -> tuple[Workload, Settings]:
    """1 to 3 subtopologies of 1 to 12 partitions, 1 to 6 instances of 1 to 3 workers, at most 30,000 live records."""
    tasks = [
        TaskLoad(
            TaskId(subtopology, partition),
            0 if chance.random() < 0.1 else chance.randint(1, 30_000),
            chance.randint(0, 100),
        )
        for subtopology in range(chance.randint(1, 3))
        for partition in range(chance.randint(1, 12))
    ]
    speeds = Speeds(
        restore_bytes=chance.randint(2_000, 10_000),
        snapshot_bytes=40_000,
        record_bytes=1,
        snapshot_every_ms=20 * TICK_MS,
    )
    workload = Workload(tuple(tasks), chance.randint(1, 6), chance.randint(1, 3), speeds=speeds)
    settings = Settings(
        standbys=chance.choice(STANDBYS),
        max_learners_per_instance=chance.choice(BUDGETS),
        acceptable_recovery_lag=chance.choice((0, 100, 10_000)),
        check_invariants=True,
    )
    return workload, settings


def play(seed: int, protocol: Protocol, snapshots: bool) -> Totals:
    """One scenario: what happens in it depends on the seed alone, not on the protocol. Raises RuntimeError where it does
    not come to rest."""
    chance = random.Random(seed)
    workload, settings = draw_workload(chance)
    rehearsal = Rehearsal(workload, replace(settings, protocol=protocol), snapshots=snapshots)
    rehearsal.start()
    down = ticks = 0
    for _ in range(chance.randint(3, 8)):
        happen(rehearsal, random.Random(chance.random()))
        for _ in range(chance.randint(1, 10)):
            rehearsal.run_until(rehearsal.now_ms + TICK_MS)
            down, ticks = down + silent_tasks(rehearsal), ticks + 1
    while not rehearsal.is_at_rest():
        rehearsal.run_until(rehearsal.now_ms + TICK_MS)
        down, ticks = down + silent_tasks(rehearsal), ticks + 1
        if ticks > 10_000:
            raise RuntimeError(f"scenario {seed} does not come to rest under {protocol}")
    measures = rehearsal.measures()
    return Totals(measures.cold, measures.cold_announced, down, ticks, measures.rebalances)


def silent_tasks(rehearsal: Rehearsal) -> int:
    running = sum(len(worker.running) for host in rehearsal.hosts.values() for worker in host.workers)
    return len(rehearsal.tasks) - running


def happen(rehearsal: Rehearsal, chance: random.Random) -> None:
    """One event; one that makes no sense now (the last instance would go) becomes a joining instance."""
    present = sorted(rehearsal.present())
    name = chance.choice(present)
    host = rehearsal.hosts[name]
    gone = sorted(name for name in rehearsal.hosts if not rehearsal.hosts[name].alive)
    match chance.choice(EVENTS):
        case "remove" if len(present) > 1:
            stop(rehearsal, name)
        case "restart" if len(present) > 1:
            stop(rehearsal, name)
            rehearsal.after(chance.randint(1, 5) * TICK_MS, lambda: None if host.alive else host.start())
        case "return" if gone:
            rehearsal.change(Change(0, "return", (chance.choice(gone),)))
        case "add member":
            host.add_worker(f"{name}+{rehearsal.now_ms}")
        case "remove member" if len(host.workers) > 1:
            worker = host.workers.pop()
            worker.die()
            worker.gone = True
            rehearsal.send_to_group(ev.Expired(worker.name))
        case "standbys":
            rehearsal.configure(replace(rehearsal.settings, standbys=chance.choice(STANDBYS)))
        case "budget":
            rehearsal.configure(replace(rehearsal.settings, max_learners_per_instance=chance.choice(BUDGETS)))
        case "failover":
            rehearsal.fail_over()
        case _:
            rehearsal.change(Change(0, "join", ("1",)))


def stop(rehearsal: Rehearsal, name: str) -> None:
    """It is gone at once, and the group is notified: as a member that leaves a Kafka group."""
    host = rehearsal.hosts[name]
    host.crash()
    for worker in host.workers:
        rehearsal.send_to_group(ev.Expired(worker.name))


def moves(instances: int, tasks: int, verb: str) -> tuple[int, int, int]:
    """Rebalances, moves, and the moves that are needed, of one join or one leave."""
    loads = tuple(TaskLoad(TaskId(0, partition), 1 << 20, 100) for partition in range(tasks))
    workload = Workload(loads, instances, changes=(Change(1_000, verb, ("1",)),))
    rehearsal = Rehearsal(workload, Settings(check_invariants=True))
    measures = rehearsal.run()
    needed = tasks // (instances + 1) if verb == "join" else tasks // instances
    return measures.rebalances, measures.moves, needed
