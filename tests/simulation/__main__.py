"""`python -m tests.simulation --seeds 300 [--from 0] [--progress FILE] [--shrink-to DIR]`: a campaign that can be stopped
and resumed. A life that breaks is told with its seed and commit, and shrunk to a scenario file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Campaign:
    """How far a campaign is: the seed it began at, the next one, and how many lives it has had over all runs."""

    first: int = 0
    next: int = 0
    lives: int = 0

    def after(self, seed: int) -> Campaign:
        return replace(self, next=seed + 1, lives=self.lives + 1)

    def seeds(self, first: int | None, count: int) -> range:
        """`count` seeds from where it stands; or, where `first` is given, those of `count` from there that it has not
        had: the same command again goes on where it was stopped, and counts no life twice."""
        if first is None:
            return range(self.next, self.next + count)
        return range(
            self.next if first == self.first and self.next - first in range(count + 1) else first, first + count
        )


def read(path: Path | None) -> Campaign:
    if path is None or not path.exists():
        return Campaign()
    try:
        kept = json.loads(path.read_text())
        return Campaign(kept.get("first", 0), kept["next"], kept["lives"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SystemExit(f"error: {path} holds no progress of a campaign; name another file, or remove it") from None


def write(path: Path, campaign: Campaign) -> None:
    """At once: whoever is killed meanwhile leaves the old file."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(asdict(campaign)))
    beside.replace(path)


def live(seed: int, shrink: bool, folder: Path | None, trace: bool) -> bool:
    """One life; whether it held."""
    world = World(seed)
    try:
        world.live()
    except Exception as error:
        kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
        print(f"seed {seed} at commit {commit()}: {kind}{error}", flush=True)
        if shrink:
            tell(world.plan, folder)
        if trace:
            print("\n".join(world.trace[-60:]))
            if not isinstance(error, Broken):
                raise
        return False
    if trace:
        print("\n".join(world.trace))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Lives of a group with faults, each from a seed.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--progress", type=Path, default=None, help="a file that keeps the next seed and the count")
    parser.add_argument("--shrink-to", type=Path, default=None, help="a folder for the shrunk scenario of each failure")
    parser.add_argument("--no-shrink", action="store_true", help="tell the seed of a failure and go on")
    parser.add_argument("--trace", action="store_true", help="print what happened in each life")
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error("--seeds: write 1 or more")
    campaign = read(args.progress)
    seeds = campaign.seeds(args.first, args.seeds)
    if args.first is not None and seeds.start == args.first:
        campaign = replace(campaign, first=args.first)
    lived = failed = 0
    started = time.monotonic()
    try:
        for seed in seeds:
            failed += not live(seed, not args.no_shrink, args.shrink_to, args.trace)
            lived += 1
            campaign = campaign.after(seed)
            if args.progress:
                write(args.progress, campaign)
    except KeyboardInterrupt:
        print(f"stopped before seed {seeds.start + lived}")
        return 130
    finally:
        seconds = time.monotonic() - started
        print(f"{lived} lives in {seconds:.0f} s, {failed} broken; {campaign.lives} lives in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
