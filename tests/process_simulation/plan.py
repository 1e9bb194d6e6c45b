"""What one life is: the group, its input, and what befalls it. Drawn from the seed; pure.

One rule: a plan says everything; two lives of one plan are the same life.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.model import Protocol, Settings
from tests.process_simulation.apps import APPS, RESTORING
from tests.process_simulation.chance import stream
from tests.process_simulation.fates import FATES, Trouble

KINDS = {
    # kind: (weight, least and most milliseconds that it lasts; 0 for a moment)
    "term": (3, 0, 0),  # SIGTERM to an instance; another joins later
    "interrupt": (1, 0, 0),
    "kill": (3, 0, 0),
    "kill-worker": (3, 0, 0),
    "kill-coordinator": (2, 0, 0),
    "stop-instance": (2, 200, 6_000),  # SIGSTOP, then SIGCONT
    "stop-worker": (2, 200, 6_000),
    "restart-fleet": (2, 0, 0),
    "join": (2, 0, 0),
    "leave": (2, 0, 0),
    "lock": (2, 100, 1_500),  # the log is locked, for less than a call waits
    "lock-long": (1, 3_000, 15_000),
    "full": (1, 500, 8_000),
    "away": (1, 300, 10_000),  # nobody can read or write the log
    "unknown": (2, 0, 0),
    "refuse": (1, 0, 0),  # the log refuses one part of a commit
    "fence": (1, 0, 0),  # the log takes a transactional id for fenced
    "damaged-read": (1, 0, 0),
    "damaged-store": (1, 0, 0),
    "failed-write": (1, 0, 0),  # one write of a store fails, and nothing of it is there
    "reset": (2, 0, 0),
    "half-close": (1, 0, 0),
    "stall": (2, 100, 4_000),
    "clock": (1, 0, 0),
    "term-step": (3, 0, 0),  # SIGTERM to an instance after so many steps of one of its processes
    "kill-step": (2, 0, 0),  # SIGKILL to a process after so many of its steps
    "grow": (1, 0, 0),  # a topic gets more partitions
    "retain": (1, 0, 0),  # retention removes records that are not processed yet
    "lose-note": (1, 0, 0),  # the next note of a call is not there when it is read
    "tear-note": (1, 0, 0),  # half of it is
    "client-away": (3, 100, 6_000),  # what processors ask does not answer
}
# In lives that restore, beside most of the others: drawn from a stream of their own, so that other lives stay as they are.
RESTORES = {
    "snapshot": (14, 0, 0),  # a process takes one
    "snapshot-cut": (2, 0, 0),  # and is killed meanwhile
    "snapshot-damaged": (4, 0, 0),  # a file of one is altered, cut off or removed
    "snapshot-log": (
        1,
        0,
        0,
    ),  # one of another log appears, the newest of all, with wrong values; so with those that follow
    "snapshot-app": (1, 0, 0),  # of another application
    "snapshot-topic": (1, 0, 0),  # of a changelog that was deleted and made again
    "snapshot-history": (2, 0, 0),  # of a history that the log does not have
    "snapshot-restored": (2, 0, 0),  # of its history, but beyond where the next term began
    "snapshot-base": (1, 0, 0),  # a base that the log knows nothing of: of a backfill that did not reach it
    "snapshot-past-end": (1, 0, 0),  # beyond the end of its changelog
    "prune": (3, 0, 0),  # `snapshot prune --keep 1`
    "lost-disk": (10, 0, 0),  # a host is gone, with its processes and its disk
    "compact": (6, 0, 0),  # of the changelogs, which remember deletions for some seconds
}
NOT_RESTORING = ("clock", "retain", "grow")  # snapshots are judged by clocks; the others have lives enough
RETENTION_MS = 4_000  # of deletions, in these lives
# What today's shell does not survive: not in a plan unless asked for (see the defects in `known`).
NOT_YET: tuple[str, ...] = ()


SETTINGS = Settings(
    heartbeat_ms=300,
    session_timeout_ms=2_500,
    disconnect_grace_ms=400,
    rejoin_grace_ms=1_200,
    release_timeout_ms=2_500,
    learner_timeout_ms=10_000,
    check_invariants=True,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls the group. `pick` chooses among what is there at that moment."""

    at_ms: int
    kind: str
    for_ms: int = 0
    pick: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module text. `order_rate`: the share of callbacks that are drawn; `only`: see chance.Order."""

    seed: int
    application: str = "counting"
    instances: int = 2
    workers: int = 1
    records: int = 200
    produce_ms: int = 3_000
    cost_ms: int = 0
    hang_ms: int = 0  # what one record in the middle costs an async processor
    commit_ms: int = 100
    troubles: tuple[Trouble, ...] = ()
    on_halt: str = "exit"
    on_stop: str = "bounce"
    log_timeout_ms: int = 300_000
    max_call_ms: int = 300_000
    settings: Settings = SETTINGS
    order_rate: float = 0.0
    log_delay: float = 0.002
    net_delay: float = 0.002
    faults: tuple[Fault, ...] = ()
    only: tuple[tuple[int, int], ...] | None = None
    base: bool = False  # the changelogs go on from a snapshot that a backfill left


def draw(seed: int, *, everything: bool = False, application: str | None = None, kinds: tuple[str, ...] = ()) -> Plan:
    """The plan of a seed. `everything` draws also what is NOT_YET survived; `kinds` only these faults, and fates."""
    chance = stream(seed, "plan")
    drawn = chance.choice(list(APPS))
    settings = replace(
        SETTINGS,
        protocol=chance.choice((Protocol.LEARNER, Protocol.LEARNER, *Protocol)),
        standbys=chance.choice((0, 0, 1)),
    )
    allowed = [kind for kind in KINDS if (kind in kinds if kinds else everything or kind not in NOT_YET)]
    records = chance.choice((60, 150, 400))
    plan = Plan(
        seed,
        application=application or drawn,
        instances=chance.choice((1, 2, 2, 3)),
        workers=chance.choice((1, 1, 1, 2)),
        records=records,
        produce_ms=chance.choice((500, 2_500, 5_000)),
        cost_ms=chance.choice((0, 0, 1, 5, 20)),
        commit_ms=chance.choice((30, 100, 400)),
        settings=settings,
        order_rate=chance.choice((0.0, 0.05, 0.3, 1.0)),
        log_delay=chance.choice((0.0, 0.002, 0.03, 0.15)),
        net_delay=chance.choice((0.0, 0.002, 0.03)),
        faults=_faults(chance, allowed),
        hang_ms=chance.choice((0, 0, 7_000 if everything else 0)),
    )
    fates = tuple(kind for kind in kinds if kind in FATES)
    if application in RESTORING:
        plan = _restoring(plan, stream(seed, "restores"), kinds)
    return replace(
        plan,
        troubles=_troubles(stream(seed, "troubles"), records, fates or FATES, always=bool(fates)),
        on_halt=chance.choice(("exit", "continue")),
        on_stop=chance.choice(("bounce", "bounce", "leave")),
        log_timeout_ms=chance.choice((300_000, 300_000, 300_000, 2_000)),
        max_call_ms=chance.choice((300_000, 1_500)),
    )


def _restoring(plan: Plan, chance: random.Random, kinds: tuple[str, ...]) -> Plan:
    """A longer life, in which snapshots grow old."""
    usual = {**RESTORES, **{kind: row for kind, row in KINDS.items() if kind not in NOT_RESTORING + NOT_YET}}
    allowed = [kind for kind in usual if not kinds or kind in kinds]
    faults = [_fault(chance, allowed, usual, 16_000) for _ in range(chance.randrange(4, 14))] if allowed else []
    return replace(
        plan,
        produce_ms=chance.choice((2_500, 8_000, 15_000)),
        faults=tuple(sorted(faults, key=lambda f: f.at_ms)),
        base=chance.random() < 0.3,
    )


def _faults(chance: random.Random, allowed: list[str]) -> tuple[Fault, ...]:
    many = chance.choice((5, 5, 5, 9))
    found = (_fault(chance, allowed) for _ in range(chance.randrange(many))) if allowed else ()
    return tuple(sorted(found, key=lambda f: f.at_ms))


def _troubles(chance: random.Random, records: int, fates: tuple[str, ...], *, always: bool) -> tuple[Trouble, ...]:
    """Few: each costs a worker its process, or the fleet its life."""
    count = 1 if always else chance.choice((0, 0, 0, 1, 2))
    numbers = sorted(chance.sample(range(records), count))
    drawn = [chance.choice(fates) for _ in numbers]
    return tuple(
        Trouble(
            number,
            fate,
            chance.choice(("mend", "skip", "skip and kill", "again")),
            chance.random() < 0.5,
            chance.choice((2_600, 6_000)),
        )
        for number, fate in zip(numbers, drawn, strict=True)
    )


def _fault(
    chance: random.Random,
    allowed: list[str],
    rows: Mapping[str, tuple[int, int, int]] = KINDS,
    until_ms: int = 7_000,
) -> Fault:
    kind = chance.choices(allowed, [rows[kind][0] for kind in allowed])[0]
    _, least, most = rows[kind]
    return Fault(chance.randrange(300, until_ms), kind, chance.randint(least, most), chance.randrange(1_000))
