"""The group against Kafka's own yardstick: random scenarios as its refiner is fuzzed with, and moves per change.

`python -m benchmarks.yardstick` writes its section of docs/benchmarks.md. One rule: every figure of ours comes from
the real cores in the rehearsal (orchestrator/simulator/benchmark), and is compared with our own run without learners; Kafka's figures
are quoted from its pinned totals and from the real HighAvailabilityTaskAssignor, and what differs is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.section import write_section
from orchestrator.simulator.benchmark.workload import Speeds
from orchestrator.simulator.benchmark.yardstick import LEARNING, SEED, Totals, moves, play

SCENARIOS = 100
SIZES = ((2, 8), (10, 100), (20, 200))
KAFKA_MOVES = {
    (2, 8): ("4 / 5-6", "1 / 4"),
    (10, 100): ("46-51 / 90-100", "39-41 / 85-89"),
    (20, 200): ("94-98 / 185-193", "87-96 / 182-200"),
}


# ---- the section


def yardstick_rows(scenarios: int) -> Iterator[str]:
    yield "| | cold hand-overs | of them announced | downtime, task-ticks | ticks until at rest | rebalances |"
    yield "|---|---|---|---|---|---|"
    base: Totals | None = None
    for name, (protocol, snapshots) in LEARNING.items():
        totals = sum((play(SEED * 1_000 + number, protocol, snapshots) for number in range(scenarios)), Totals())
        base = base or totals
        share = ", ".join(
            (f"{100 * totals.cold / base.cold:.0f} %", f"{100 * totals.downtime_ticks / base.downtime_ticks:.0f} %")
        )
        cold, down = share.split(", ")
        yield f"| ours, {name} | {totals.cold} ({cold}) | {totals.cold_announced} | {totals.downtime_ticks} ({down}) | {totals.ticks} | {totals.rebalances} |"
    yield "| Kafka, no refinement (its pinned totals) | 388 (100 %) | - | 1638 (100 %) | 2242 | - |"
    yield "| Kafka, warm-up refinement (its pinned totals) | 130 (34 %) | - | 1078 (66 %) | 2517 | - |"


def moves_rows() -> Iterator[str]:
    yield "| instances x tasks | join: rebalances / moves (needed) | Kafka: rounds / moves | leave: rebalances / moves (needed) | Kafka: rounds / moves |"
    yield "|---|---|---|---|---|"
    for size in SIZES:
        join, leave = moves(*size, "join"), moves(*size, "leave")
        kafka_join, kafka_leave = KAFKA_MOVES[size]
        yield (
            f"| {size[0]} x {size[1]} | {join[0]} / {join[1]} ({join[2]}) | {kafka_join} "
            f"| {leave[0]} / {leave[1]} ({leave[2]}) | {kafka_leave} |"
        )


TEXT = """\
## The yardstick: {scenarios} random scenarios as Kafka fuzzes its refiner with

`make bench-yardstick`. Instances and workers come, go and restart, standbys and budgets change, coordinators fail over; a tick is a
second of virtual time. Cold: a task that ran, or of which a caught-up copy was there, went to an instance that was not
caught up; announced: it was a learner that had said it was ready, by its predicted time. Downtime: tasks that nobody ran, counted once a tick. Percentages are of the same scenarios without learners.

{yardstick}

What differs from Kafka's model, so that only the percentages may be compared: its scenarios are drawn by its own
generator, whose seeds mean nothing here; a hand-over takes it a heartbeat, and us two messages and a commit; its
warm-ups are limited for the group, our learners for each instance; its standbys pause while their member restores an
active task, ours go on at an eighth; our members that stop are noticed at once, as in its model, and a coordinator's failover takes us {lease} s.

### Moves per change

{moves}

Kafka: the real HighAvailabilityTaskAssignor in simulated rounds, three seeds; it moves two tasks every probing interval
(ten minutes by default). Ours: each task as soon as its learner is ready; a rebalance is an agreement, most of them one
hand-over.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The group against Kafka's yardstick.")
    parser.add_argument("--scenarios", type=int, default=SCENARIOS)
    parser.add_argument("--docs", type=Path, default=Path("docs/benchmarks.md"))
    args = parser.parse_args()
    text = TEXT.format(
        scenarios=args.scenarios,
        yardstick="\n".join(yardstick_rows(args.scenarios)),
        moves="\n".join(moves_rows()),
        lease=Speeds().lease_ms // 1000,
    )
    print(text)
    write_section(args.docs, "yardstick", text)


if __name__ == "__main__":
    main()
