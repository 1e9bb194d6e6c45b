"""Runs the receipts app for real, kills something at a moment given by how much of the input is processed, checks ids.

One rule: no clock decides when to kill or when to look; both wait for positions in the log, with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from state.log.batches import decode
from state.log.protocol import Log, Partition
from workers.log.logs import open_log

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPES = {
    "sync": "tests.kills.receipts:app",
    "async": "tests.kills.receipts_async:app",
    "batch": "tests.kills.receipts_batch:app",
    "columns": "tests.kills.receipts_columns:app",
    "repeated": "tests.kills.receipts_repeated:app",
}
INPUTS = [Partition("payments", number) for number in range(8)]
DEADLINE_S = 90.0
LOCKED_S = 2.0
ACCOUNTS = 97


@dataclass
class Report:
    """What one life of the group ended with."""

    what: str
    moment: float
    records: int
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    repeats: dict[int, int] = field(default_factory=dict)  # how often each was put out again
    wrong_balances: list[str] = field(default_factory=list)
    changelog_differs: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.wrong_balances or self.changelog_differs)


class Bank:
    """One life: a folder, a fleet, a producer."""

    def __init__(
        self,
        folder: Path,
        records: int,
        instances: int = 3,
        shape: str = "sync",
        url: str | None = None,
        words: Sequence[str] = (),
    ) -> None:
        self.words = words  # of `run`
        self.produce_s = 2.5
        self.session_timeout = "3s"
        self.app = SHAPES[shape]
        self.folder = folder
        self.records = records
        self.instances = instances
        self.runs = 0
        self.url = url or f"sqlite:{folder / 'receipts.db'}"
        self.input = folder / "payments.jsonl"
        self.fleet: subprocess.Popen[bytes] | None = None
        self.producer: subprocess.Popen[bytes] | None = None
        self.log: Log | None = None

    # ---- processes

    def orchestrator(self, *words: str, name: str) -> subprocess.Popen[bytes]:
        output = (self.folder / f"{name}.log").open("ab")
        place = ["--log", self.url, "--state-dir", str(self.folder / "state")]
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words, *place],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, "ORCHESTRATOR_LOG_LEVEL": "INFO", "PYTHONFAULTHANDLER": "1"},
        )

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.input.open("w") as out:
            for number in range(self.records):
                key = f"a{number % ACCOUNTS}"
                out.write(json.dumps({"key": key, "value": {"id": number, "amount": number % 7 - 3}}) + "\n")
        self.log = await open_log(self.url, create=True)
        self.run()
        self.produce()

    def run(self) -> None:
        times = ["--session-timeout", self.session_timeout, "--disconnect-grace", "300ms", "--heartbeat", "300ms"]
        self.runs += 1
        words = (*times, *self.words)
        self.fleet = self.orchestrator("run", self.app, "--instances", str(self.instances), *words, name="fleet")

    async def bounce(self, number: int) -> None:
        """Stop the whole fleet in order, and start it again."""
        assert self.fleet is not None
        await self.announced()
        self.fleet.send_signal(number)
        code = await asyncio.to_thread(self.fleet.wait, DEADLINE_S)
        assert code == (130 if number == signal.SIGINT else 0), (code, (self.folder / "fleet.log").read_text())
        self.run()

    def produce(self) -> None:
        rate = str(self.records / self.produce_s)
        self.producer = self.orchestrator(
            "produce", self.app, "payments", "--file", str(self.input), "--rate", rate, name="produce"
        )

    async def stop(self) -> None:
        for process in (self.producer, self.fleet):
            if process is not None and process.poll() is None:
                process.terminate()
        for process in (self.producer, self.fleet):
            if process is not None:
                try:
                    await asyncio.to_thread(process.wait, 30)
                except subprocess.TimeoutExpired:
                    process.kill()
        if self.log is not None:
            await self.log.close()

    # ---- looking

    async def announced(self) -> None:
        """Wait until the fleet that was started last hears signals."""
        deadline = time.monotonic() + DEADLINE_S
        while (self.folder / "fleet.log").read_text().count(" tasks, ") < self.runs:
            assert time.monotonic() < deadline, (self.folder / "fleet.log").read_text()
            await asyncio.sleep(0.02)

    async def processed(self) -> int:
        """About how many payments: on Kafka positions count markers, too."""
        assert self.log is not None
        return sum((await self.log.positions("receipts", INPUTS)).values())

    async def finished(self) -> None:
        """Wait until everything is written and processed."""
        assert self.producer is not None and self.log is not None
        assert await asyncio.to_thread(self.producer.wait, DEADLINE_S) == 0, (self.folder / "produce.log").read_text()
        ends = await self.log.ends(INPUTS, settled=True)
        deadline = time.monotonic() + DEADLINE_S
        while left := _behind(await self.log.positions("receipts", INPUTS), ends):
            assert time.monotonic() < deadline, f"{left} of {ends} after {DEADLINE_S:.0f} s; {self.printed()}"
            await asyncio.sleep(0.02)

    async def until(self, records: int) -> None:
        """Wait until so many payments are processed."""
        deadline = time.monotonic() + DEADLINE_S
        while (done := await self.processed()) < records:
            if time.monotonic() > deadline:
                raise AssertionError(f"{done} of {self.records} processed after {DEADLINE_S:.0f} s; {self.printed()}")
            await asyncio.sleep(0.02)

    def printed(self) -> str:
        """What the processes have shown last, for a failure of which nothing else may be left, and where each thread of those that
        still run is: they are ended by it."""
        asked = self.orchestrator("status", "receipts", name="status")
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(30)
        asked.kill()
        started = {"fleet": self.fleet, "produce": self.producer}
        ends = {name: process and process.poll() for name, process in started.items()}
        shown = {name: (self.folder / f"{name}.log").read_text() for name in started}
        for name, process in started.items():
            if process is not None and ends[name] is None:
                for pid in _tree(process.pid):  # the children first
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGABRT)
                process.wait(10)
        stacks = {name: (self.folder / f"{name}.log").read_text()[len(shown[name]) :] for name in started}
        status = (self.folder / "status.log").read_text()
        return status + "\n".join(
            f"{name} ({ends[name]}): {shown[name][-1_500:]}\n{stacks[name][:20_000]}" for name in started
        )

    async def told(self, *words: str) -> str:
        """What a command prints."""
        process = self.orchestrator(*words, name=words[0])
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
        return (self.folder / f"{words[0]}.log").read_text().rpartition("generation")[2]

    async def shows(self, text: str, *words: str) -> None:
        """Wait until a command prints this."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in (found := await self.told(*words)):
            assert time.monotonic() < deadline, found

    async def holder(self) -> str:
        """The instance that hosts the coordinator."""
        assert self.log is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            lease = await self.log.lease("receipts")
            if lease is not None:
                return lease.holder
            await asyncio.sleep(0.02)
        raise AssertionError("no coordinator was elected")

    def pids(self, instance: str) -> tuple[int, list[int]]:
        """The parent of an instance and its children, from its journal and the kernel."""
        rows = [
            json.loads(line)
            for line in (self.folder / "state/receipts" / instance / "journal.jsonl").read_text().splitlines()
        ]
        parent = [row["pid"] for row in rows if row["what"] == "instance"][-1]
        children = Path(f"/proc/{parent}/task/{parent}/children")
        return parent, [int(p) for p in children.read_text().split()] if children.exists() else []

    def signal(self, instance: str, number: int) -> list[int]:
        parent, children = self.pids(instance)
        for pid in (parent, *children):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return [parent, *children]

    def is_locked(self) -> bool:
        """Whether a process has held the embedded log for longer than any write takes. Blocks."""
        if not self.url.startswith("sqlite:"):
            return False
        log = sqlite3.connect(self.folder / "receipts.db", timeout=LOCKED_S, isolation_level=None)
        try:
            log.execute("begin immediate")
            log.execute("rollback")
        except sqlite3.OperationalError:
            return True
        finally:
            log.close()
        return False

    # ---- the end

    async def check(self, what: str, moment: float) -> Report:
        """Compare receipts by id, balances by key, and the changelog with the balances."""
        assert self.log is not None
        report = Report(what, moment, self.records)
        found: Counter[int] = Counter()
        for _, record in await read_topic(self.log, "receipts"):
            assert record.value is not None
            found[int.from_bytes(record.value, "big", signed=True)] += 1
        report.lost = [n for n in range(self.records) if n not in found]
        report.repeats = {n: times - 1 for n, times in found.items() if times > 1}
        report.doubled = list(report.repeats)
        expected: Counter[str] = Counter()
        for number in range(self.records):
            expected[f"a{number % ACCOUNTS}"] += (number % 7 - 3) * found[number]
        last: dict[str, int] = {}
        for _, record in await read_topic(self.log, "receipts-balances-changelog"):
            assert record.key is not None and record.value is not None
            last[record.key.decode()] = int.from_bytes(record.value, "big", signed=True)
        report.wrong_balances = [key for key in expected if last.get(key) != expected[key]]
        return report


def _tree(pid: int) -> list[int]:
    """A process and its descendants, each behind its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(one) for one in children.read_text().split()] if children.exists() else []
    return [*(one for child in below for one in _tree(child)), pid]


def _behind(positions: dict[Partition, int], ends: dict[Partition, int]) -> dict[Partition, int]:
    return {one: positions.get(one, 0) for one, end in ends.items() if positions.get(one, 0) < end}


async def read_topic(log: Log, topic: str) -> list[tuple[Partition, object]]:
    from workers.commands.consume import read_all

    info = (await log.topics([topic]))[topic]
    await log.ends([Partition(topic, number) for number in range(info.partitions)], settled=True)
    return await read_all(log, topic)  # type: ignore[return-value]


async def life(
    folder: Path, what: str, moment: float, records: int = 4_000, url: str | None = None, shape: str = "sync"
) -> Report:
    """One life in which `what` is killed when the share `moment` of the input is processed."""
    bank = Bank(folder, records, url=url, shape=shape)
    await bank.start()
    try:
        await bank.until(int(records * moment))
        await strike(bank, what, random.Random(moment))
        await bank.finished()
        return await bank.check(what, moment)
    finally:
        await bank.stop()


async def stops(
    folder: Path, shape: str, moments: Sequence[float], records: int = 4_000, url: str | None = None
) -> Report:
    """One life in which the fleet is stopped in order, by SIGTERM and Ctrl-C in turn, at these shares of the input."""
    bank = Bank(folder, records, instances=2, shape=shape, url=url)
    await bank.start()
    try:
        for turn, moment in enumerate(moments):
            await bank.until(max(int(records * moment), min(await bank.processed() + 50, records)))
            await bank.bounce(signal.SIGINT if turn % 2 else signal.SIGTERM)
        await bank.finished()
        return await bank.check(f"stops of {shape}", moments[0])
    finally:
        await bank.stop()


async def scaled(
    folder: Path,
    words: Sequence[str],
    *,
    kill: bool = False,
    records: int = 4_000,
    shape: str = "sync",
    url: str | None = None,
) -> Report:
    """One life in which the fleet is scaled up and down under load; with `kill` the coordinator's instance is killed while
    it is scaled up."""
    bank = Bank(folder, records, instances=2, shape=shape, words=words, url=url)
    bank.produce_s = 5.0
    await bank.start()
    try:
        await bank.until(records // 10)
        scaling = bank.orchestrator("scale-up", "receipts", "--to", "3", name="scale")
        if kill:
            journal = folder / "state/receipts/i3/journal.jsonl"
            deadline = time.monotonic() + DEADLINE_S
            while not journal.exists():
                assert time.monotonic() < deadline, (folder / "scale.log").read_text()
                await asyncio.sleep(0.01)
            bank.signal(await bank.holder(), signal.SIGKILL)
        for process in (scaling, None):
            ended = process or bank.orchestrator("scale-down", "receipts", "--to", "1", "--wait", name="scale")
            code = await asyncio.to_thread(ended.wait, DEADLINE_S)
            assert code == 0, (folder / "scale.log").read_text()
        await bank.finished()
        return await bank.check("scaling", 0.1)
    finally:
        await bank.stop()


async def strike(bank: Bank, what: str, choice: random.Random) -> None:
    """Kill -9 (or stop and continue) what the name says."""
    names = [f"i{n}" for n in range(1, bank.instances + 1)]
    host = await bank.holder()
    other = choice.choice([name for name in names if name != host])
    if what == "instance":
        bank.signal(other, signal.SIGKILL)
    elif what == "coordinator":
        bank.signal(host, signal.SIGKILL)
    elif what == "both":
        bank.signal(host, signal.SIGKILL)
        bank.signal(other, signal.SIGKILL)
    elif what == "produce":
        assert bank.producer is not None
        bank.producer.kill()
        bank.producer.wait()
        bank.produce()
    elif what == "stall":
        pids = bank.signal(other, signal.SIGSTOP)
        while await asyncio.to_thread(bank.is_locked):  # stopped within a write: nobody can, until it goes on
            bank.signal(other, signal.SIGCONT)
            await asyncio.sleep(choice.uniform(0.01, 0.1))
            bank.signal(other, signal.SIGSTOP)
        await fenced(bank, other)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
    else:
        raise ValueError(what)


async def fenced(bank: Bank, instance: str) -> None:
    """Until no owner record names the instance's writer any more."""
    assert bank.log is not None
    deadline = time.monotonic() + DEADLINE_S
    while any(o.transactional_id and o.member == instance for o in (await bank.log.owners("receipts")).values()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{instance} was stopped and never fenced")
        await asyncio.sleep(0.05)


KINDS = ("instance", "coordinator", "both", "produce", "stall")
__all__ = ["KINDS", "Bank", "Report", "decode", "life"]
