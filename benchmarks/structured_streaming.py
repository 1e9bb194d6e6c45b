"""A count by key from Kafka to Kafka, ours and in Spark's Structured Streaming: `make bench-streaming` (Java, Linux).

One rule: a row is what one job did on the same broker in one run, seen from outside: when its counts could be read, the CPU time of
its processes, and whether its counts are right at the end. The broker's own time is its own. Spark is measured where STREAMING_PYTHON
names a Python whose pyspark has a Kafka connector of its version; its first run is of the network, which fetches the connector.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path

import msgspec

from benchmarks.section import write_section
from benchmarks.streaming_apps import PARTITIONS
from benchmarks.streaming_sides import STREAMING_PYTHON, Job, Ours, Place, Side, SideFailed, Streaming, ours, spark
from benchmarks.streaming_tables import Drain, Measured, Phase, Steady, text
from benchmarks.streaming_watch import Load, Watch, fill, key_of, last_counts
from state.log.kafka import broker
from state.log.protocol import GroupLog, Partition, TopicSpec
from workers.log.logs import open_log

PAGE = Path(__file__).parent.parent / "docs" / "structured-streaming.md"
KEYS = 20_000
BEFORE = 200_000  # records that a job counts before it is timed
WARM = 1_000_000  # records behind which Spark is measured: until then Java has not compiled its loops
AFTER_S = 6.0  # of a change: how long behind its end a gap counts as its own
ANSWER_S, DRAIN_S = 120.0, 200.0


@asynccontextmanager
async def a_place() -> AsyncIterator[tuple[Place, GroupLog]]:
    """A broker of its own, and a client of it."""
    with tempfile.TemporaryDirectory() as root:
        made = broker.prepare(Path(root) / "broker")
        made.launch()
        try:
            place = Place(made.address, Path(root))
            log = await open_log(place.url, create=False)
            try:
                yield place, log
            finally:
                await log.close()
        finally:
            made.stop(kill=True)


async def steady(place: Place, log: GroupLog, side: Side, number: int, rate: int, window_s: float) -> Steady:
    """One job under a steady load: on one core's worth, growing, on two."""
    job = Job(f"s{number}", f"s{number}", f"s{number}-out")
    await fill(log, job.topic, BEFORE, KEYS)
    await log.create_topic(TopicSpec(job.out, PARTITIONS))
    load = Load(log, job.topic, rate, KEYS, BEFORE)
    watch = Watch(log, job.out, load)
    watching = asyncio.create_task(watch.run())
    try:
        await side.start(place, job, 1)
        await _counted(watch, BEFORE, watching, side)
        loading = asyncio.create_task(load.run())
        await asyncio.sleep(side.warm_s)
        one = await _window(side, window_s)
        began = time.monotonic()
        how = await side.grow()
        ended = time.monotonic()
        await asyncio.sleep(AFTER_S)
        change = Phase(began, time.monotonic(), None)
        await asyncio.sleep(side.warm_s)
        two = await _window(side, window_s)
        load.stopped = True
        await loading
        await _counted(watch, load.total(), watching, side)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await side.stop()
    start_s = side.driver_start_s if isinstance(side, Streaming) else None
    return Steady(
        side.label, side.guarantee, rate, one, change, two, how, ended - began, start_s, watch.seen, watch.wrong()
    )


async def _window(side: Side, seconds: float) -> Phase:
    began, cpu = time.monotonic(), side.cpu_s()
    await asyncio.sleep(seconds)
    ended = time.monotonic()
    return Phase(began, ended, (side.cpu_s() - cpu) / (ended - began))


async def _counted(watch: Watch, records: int, watching: asyncio.Task[None], side: Side) -> None:
    deadline = time.monotonic() + ANSWER_S
    while watch.total() < records:
        if watching.done():
            await watching
        if time.monotonic() > deadline:
            raise SideFailed(
                f"{watch.total()} of {records} records were counted within {ANSWER_S:.0f} s: {side.last_words()}"
            )
        await asyncio.sleep(0.1)


async def drains(
    place: Place, log: GroupLog, side: Side, number: int, inputs: dict[str, int], records: int
) -> list[Drain]:
    """The backlog of each input, on two cores' worth, with the answers checked."""
    found: list[Drain] = []
    try:
        if isinstance(side, Streaming):
            await side.warm_up(place, "warm", 2)
        for name, keys in inputs.items():
            out = f"{name}-out-{number}"
            await log.create_topic(TopicSpec(out, PARTITIONS))
            try:
                if isinstance(side, Streaming):
                    counted, seconds, cpu = await _drain_spark(side, name, out, records)
                else:
                    assert isinstance(side, Ours)
                    counted, seconds, cpu = await _drain_ours(
                        log, place, side, Job(f"d{number}-{name}", name, out), records
                    )
            except SideFailed as error:
                print(f"{name:8} {side.label:45} not measured: {error}", flush=True)
                found.append(Drain(side.label, side.guarantee, name, records, 0.0, 0.0, 0, 0, gave_up_s=DRAIN_S))
                continue
            counts, outputs = await last_counts(log, out)
            wrong = sum(counts.get(key, 0) != count for key, count in _expected(records, keys).items())
            found.append(
                Drain(side.label, side.guarantee, name, records, counted / seconds, cpu / counted, outputs, wrong)
            )
            print(
                f"{name:8} {side.label:45} {counted / seconds:10,.0f} records/s {cpu / counted * 1e6:8.2f} CPU-s",
                flush=True,
            )
            await log.delete_topic(out)
    finally:
        await side.stop()
    return found


def _expected(records: int, keys: int) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for number in range(records):
        key = b"key-%012d" % key_of(number, keys)
        found[key] = found.get(key, 0) + 1
    return found


async def _drain_spark(side: Streaming, topic: str, out: str, records: int) -> tuple[int, float, float]:
    """From the start of its query to its end: Java is warm, and the query's own start is some hundredths of its time."""
    began, cpu = time.monotonic(), side.cpu_s()
    await side.drain(topic, out, DRAIN_S)
    return records, time.monotonic() - began, side.cpu_s() - cpu


async def _drain_ours(log: GroupLog, place: Place, side: Ours, job: Job, records: int) -> tuple[int, float, float]:
    """From its first commit to its last."""
    inputs = [Partition(job.topic, number) for number in range(PARTITIONS)]
    end = sum((await log.ends(inputs)).values())
    await side.start(place, job, 2)
    begun: tuple[int, float, float] | None = None
    deadline = time.monotonic() + DRAIN_S
    try:
        while time.monotonic() < deadline:
            done = sum((await log.positions(side.application(), inputs)).values())
            if done and begun is None:
                begun = done, time.monotonic(), side.cpu_s()
            if done >= end and begun is not None:
                return end - begun[0], time.monotonic() - begun[1], side.cpu_s() - begun[2]
            await asyncio.sleep(0.02)
    finally:
        await side.stop()
    raise SideFailed(f"{records} records were not counted within {DRAIN_S:.0f} s: {side.last_words()}")


async def measure(args: argparse.Namespace, sides: list[Side], found: Measured, keep: Callable[[], None]) -> None:
    async with a_place() as (place, log):
        found.loads.append(os.getloadavg()[0])
        if "steady" in args.parts:
            for number, side in enumerate(side for side in sides if side.form != "batch"):  # as `record` at such a rate
                print(f"steady   {side.label}", flush=True)
                try:
                    found.steady.append(await steady(place, log, side, number, args.rate, args.window))
                except SideFailed as error:
                    print(f"not measured: {error}", flush=True)
                keep()
        if "drain" in args.parts:
            inputs = {"hot": KEYS, "unique": args.records}
            for name, keys in {"warm": KEYS, **inputs}.items():
                await fill(log, name, args.warm if name == "warm" else args.records, keys)
            for number, side in enumerate(side for side in sides if not side.frequent):
                await log.create_topic(TopicSpec(f"warm-out-{side.form}", PARTITIONS))
                found.drains += await drains(place, log, side, number, inputs, args.records)
                keep()
        found.loads.append(os.getloadavg()[0])


def chosen(args: argparse.Namespace) -> list[Side]:
    found = (ours() if "ours" in args.sides else []) + (
        spark(os.environ.get(STREAMING_PYTHON) or None) if "spark" in args.sides else []
    )
    return [side for side in found if not args.forms or side.form in args.forms.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="A count by key, ours and in Spark's Structured Streaming.")
    parser.add_argument("--parts", default="steady,drain")
    parser.add_argument("--sides", default="ours,spark")
    parser.add_argument("--forms", default="", help="of the sides, those alone")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--window", type=float, default=15.0, help="seconds of each window under the steady load")
    parser.add_argument("--records", type=int, default=1_000_000, help="of each backlog")
    parser.add_argument(
        "--into", type=Path, help="keeps what was measured in this file, with what runs before left there"
    )
    parser.add_argument("--warm", type=int, default=WARM, help="records that Spark counts before a backlog")
    parser.add_argument("--dry", action="store_true", help="print alone; the page stays")
    args = parser.parse_args()
    sides, found, before = chosen(args), Measured([], [], [], ""), Measured([], [], [], "")
    if args.into is not None and args.into.exists():
        before = msgspec.json.decode(args.into.read_bytes(), type=Measured)

    def together() -> Measured:
        found.version = next((side.version for side in sides if isinstance(side, Streaming) and side.version), "")
        return before.with_more(found)

    def keep() -> None:
        if args.into is not None:
            args.into.write_bytes(msgspec.json.encode(together()))

    if args.parts:
        asyncio.run(measure(args, sides, found, keep))
    keep()
    head = f"{date.today()}; {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    shown = text(together(), f"{head}, one broker {broker.VERSION} on the same two cores")
    print(shown)
    if not args.dry:
        write_section(PAGE, "streaming", shown)


if __name__ == "__main__":
    main()
