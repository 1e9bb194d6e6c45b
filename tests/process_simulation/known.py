"""Defects that the simulation shows today, by name: the shrunk plan that shows each, and how it breaks.

One rule: a defect stays here until it is mended; then it goes, its kind of fault comes out of `plan.NOT_YET`, and the
suite must hold it. `python -m tests.process_simulation --defect NAME --trace` lives one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.process_simulation.fates import EXITS, Trouble
from tests.process_simulation.plan import Fault, Plan


@dataclass(frozen=True, slots=True)
class Defect:
    """`kind` is how the life breaks (`shrink.kind`, its beginning)."""

    what: str
    kind: str
    plan: Plan


FORGOTTEN_SKIP = Plan(
    323,
    "batching",
    workers=2,
    records=60,
    produce_ms=500,
    commit_ms=400,
    troubles=(Trouble(13, EXITS, "skip"), Trouble(20, EXITS, "mend")),
    on_halt="continue",
)
DEFECTS: dict[str, Defect] = {
    "forgotten-skip": Defect(
        "a task has one halt in the log: where a record that is to be skipped (`resume --skip`) is not committed yet when the "
        "next record ends the process, the next halt overwrites the skip, and the first record is called again",
        "blast",
        FORGOTTEN_SKIP,
    ),
    "paused-call": Defect(
        "an async call of 20 ms is under way when its process stands still (SIGSTOP, a paused container) for longer than "
        "--max-call: its timeout counts the pause, the record is left to on_error, and with on_error=stop the fleet ends with 1",
        "blast",
        Plan(
            1812,
            "asking",
            instances=1,
            records=150,
            produce_ms=2_500,
            cost_ms=20,
            commit_ms=400,
            max_call_ms=1_500,
            faults=(Fault(1_178, "stop-instance", 2_145, 6),),
        ),
    ),
}
