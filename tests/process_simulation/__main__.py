"""`python -m tests.process_simulation --seeds 300 [--start 0]`: lives of the whole process, each from a seed.

A life that breaks is told with its seed, its commit and the command that lives it again; `--shrink` looks for the
smallest life that breaks in the same way and writes its plan to a file for `--plan`. `--defect NAME` lives one of the
known defects (`--defect list`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import msgspec

from tests.process_simulation.apps import ALL
from tests.process_simulation.known import DEFECTS
from tests.process_simulation.life import Life
from tests.process_simulation.plan import KINDS, RESTORES, Plan, draw
from tests.process_simulation.shrink import broken, kind, shrunk


def commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Lives of whole processes with faults, each from a seed.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--everything", action="store_true", help="also faults that today's shell does not survive")
    parser.add_argument("--kinds", default="", help=f"only these faults: {', '.join((*KINDS, *RESTORES))}")
    parser.add_argument("--app", default=None, choices=sorted(ALL))
    parser.add_argument("--plan", type=Path, default=None, help="live the plan of a file")
    parser.add_argument("--defect", default=None, help="live a known defect; `list` names them")
    parser.add_argument("--shrink", action="store_true", help="shrink what breaks")
    parser.add_argument("--keep", type=Path, default=Path(), help="the folder for shrunk plans")
    parser.add_argument("--trace", action="store_true", help="print what happened in each life")
    return parser.parse_args()


def plans(args: argparse.Namespace) -> list[Plan]:
    if args.plan is not None:
        return [msgspec.json.decode(args.plan.read_bytes(), type=Plan)]
    if args.defect is not None:
        return [DEFECTS[args.defect].plan]
    kinds = tuple(filter(None, args.kinds.split(",")))
    seeds = range(args.start, args.start + args.seeds)
    return [draw(seed, everything=args.everything, application=args.app, kinds=kinds) for seed in seeds]


def replay(args: argparse.Namespace, plan: Plan) -> str:
    words = ["python -m tests.process_simulation", f"--start {plan.seed} --seeds 1 --trace"]
    words += ["--everything"] if args.everything else []
    words += [f"--kinds {args.kinds}"] if args.kinds else []
    words += [f"--app {args.app}"] if args.app else []
    return " ".join(words)


def show(life: Life) -> None:
    for at, text in life.loop.trace:
        print(f"{at:9.3f} {text}")


def tell(args: argparse.Namespace, plan: Plan, error: str) -> None:
    print(f"seed {plan.seed} at commit {commit()} ({plan.application}, {[f.kind for f in plan.faults]}): {error}")
    if args.plan is None and args.defect is None:
        print(f"  again: {replay(args, plan)}", flush=True)
    if args.shrink:
        small = shrunk(plan)
        error, life = broken(small)  # type: ignore[assignment]
        path = args.keep / f"process_{plan.seed}.json"
        path.write_bytes(msgspec.json.encode(small))
        deviations = len(small.only or ())
        print(f"  shrunk to {len(small.faults)} faults and {deviations} deviations, {path}: {error}")
        show(life)


def main() -> int:
    args = options()
    warnings.simplefilter("ignore", RuntimeWarning)  # of what is left of a life, unwound in the middle of things
    if args.defect == "list":
        for name, defect in DEFECTS.items():
            print(f"{name}: {defect.what}")
        return 0
    begun, kinds, befell, restored = time.monotonic(), Counter[str](), Counter[str](), Counter[str]()
    lives = plans(args)
    for plan in lives:
        error, life = broken(plan)
        befell.update(fault.kind for fault in plan.faults)
        if life.snapshots is not None:
            restored.update(life.snapshots.befell)
            restored["restored from one"] += life.disk.ingested
        if error is not None:
            kinds[kind(error) or ""] += 1
            tell(args, plan, error)
        if args.trace:
            show(life)
    took = time.monotonic() - begun
    print(f"{len(lives)} lives in {took:.0f} s, {sum(kinds.values())} broken {dict(kinds)}; faults {dict(befell)}")
    if restored:
        print(f"snapshots, what was done and not only drawn: {dict(restored)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
