"""The tour's producer, a process of its own: the live months at a steady rate, until a file says that it may hurry.

One rule: how far it came is committed with its records, so that starting it again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from examples.demo.events import append, events
from orchestrator.clocks import monotonic_s
from state.log.group_store import AppMetadata, MetadataKind
from state.log.sqlite import open_sqlite

TICK_S = 0.05
PROGRESS = ("flights", MetadataKind("produce"), "demo")


async def produce(log_path: Path, first: int, last: int, rate: int, hurry: Path) -> int:
    """Append the events of months `first` to `last`, `rate` a second; returns how many there are."""
    found = events(first, last)
    log = await open_sqlite(log_path, create=False)
    try:
        seen = await log.metadata(*PROGRESS)
        done = int(seen or b"0")
        started, begun = monotonic_s(), done
        while done < len(found):
            due = min(len(found), begun + int((monotonic_s() - started) * rate) + 1)
            if hurry.exists():
                due = min(len(found), max(due, done + 1_000))
            if due > done:
                progress = AppMetadata(*PROGRESS, str(due).encode())
                await append(log, found[done:due], progress, seen)
                done, seen = due, progress.value
            await asyncio.sleep(TICK_S)
    finally:
        await log.close()
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--last", type=int, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--hurry", type=Path, required=True)
    args = parser.parse_args()
    print(asyncio.run(produce(args.log, args.first, args.last, args.rate, args.hurry)), "records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
