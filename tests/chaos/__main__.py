"""`python -m tests.chaos --events 300 --seed 1 [--kafka 3.9.1]`: lives of 25 events each, from the seed on; `make chaos` runs it.

A life that breaks is reported with its seed, and its folder is kept: `--seed SEED --events 25` draws the same plan again.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from state.log.kafka import broker
from tests.chaos.life import Life, Outcome
from tests.chaos.plan import drawn

OF_A_LIFE = 25


async def campaign(events: int, seed: int, of_a_life: int, version: str, *, keep: bool) -> int:
    """How many lives broke."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    broken = 0
    while sum(counts.values()) < events:
        plan = drawn(seed, min(of_a_life, events - sum(counts.values())))
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        outcome = await Life(plan, folder, version).live()
        counts += outcome.events
        refused += outcome.refused
        broken += bool(outcome.problems)
        print(_line(outcome), flush=True)
        for problem in outcome.problems:
            print(f"  {problem}", flush=True)
        if outcome.problems or keep:
            print(f"  kept in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
        seed += 1
    print(f"{sum(counts.values())} events: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    if refused:
        print("refused by the group: " + ", ".join(f"{kind} {count}" for kind, count in sorted(refused.items())))
    print(f"{broken} lives broke")
    return broken


def _line(outcome: Outcome) -> str:
    plan = outcome.plan
    return (
        f"seed {plan.seed}: {plan.shape}, {plan.brokers} broker{'s' * (plan.brokers > 1)}, {plan.machines} machines, "
        f"{plan.standbys} standbys: {sum(outcome.events.values())} events, {outcome.records} records, longest without a "
        f"commit {outcome.stall.seconds:.1f} s ({outcome.stall.meanwhile}), broker away for {outcome.away_s:.1f} s "
        f"at most, at rest after {outcome.rest_s:.1f} s, "
        f"{outcome.starts_again} starts again: {'BROKEN' if outcome.problems else 'held'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Instances on a real broker, and everything that can fail.")
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--of-a-life", type=int, default=OF_A_LIFE)
    parser.add_argument("--kafka", default=broker.VERSION, metavar="VERSION")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all lives")
    args = parser.parse_args()
    return asyncio.run(_interrupted(args))


async def _interrupted(args: argparse.Namespace) -> int:
    """An exit code; SIGTERM ends the life as Ctrl-C does, so that nothing of it is left running."""
    living = asyncio.create_task(campaign(args.events, args.seed, args.of_a_life, args.kafka, keep=args.keep))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, living.cancel)
    try:
        return 1 if await living else 0
    except asyncio.CancelledError:
        return 143


if __name__ == "__main__":
    sys.exit(main())
