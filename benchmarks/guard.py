"""Whether a record costs a worker more than it did: `make bench-guard`, in about a minute.

One rule: a ratio to the bare loop of the same run is compared with the one that is written here, and never a time with a time.
What falls is measured again, and each form has to hold once: a machine that was busy for a moment is no regression. A ratio that is better by a fifth is to be
written here, too.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.bare_loop import BARE
from benchmarks.stream import HOT_KEYS, Cost, Input, measure, rates

# The share of the bare loop's rate that a form has, as measured with the change that set it.
EXPECTED = {("hot", "record"): 0.53, ("hot", "batch"): 0.59, ("unique", "record"): 0.37, ("unique", "batch"): 0.40}
FALL = 0.20


def verdicts(costs: dict[tuple[str, str], list[Cost]]) -> list[tuple[str, bool]]:
    """A line for each form, and whether it holds."""
    found: list[tuple[str, bool]] = []
    medians = rates(costs)
    for (name, form), expected in EXPECTED.items():
        ratio = medians[name, form] / medians[name, BARE]
        holds = ratio >= expected * (1 - FALL)
        what = "holds" if holds else f"fell by more than {FALL:.0%}"
        found.append((f"{name:8} {form:8} {ratio:.2f} of the bare loop, expected {expected:.2f}: {what}", holds))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether a record costs more than it did, in about a minute.")
    parser.add_argument("--records", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=6)
    args = parser.parse_args()
    inputs = [Input("hot", args.records, HOT_KEYS), Input("unique", args.records, args.records)]
    fell = set(EXPECTED)
    for _ in range(args.attempts):
        found = verdicts(measure(inputs, ["record", "batch"], args.rounds))
        print("\n".join(line for line, _ in found), flush=True)
        fell -= {form for form, (_, holds) in zip(EXPECTED, found, strict=True) if holds}
        if not fell:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
