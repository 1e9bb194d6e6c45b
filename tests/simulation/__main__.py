"""`python -m tests.simulation --seeds 300 [--from 0] [--progress FILE] [--shrink-to DIR]`: a campaign that can be stopped
and resumed. A life that breaks is told with its seed and commit, and shrunk to a scenario file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.simulation.plan import Plan
from tests.simulation.shrink import breaks, save, shrunk, written
from tests.simulation.simlog import Broken
from tests.simulation.world import World


def commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def tell(plan: Plan, folder: Path | None) -> None:
    """The smallest life like it that breaks, printed, and kept if a folder is given."""
    small = shrunk(plan)
    error = breaks(small) or "it broke no more"
    print(written(small, error, commit()), flush=True)
    if folder is not None:
        print(f"kept as {save(folder, small, error, commit())}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Lives of a group with faults, each from a seed.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--progress", type=Path, default=None, help="a file that keeps the next seed and the count")
    parser.add_argument("--shrink-to", type=Path, default=None, help="a folder for the shrunk scenario of each failure")
    parser.add_argument("--no-shrink", action="store_true", help="tell the seed of a failure and go on")
    parser.add_argument("--trace", action="store_true", help="print what happened in each life")
    args = parser.parse_args()
    kept = (
        json.loads(args.progress.read_text()) if args.progress and args.progress.exists() else {"next": 0, "lives": 0}
    )
    first = args.first if args.first is not None else kept["next"]
    failed = 0
    started = time.monotonic()
    for seed in range(first, first + args.seeds):
        world = World(seed)
        try:
            world.live()
        except Exception as error:
            failed += 1
            kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
            print(f"seed {seed} at commit {commit()}: {kind}{error}", flush=True)
            if not args.no_shrink:
                tell(world.plan, args.shrink_to)
            if args.trace:
                print("\n".join(world.scheduler.trace[-60:]))
                if not isinstance(error, Broken):
                    raise
        else:
            if args.trace:
                print("\n".join(world.scheduler.trace))
        if args.progress:
            kept = {"next": seed + 1, "lives": kept["lives"] + 1}
            args.progress.write_text(json.dumps(kept))
    seconds = time.monotonic() - started
    print(f"{args.seeds} lives in {seconds:.0f} s, {failed} broken; {kept['lives'] or args.seeds} lives in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
