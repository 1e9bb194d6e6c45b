"""`python -m tests.process_simulation.find [--limit 200]`: for each mutation the first seed that notices it, and that
holds without it; writes caught.py."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.process_simulation.caught import CAUGHT_BY
from tests.process_simulation.fates import FATES
from tests.process_simulation.mutations import APPLICATION, DIRECTED, MUTATIONS
from tests.process_simulation.plan import Plan, draw
from tests.process_simulation.shrink import broken

HEAD = '''"""Which seed notices which removed rule: found by `python -m tests.process_simulation.find`, kept so that the test is
quick."""

CAUGHT_BY: dict[str, int] = {
'''


def plan(name: str, seed: int) -> Plan:
    found = draw(seed, kinds=DIRECTED.get(name, ()), application=APPLICATION.get(name))
    if name in APPLICATION and not set(DIRECTED[name]) & set(FATES):  # what is wrong with records would hide the rule
        found = replace(found, troubles=())
    return found


def breaks(name: str, seed: int) -> str | None:
    """What the seed says of the mutation, or None where it notices nothing."""
    with ExitStack() as stack:
        MUTATIONS[name](stack)
        return broken(plan(name, seed))[0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    found: dict[str, int] = dict(CAUGHT_BY) if args.only else {}
    for name in filter(None, args.only.split(",")) if args.only else MUTATIONS:
        seeds = [CAUGHT_BY[name]] if name in CAUGHT_BY else []
        for seed in [*seeds, *range(args.limit)]:
            told = breaks(name, seed)
            if told is not None and broken(plan(name, seed))[0] is None:
                found[name] = seed
                print(f"{name}: seed {seed}: {told[:130]}", flush=True)
                break
        else:
            found.pop(name, None)
            print(f"{name}: survived {args.limit} seeds", flush=True)
    rows = "".join(f'    "{name}": {found[name]},\n' for name in MUTATIONS if name in found)
    (Path(__file__).parent / "caught.py").write_text(f"{HEAD}{rows}}}\n")
    print(f"{len(found)} of {len(MUTATIONS)} mutations caught")
    return 0 if len(found) == len(MUTATIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
