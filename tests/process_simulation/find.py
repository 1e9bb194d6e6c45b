"""`python -m tests.process_simulation.find [--limit 200]`: for each mutation the first seed that notices it, and that
holds without it; writes caught.py. `--mended NAMES` does the same for plans of mended defects: what a process does at its start
moves all that follows, and a plan that depends on a moment misses it then."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from tests.process_simulation.caught import CAUGHT_BY
from tests.process_simulation.chance import stream
from tests.process_simulation.fates import FATES
from tests.process_simulation.mutations import APPLICATION, DIRECTED, MUTATIONS, OF_MENDED
from tests.process_simulation.plan import Plan, draw
from tests.process_simulation.shrink import broken

MENDED = Path(__file__).parent / "mended"
CLUMSY = (TypeError, AttributeError, NameError)
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
        problem, life = broken(plan(name, seed))
    clumsy = [error for error in life.loop.unforeseen if isinstance(error, CLUMSY)]
    if clumsy:  # what it patches has changed: it removes no rule any more
        raise RuntimeError(f"the mutation {name} breaks what it patches: {clumsy[0]!r}") from clumsy[0]
    return problem


def like(kept: Plan, limit: int) -> Iterator[Plan]:
    """The plan itself, and others with its faults at about its times."""
    yield kept
    for seed in range(limit):
        chance, far = stream(seed, "like"), 30 + 2 * seed
        faults = tuple(replace(one, at_ms=max(1, one.at_ms + chance.randrange(-far, far))) for one in kept.faults)
        rate = chance.choice((0.0, kept.order_rate or 0.05, 0.3))
        yield replace(kept, seed=kept.seed + seed % 7, faults=faults, only=None, order_rate=rate)


def find_mended(name: str, limit: int) -> bool:
    """Looks for a plan that breaks without the rule and holds with it, near the one that is kept, and keeps it instead."""
    path = MENDED / f"{name}.json"
    for candidate in like(msgspec.json.decode(path.read_bytes(), type=Plan), limit):
        with ExitStack() as stack:
            OF_MENDED[name](stack)
            problem = broken(candidate)[0]
        if problem is not None and broken(candidate)[0] is None:
            path.write_bytes(msgspec.json.encode(candidate))
            print(f"{name}: {problem[:130]}", flush=True)
            return True
    print(f"{name}: nothing was found in {limit} lives", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--mended", default="", help="instead: plans of mended defects, by name, that do not break any more"
    )
    args = parser.parse_args()
    if args.mended:
        found_all = [find_mended(name, args.limit) for name in args.mended.split(",")]
        return 0 if all(found_all) else 1
    found: dict[str, int] = dict(CAUGHT_BY) if args.only else {}
    for name in filter(None, args.only.split(",")) if args.only else MUTATIONS:
        seeds = [CAUGHT_BY[name]] if name in CAUGHT_BY else []
        for seed in [*seeds, *range(args.limit)]:
            problem = breaks(name, seed)
            if problem is not None and broken(plan(name, seed))[0] is None:
                found[name] = seed
                print(f"{name}: seed {seed}: {problem[:130]}", flush=True)
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
