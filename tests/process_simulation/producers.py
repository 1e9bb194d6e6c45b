"""Lives of `produce --file`: a producer that is killed, stopped, runs twice at once, and meets a log that is busy, full or
silent, over a file that grows. `python -m tests.process_simulation.producers --seeds 500 [--start 0]`.

One rule: once somebody has run it to its end, each line of the file is in the log once, and those of one key in their
order. The command's own writing runs as a simulated process; the file is a real one.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.files.shape import Reading, Shape
from pipeline.values.partitioner import partition_of
from state.errors import StateError
from state.log.memory import MemoryLog
from state.log.protocol import Partition, TopicSpec
from tests.process_simulation.apps import APPS
from tests.process_simulation.chance import Order, stream
from tests.process_simulation.judges import Broken, payment_id, records_of
from tests.process_simulation.loop import Stuck, VirtualLoop
from tests.process_simulation.process import DEAD, Process
from tests.process_simulation.weather import LogClient, Weather
from workers.commands import produce
from workers.commands.produce_end import Ending
from workers.log.produced import begin

APP = APPS["counting"]
TOPIC = APP.topics["payments"]
PARTITIONS, BATCH = 3, 5
LINES, KEYS = 60, 7
MOMENTS_S = 0.4  # in which faults fall: about as long as one run takes
FAULTS = ("kill", "kill-step", "stop", "again", "lock", "full", "away", "unknown", "grow", "rename")


class Silent:
    """The judge of calls: none of a producer's needs one."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **more: None


class ProducerLife:
    """One file, one topic, and the runs of `produce` over it. `live` raises Broken."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.loop = VirtualLoop(seed, Order(seed, stream(seed, "rate").choice((0.0, 0.3))))
        self.log = MemoryLog(clock_ms=lambda: 1)
        self.chance = stream(seed, "producers")
        self.weather = Weather(stream(seed, "log"), self.chance.choice((0.002, 0.03)))
        self.path = folder / "payments.jsonl"
        self.lines: list[str] = []
        self.runs: list[Process] = []

    def live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            control = self.loop.create_task(self._control())
            control.add_done_callback(lambda _: self.loop.stop())
            try:
                self.loop.run_forever()
            except Stuck as error:
                raise Broken(f"rest: {error}") from None
            control.result()
        finally:
            for run in self.runs:
                run.state = DEAD
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _control(self) -> None:
        await self.log.create_topic(TopicSpec(TOPIC.topic, PARTITIONS))
        self._write(self.chance.randrange(1, LINES))
        self._run()
        for _ in range(self.chance.randrange(5)):
            kind = self.chance.choice(FAULTS)
            self.loop.call_later(self.chance.random() * MOMENTS_S, self._fault, kind)
        await asyncio.sleep(MOMENTS_S + 12.0)
        self.weather.unknown = 0
        for run in self.runs:
            if run.state != DEAD:
                raise Broken(f"rest: {run.name} goes on")
        for _ in range(2):  # one that goes on where the others ended, and one that has nothing to do
            self._run()
            if await self.runs[-1].wait():
                raise Broken(f"a run without faults failed: {self.loop.trace[-1][1]}")
        self._judge()

    def _judge(self) -> None:
        expected: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        for number in range(len(self.lines)):
            expected[partition_of(TOPIC.key_codec.encode(_key(number)), PARTITIONS)].append(number)
        for number in range(PARTITIONS):
            found = [payment_id(record.value) for record in records_of(self.log, Partition(TOPIC.topic, number))]
            if found != expected[number]:
                lost, twice = set(expected[number]) - set(found), sorted({n for n in found if found.count(n) > 1})
                raise Broken(f"file: of partition {number} lost {sorted(lost)}, doubled {twice}, or out of order")

    # ---- the file and its runs

    def _write(self, lines: int) -> None:
        begin = len(self.lines)
        self.lines += [
            f'{{"key": "{_key(n)}", "value": {{"id": {n}, "amount": 1, "shop": "s", "cost_ms": 0}}}}\n'
            for n in range(begin, begin + lines)
        ]
        self.path.write_text("".join(self.lines))

    def _run(self) -> None:
        process = Process(self.loop, f"produce {len(self.runs) + 1}")
        self.runs.append(process)
        client: Any = LogClient(self.loop, self.log, self.weather, Silent())  # type: ignore[arg-type]
        client.loses_appends = True
        process.start(self._produce(client))

    async def _produce(self, log: Any) -> int:
        """What the command does once its arguments are read."""
        reading = Reading(TOPIC.topic, TOPIC.key_codec, TOPIC.value_codec)
        try:
            with await begin(log, APP.id, self.path, reading, Shape()) as begun:
                counted = produce.Counted(log, PARTITIONS, lambda: 0.0)
                await produce.Writing(log, APP, TOPIC, counted, 0, begun, Ending(), BATCH).write(begun.records())
        except StateError as error:
            self.loop.tell(f"error: {error}")
            return 1
        return 0

    def _fault(self, kind: str) -> None:
        self.loop.tell(f"FAULT {kind}")
        now, last = self.loop.time(), self.runs[-1]
        lasts = now + self.chance.random() * 3
        match kind:
            case "kill":
                last.signal(signal.SIGKILL)
                self._run()
            case "kill-step":
                last.steps_left = self.chance.randrange(1, 40)
                last.after_steps = lambda: last.signal(signal.SIGKILL)
                self.loop.call_later(0.2, self._run)
            case "stop":  # and continued after another has run
                last.signal(signal.SIGSTOP)
                self.loop.call_later(self.chance.random() * 5, last.signal, signal.SIGCONT)
                self._run()
            case "again":
                self._run()
            case "lock":
                self.weather.locked_until = lasts
            case "full":
                self.weather.full_until = lasts
            case "away":
                self.weather.away_until = lasts
            case "unknown":
                self.weather.unknown += 1
                self.loop.call_later(0.2, self._run)
            case "grow":
                self._write(self.chance.randrange(1, 20))
            case "rename":
                self.path = self.path.rename(self.path.with_name(f"renamed{len(self.runs)}.jsonl"))


def _key(number: int) -> str:
    return f"k{number % KEYS}"


def broken(seed: int) -> str | None:
    """Returns how the life of a seed breaks, or None."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ProducerLife(seed, Path(folder)).live()
        except Broken as error:
            return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    wrong = 0
    for seed in range(args.start, args.start + args.seeds):
        if (error := broken(seed)) is not None:
            wrong += 1
            print(f"seed {seed}: {error}")
    print(f"{args.seeds} lives of producers, {wrong} broken")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
