"""`python -m tests.kills --moments 20 [--seed 7] [--kinds instance,stops-async] [--log kafka://HOST:PORT]`: many lives, each
with one kill, or with three orderly stops; on Kafka each under a prefix of its own."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

from tests.kills.harness import KINDS, SHAPES, Report, life, stops

STOPS = tuple(f"stops-{shape}" for shape in SHAPES)


async def campaign(moments: int, seed: int, kinds: list[str], records: int, log: str | None) -> int:
    choice = random.Random(seed)
    failed = 0
    for kind in kinds:
        fine = 0
        for number in range(moments):
            moment = choice.uniform(0.05, 0.95)
            folder = Path(tempfile.mkdtemp(prefix=f"kill-{kind}-"))
            url = None if log is None else f"{log}?prefix={uuid.uuid4().hex[:10]}-"
            report = await _live(folder, kind, moment, choice, records, url)
            if report.ok:
                fine += 1
                shutil.rmtree(folder)
            else:
                failed += 1
                print(f"{kind} at {moment:.2f} (number {number}): {report}; kept in {folder}", flush=True)
        print(f"{kind}: {fine} of {moments} lives without a lost or doubled record", flush=True)
    return failed


async def _live(folder: Path, kind: str, moment: float, choice: random.Random, records: int, url: str | None) -> Report:
    if kind not in STOPS:
        return await life(folder, kind, moment, records, url)
    moments = sorted([moment, choice.uniform(0.05, 0.95), choice.uniform(0.05, 0.95)])
    return await stops(folder, kind.removeprefix("stops-"), moments, records, url)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill and stop real processes at random moments and check ids.")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=int, default=4_000)
    parser.add_argument("--kinds", default=",".join((*KINDS, *STOPS)))
    parser.add_argument("--log", metavar="kafka://HOST:PORT", help="a broker; without it, a file for each life")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    return 1 if asyncio.run(campaign(args.moments, args.seed, args.kinds.split(","), args.records, args.log)) else 0


if __name__ == "__main__":
    sys.exit(main())
