"""`python -m tests.simulation.find [--limit 200]`: for each mutation the first seed that notices it; writes caught.py."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.simulation.caught import CAUGHT_BY
from tests.simulation.mutations import DIRECTED, MUTATIONS
from tests.simulation.plan import draw
from tests.simulation.world import World

HEAD = '''"""Which seed notices which removed rule: found by `python -m tests.simulation.find`, kept so that the test is quick."""

CAUGHT_BY: dict[str, int] = {
'''


def breaks(name: str, seed: int) -> str | None:
    """What the seed says of the mutation, or None where it notices nothing."""
    with ExitStack() as stack:
        MUTATIONS[name](stack)
        try:
            World(draw(seed, DIRECTED.get(name, ()))).live()
        except TypeError:
            raise  # a mutation that does not fit the code any more breaks by itself
        except Exception as error:  # noqa: BLE001 - whatever breaks was noticed
            return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=200)
    args = parser.parse_args()
    found: dict[str, int] = {}
    for name in MUTATIONS:
        seeds = [CAUGHT_BY[name]] if name in CAUGHT_BY else []
        for seed in [*seeds, *range(args.limit)]:
            told = breaks(name, seed)
            if told is not None:
                found[name] = seed
                print(f"{name}: seed {seed}: {told[:100]}", flush=True)
                break
        else:
            print(f"{name}: survived {args.limit} seeds", flush=True)
    rows = "".join(f'    "{name}": {seed},\n' for name, seed in found.items())
    (Path(__file__).parent / "caught.py").write_text(f"{HEAD}{rows}}}\n")
    print(f"{len(found)} of {len(MUTATIONS)} mutations caught")
    return 0 if len(found) == len(MUTATIONS) else 1


if __name__ == "__main__":
    sys.exit(main())
