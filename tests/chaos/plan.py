"""What happens in a life, drawn from its seed before it begins. Pure.

One rule: the plan is the seed's alone; what an event meets (which machine is up, who coordinates) is looked up when it comes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos.link import FAULTS

SHAPES = ("bank", "by-shop", "async")
MACHINES = 5
# kind: how often it is drawn. Of three brokers one is away at a time; a clean restart is quick, a killed one is slower.
WEIGHTS = {
    "kill": 5,
    "kill-coordinator": 4,
    "kill-worker": 4,
    "term": 4,
    "stop": 5,
    "stop-coordinator": 3,
    "stop-workers": 4,
    **{f"link-{fault}": 2 for fault in FAULTS},
    "broker-restart": 2,
    "broker-kill": 2,
    "scale-up": 3,
    "scale-down": 3,
    "kill-producer": 1,
}
KINDS = tuple(WEIGHTS)


@dataclass(frozen=True)
class Event:
    """`after_s`: the pause before it; `for_s`: how long what it breaks stays so; `pick` in [0, 1): which of those it can meet;
    `deliver`: whether a link that is mended gives on what it held."""

    kind: str
    after_s: float
    for_s: float
    pick: float
    deliver: bool

    def __str__(self) -> str:
        return f"{self.kind} for {self.for_s:.1f} s"


@dataclass(frozen=True)
class Plan:
    """One life."""

    seed: int
    shape: str
    brokers: int
    machines: int  # that run at first
    standbys: int
    events: tuple[Event, ...]


def drawn(seed: int, events: int) -> Plan:
    choice = random.Random(seed)
    kinds = [one for one, times in WEIGHTS.items() for _ in range(times)]
    shape = SHAPES[seed % len(SHAPES)]
    brokers = 3 if choice.random() < 0.2 else 1
    machines, standbys = choice.randint(3, 4), choice.randint(0, 1)
    return Plan(
        seed, shape, brokers, machines, standbys, tuple(_event(choice, choice.choice(kinds)) for _ in range(events))
    )


def _event(choice: random.Random, kind: str) -> Event:
    """Some stops are shorter than a session (3 s), some longer."""
    return Event(kind, choice.uniform(0.0, 2.0), choice.uniform(0.1, 5.0), choice.random(), choice.random() < 0.6)
