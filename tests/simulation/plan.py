"""What a life is made of, as data drawn up front from a seed: settings, versions, instances, and the list of faults.

One rule: a fault names what it hits and carries its own numbers, so that leaving one out changes no other: that is what
shrink.py lives on. A fault that hits something that is not there (any more) does nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from orchestrator.group.state import LONG_ASSIGNMENT
from orchestrator.model import Protocol, Settings, Task, TaskId

PHASE_MS = 60_000
VERSIONS = ("old", "new")

GROW = "grow"  # drawn by _growing

# How often each kind is drawn, against the others.
KINDS = {
    "crash": 4,
    "stall": 3,
    "break": 3,
    "blind": 2,
    "clock": 2,
    "upgrade": 2,
    "linger": 2,
    "double": 2,
    "coordinator": 1,
    "deaf": 1,
    "cut": 1,
    "log": 1,
    "stuck": 1,
    "hung": 1,
    "join": 1,
    "leave": 1,
    "undo": 1,
    "config": 1,
}


@dataclass(frozen=True)
class Fault:
    """One fault: when, what, to whom, for how long, and what else it needs (`way` is one word or a number)."""

    at_ms: int
    kind: str
    instance: str
    worker: int
    for_ms: int
    way: str = ""

    @property
    def member(self) -> str:
        return f"{self.instance}.{self.worker}"


@dataclass(frozen=True)
class InstancePlan:
    """An instance: how many workers, where, which protocols, which version it starts as, and when it comes."""

    name: str
    workers: int = 1
    zone: str = ""
    old_protocols: bool = False
    version: str = "old"


@dataclass(frozen=True)
class Plan:
    """A whole life before it is lived."""

    seed: int
    settings: Settings
    delay_max: int
    restore_rate: int
    tasks: tuple[Task, ...]
    versions: dict[str, frozenset[TaskId]]
    history: dict[TaskId, int]  # records in each task's changelog at the beginning
    sizes: dict[TaskId, int]  # bytes of state, for weights
    instances: tuple[InstancePlan, ...]
    later: tuple[InstancePlan, ...]  # those that `join` brings
    faults: tuple[Fault, ...]
    coming: frozenset[TaskId] = frozenset()  # of the tasks those that come with a `grow`

    @property
    def long_assignment(self) -> int:
        """In every third life placements are computed by the assignor process, whatever their size."""
        return 0 if self.seed % 3 == 0 else LONG_ASSIGNMENT

    def tasks_of(self, version: str) -> list[Task]:
        return [task for task in self.tasks if task.id in self.versions[version]]

    def with_tasks(self, tasks: tuple[Task, ...]) -> Plan:
        """The same with fewer tasks."""
        kept = {task.id for task in tasks}
        return replace(
            self,
            tasks=tasks,
            versions={name: known & kept for name, known in self.versions.items()},
            history={t: at for t, at in self.history.items() if t in kept},
            coming=self.coming & kept,
        )


def draw(seed: int, only: tuple[str, ...] = ()) -> Plan:
    """Nearly everything is drawn. `only`: a directed search, with many faults of these kinds and no others."""
    r = random.Random(seed)
    settings = _settings(r)
    ids = [TaskId(s, p) for s in range(r.choice([1, 2, 3])) for p in range(r.randrange(1, 6))]
    heavy = r.random() < 0.3
    tasks = tuple(Task(t, t.subtopology == 0 or r.random() < 0.7, r.choice([1, 2, 4]) if heavy else 1) for t in ids)
    old, new = frozenset(ids), frozenset(ids)
    if r.random() < 0.4:  # something goes, something comes; never everything
        old = frozenset(t for t in ids if t == ids[0] or r.random() < 0.8)
        new = frozenset(t for t in ids if t == ids[0] or r.random() < 0.8)
    names = [f"I{number}" for number in range(1, 8)]
    made = [_instance(r, name) for name in names]
    count = r.randrange(1, 5)
    drawn = Plan(
        seed=seed,
        settings=settings,
        delay_max=r.choice([2, 20, 200]),
        restore_rate=r.choice([10, 50, 1_000]),
        tasks=tasks,
        versions={"old": old, "new": new},
        history={t: r.choice([0, 100, 400]) for t in ids},
        sizes={t: r.choice([1 << 20, 1 << 20, 64 << 20, 200 << 20]) for t in ids},
        instances=tuple(made[:count]),
        later=tuple(made[count:]),
        faults=tuple(sorted(_faults(r, names, only), key=lambda f: f.at_ms)),
    )
    return _growing(drawn, random.Random(f"{seed} grow"), directed=GROW in only, may=not only)


def _growing(plan: Plan, r: random.Random, *, directed: bool, may: bool) -> Plan:
    """In every fifth life topics grow, too; drawn from a stream of its own, so that the others are what they were. What
    comes has no state, and is in every version that has its subtopology."""
    if not (directed or (may and r.random() < 0.2)):
        return plan
    subtopologies = sorted({task.id.subtopology for task in plan.tasks})
    new = [TaskId(r.choice(subtopologies), 10 + number) for number in range(r.randrange(1, 5))]
    has = {name: {task.subtopology for task in known} for name, known in plan.versions.items()}
    more = [] if directed else [_fault(r, GROW, ["I1", "I2", "I3", "I4"]) for _ in range(r.randrange(1, 4))]
    return replace(
        plan,
        tasks=(*plan.tasks, *(Task(task, stateful=False) for task in new)),
        versions={
            name: known | {t for t in new if t.subtopology in has[name]} for name, known in plan.versions.items()
        },
        history={**plan.history, **dict.fromkeys(new, 0)},
        sizes={**plan.sizes, **dict.fromkeys(new, 1 << 20)},
        faults=tuple(sorted([*plan.faults, *more], key=lambda f: f.at_ms)),
        coming=frozenset(new),
    )


def _settings(r: random.Random) -> Settings:
    return replace(
        Settings(),
        protocol=r.choice([Protocol.LEARNER] * 4 + [Protocol.COOPERATIVE, Protocol.EAGER]),
        ready=r.choice(["eager", "eager", "conservative"]),
        standbys=r.choice([0, 0, 1, 1, 2]),
        balancing_factor=r.choice([1, 1, 2]),
        weights=r.choice(["given", "given", "given", "bytes"]),
        max_learners_per_instance=r.choice([1, 2, 2, 5]),
        acceptable_recovery_lag=r.choice([0, 20, 200]),
        acceptable_recovery_time_ms=r.choice([1, 500]),
        session_timeout_ms=r.choice([3_000, 10_000]),
        disconnect_grace_ms=r.choice([200, 1_000]),
        rejoin_grace_ms=r.choice([2_000, 5_000]),
        release_timeout_ms=r.choice([3_000, 10_000]),
        learner_timeout_ms=r.choice([8_000, 20_000]),
        heartbeat_ms=r.choice([300, 1_000]),
    )


def _instance(r: random.Random, name: str) -> InstancePlan:
    workers, zone, old = r.choice([1, 1, 1, 2]), r.choice(["", "a", "b"]), r.random() < 0.05
    return InstancePlan(name, workers, zone, old)


def _faults(r: random.Random, names: list[str], only: tuple[str, ...]) -> list[Fault]:
    """How many, then each."""
    kinds = list(only) or [kind for kind, often in KINDS.items() for _ in range(often)]
    count = r.choice([0, 1, 3, 8]) * 4
    return [_fault(r, r.choice(kinds), names) for _ in range(32 if only else count)]


def _fault(r: random.Random, kind: str, names: list[str]) -> Fault:
    times = {
        "crash": [200, 2_000, 15_000],
        "coordinator": [200, 2_000, 15_000],
        "upgrade": [200, 2_000],
        "stall": [300, 2_500, 7_000, 20_000],
        "deaf": [500, 6_000],
        "cut": [1_500, 12_000],
        "log": [100, 1_000, 6_000],
        "blind": [1_000, 4_000, 9_000],
        "clock": [3_000, 8_000, 60_000],
        "double": [50, 500, 3_000],
        "stuck": [30_000],
        "hung": [25_000],
    }
    ways = {
        "crash": ["kept", "kept", "kept", "kept", "wiped", "old"],
        "deaf": ["up", "down"],
        "clock": ["jumps", "stands still"],
        "config": [f"standbys={n} max_learners_per_instance={m}" for n in (0, 1, 2) for m in (1, 2, 5)],
        "leave": ["1", "2", "3"],
        GROW: ["1", "2", "3"],
    }
    return Fault(
        r.randrange(1_000, PHASE_MS),
        kind,
        r.choice(names[:4]),
        r.choice([0, 0, 1]),
        r.choice(times.get(kind, [0])),
        r.choice(ways.get(kind, [""])),
    )
