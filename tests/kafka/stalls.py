"""`python -m tests.kafka.stalls --kills 10 [--settings default] [--how freeze] [--kafka 3.9.1]`: how long a group stands still
when one of three brokers goes, and comes back. `make stalls` runs it.

One rule: it is measured from outside, and counted against us: a stall ends when the next committed position is seen, whoever
held it up: workers, the brokers' election, the producer of the input, or this program's own look. Each kill is aimed at the
broker that does something for the group at that moment, and what it did is printed, beside what plain producers saw that
committed on the same brokers (`beside`). Nothing may be lost or doubled meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from state.errors import StateError
from state.log.kafka import broker, facts
from state.log.kafka.broker import Broker
from state.log.kafka.connections import GROUP, TRANSACTION
from state.log.kafka.log import KafkaLog
from state.log.kafka.writers import writer_id
from state.log.protocol import Partition, TopicSpec
from tests.contracts.logs import until
from tests.kafka import beside, three_replicas
from tests.kafka.beside import Beside
from tests.kafka.quorum import controller
from tests.kills.harness import INPUTS, Bank, read_topic

APP = "receipts"
TOPICS = ("payments", "receipts", "receipts-balances-changelog", facts.topic_of(APP))
BARS_S = {"fast": 3.0, "default": 10.0}
LOOK_S, AFTER_S = 0.05, 3.0
GIVE_UP_S, STEADY_S = 120.0, 1.0
ROLES = ("transactions", "inputs", "positions", "controller", "facts")


class Watch:
    """The committed positions, looked at all the time: since when the group, and each input that has records, stands still."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._positions: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._since: dict[Partition, float] = {}
        self._any_since = time.monotonic()
        self.restart()

    def restart(self) -> None:
        """Forget the longest stalls, not one that is under way."""
        self.longest, self.of_a_task, self.commits = 0.0, 0.0, 0

    async def run(self) -> None:
        """For ever. A look of its own for each partition: one whose commit is open, or that has no leader, hides nothing."""
        looking = [asyncio.create_task(look(one)) for one in INPUTS for look in (self._look, self._look_at_end)]
        try:
            await asyncio.gather(*looking)
        finally:
            for one in looking:
                one.cancel()

    async def _look_at_end(self, one: Partition) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._ends |= await self._log.ends([one])
            except StateError:
                continue  # away: there is no more of it than was known

    async def _look(self, one: Partition) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = (await self._log.positions(APP, [one])).get(one, 0)
            except StateError:
                continue
            now = time.monotonic()
            has_more, moved = found < self._ends.get(one, 0), found != self._positions.get(one)
            self.of_a_task = max(self.of_a_task, now - self._since.get(one, now))
            self.longest = max(self.longest, now - self._any_since)
            if moved:
                self.commits += 1
                self._any_since = now
            if moved or not has_more or one not in self._since:
                self._since[one] = now
            self._positions[one] = found

    @property
    def is_steady(self) -> bool:
        """Whether every task has committed within a second."""
        now = time.monotonic()
        return len(self._since) == len(INPUTS) and all(now - one < STEADY_S for one in self._since.values())

    @property
    def stands_for_s(self) -> float:
        return time.monotonic() - self._any_since


@dataclass
class Kill:
    """What one broker did, and how long the group stood still when it went and came back."""

    broker: int
    aimed_at: str
    did: dict[str, int]
    longest_s: float = 0.0
    of_a_task_s: float = 0.0
    back_s: float = 0.0
    beside_s: float = 0.0
    of_one_beside_s: float = 0.0


@dataclass
class Outcome:
    """A life."""

    settings: str
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def worst_s(self) -> float:
        return max((one.longest_s for one in self.kills), default=0.0)


async def roles(log: KafkaLog) -> dict[str, dict[int, int]]:
    """What each broker does for the group now: of how many transactional ids it is the coordinator, and so on."""
    cluster = log._cluster
    connections, names = cluster.connections, cluster.topics.names

    async def coordinator(kind: int, key: str) -> int:
        connections.forget(kind, key)
        return await connections.retried("a coordinator", lambda: connections.coordinator(kind, key))

    found: dict[str, dict[int, int]] = {one: {} for one in ROLES}

    def count(role: str, node: int) -> None:
        found[role][node] = found[role].get(node, 0) + 1

    for writer in {one.transactional_id for one in (await log.owners(APP)).values() if one.transactional_id}:
        count("transactions", await coordinator(TRANSACTION, names.inside(writer_id(APP, writer))))
    count("positions", await coordinator(GROUP, names.inside(APP)))
    for name, layout in (await cluster.topics.refresh(["payments", facts.topic_of(APP)])).items():
        for leader in layout.leaders:
            count("inputs" if name == "payments" else "facts", leader)
    if (node := await controller(connections)) is not None:
        count("controller", node)
    return found


async def in_sync(log: KafkaLog) -> bool:
    """Whether each partition of the app's topics has three replicas in sync."""
    connections = log._cluster.connections
    answer = await connections.retried("metadata", lambda: connections.metadata(list(TOPICS)))
    return all(len(partition[5]) == 3 for topic in answer.topics for partition in topic[4])


class Life:
    """Brokers, a fleet, a steady input; `kill` after `kill`."""

    def __init__(self, brokers: list[Broker], bank: Bank, beside: Beside, look_s: float) -> None:
        self._brokers = brokers
        self._bank = bank
        self._beside = beside
        self._look_s = look_s

    async def kill(self, watch: Watch, role: str, how: str) -> Kill:
        """The broker that does most of this for the group goes, and comes back."""
        log = self._bank.log
        assert isinstance(log, KafkaLog)

        async def steady() -> bool:
            assert self._bank.producer is not None and self._bank.producer.poll() is None, "the input has ended"
            return watch.is_steady

        await until("every task to go on", steady, GIVE_UP_S)
        done = await roles(log)
        number = max(done[role] or {1: 1}, key=lambda node: done[role].get(node, 0))
        one = Kill(number, role, {name: done[name][number] for name in ROLES if number in done[name]})
        struck = self._brokers[number - 1]
        watch.restart()
        self._beside.restart()
        await _gone(struck, how)
        await self._watched(watch, self._look_s)
        one.longest_s, one.of_a_task_s = watch.longest, watch.of_a_task
        one.beside_s, one.of_one_beside_s = self._beside.longest, self._beside.of_one
        watch.restart()
        await _back(struck, how)
        await until("all replicas to be in sync", lambda: in_sync(log), GIVE_UP_S)
        await self._watched(watch, AFTER_S)
        one.back_s = watch.longest
        return one

    async def _watched(self, watch: Watch, seconds: float) -> None:
        """At least so long, and until commits come again."""
        began = time.monotonic()
        while time.monotonic() < began + seconds or not watch.commits:
            assert watch.stands_for_s < GIVE_UP_S, f"nothing was committed for {GIVE_UP_S:.0f} s"
            assert self._bank.producer is not None and self._bank.producer.poll() is None, "the input has ended"
            await asyncio.sleep(LOOK_S)


async def _gone(struck: Broker, how: str) -> None:
    if how == "freeze":
        assert struck.pid is not None
        os.kill(struck.pid, signal.SIGSTOP)
    else:
        await asyncio.to_thread(struck.stop, kill=how == "kill")


async def _back(struck: Broker, how: str) -> None:
    if how == "freeze":
        assert struck.pid is not None
        os.kill(struck.pid, signal.SIGCONT)
    else:
        await asyncio.to_thread(struck.launch)


async def live(
    brokers: list[Broker],
    folder: Path,
    kills: int,
    settings: str = "fast",
    how: str = "kill",
    note: Callable[[str], None] = print,
) -> Outcome:
    """Starts the brokers, and does not stop them."""
    await asyncio.gather(*(asyncio.to_thread(one.launch) for one in brokers))
    look_s = 2 * BARS_S[settings]
    bank = Bank(folder, 1, instances=3, url=f"kafka://{','.join(one.address for one in brokers)}")
    bank.produce_s = 120.0 + kills * (look_s + 60.0)  # more than is needed: it is stopped at the end
    bank.records = int(bank.produce_s * 200)
    await bank.start()
    outcome = Outcome(settings)
    log = bank.log
    assert isinstance(log, KafkaLog)
    watch = Watch(log)
    await log.create_topic(TopicSpec(beside.TOPIC, beside.PARTITIONS))
    others = Beside([one.address for one in brokers])
    watching = [asyncio.create_task(watch.run()), asyncio.create_task(others.run())]
    try:
        await bank.until(bank.records // 100)
        life = Life(brokers, bank, others, look_s)
        for turn in range(kills):
            one = await life.kill(watch, ROLES[turn % len(ROLES)], how)
            outcome.kills.append(one)
            assert all(not task.done() for task in watching), [task.exception() for task in watching if task.done()]
            note(_line(one))
        assert bank.producer is not None
        bank.producer.terminate()
        await asyncio.to_thread(bank.producer.wait, GIVE_UP_S)
        outcome.problems += await _judged(bank)
    except AssertionError as error:
        outcome.problems.append(str(error))
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await bank.stop()
    return outcome


async def _judged(bank: Bank) -> list[str]:
    """The input was cut short: what of it is in the log counts."""
    assert bank.log is not None
    ends = await bank.log.ends(INPUTS, settled=True)

    async def processed() -> bool:
        assert bank.log is not None
        there = await bank.log.positions(APP, INPUTS)
        return all(there.get(one, 0) >= end for one, end in ends.items())

    await until("all of it to be processed", processed, GIVE_UP_S)
    bank.records = len(await read_topic(bank.log, "payments"))
    report = await bank.check("stalls", 0.0)
    wrong: Mapping[str, object] = {
        "lost": report.lost,
        "doubled": report.doubled,
        "wrong balances": report.wrong_balances,
    }
    return [f"{name}: {found}" for name, found in wrong.items() if found]


def _line(one: Kill) -> str:
    return json.dumps(
        {
            "broker": one.broker,
            "aimed at": one.aimed_at,
            "did": one.did,
            "no commit for": round(one.longest_s, 2),
            "a task for": round(one.of_a_task_s, 2),
            "plain producers": [round(one.beside_s, 2), round(one.of_one_beside_s, 2)],
            "when back": round(one.back_s, 2),
        }
    )


async def campaign(kills: int, settings: str, how: str, version: str) -> int:
    """An exit code."""
    folder = Path(tempfile.mkdtemp(prefix="stalls-"))
    brokers = three_replicas.prepared(
        folder, three_replicas.DEFAULTS if settings == "default" else three_replicas.REPLICAS, version
    )
    try:
        outcome = await live(brokers, folder / "life", kills, settings, how, lambda line: print(line, flush=True))
    finally:
        for one in brokers:
            one.stop(kill=True)
    stalls = [one.longest_s for one in outcome.kills]
    bar = BARS_S[settings]
    rows = (
        ("no commit", stalls, bar),
        ("a task", [one.of_a_task_s for one in outcome.kills], None),
        ("plain producers: no commit", [one.beside_s for one in outcome.kills], None),
        ("plain producers: one of them", [one.of_one_beside_s for one in outcome.kills], None),
        ("no commit when it came back", [one.back_s for one in outcome.kills], None),
    )
    print(f"{len(stalls)} times, {how}, {settings} settings, Kafka {version}, load {os.getloadavg()[0]:.1f}")
    for name, found, most in rows:
        if found:
            print(
                f"  {name}: {statistics.median(found):.2f} s at the median, {max(found):.2f} s at most"
                + (f" (bar {most:.0f} s)" if most else "")
            )
    print("\n".join(outcome.problems) or "nothing lost, nothing doubled")
    if outcome.problems:
        print(f"kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return int(outcome.worst_s > bar)


def main() -> int:
    parser = argparse.ArgumentParser(description="How long a group stands still when one of three brokers goes.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--settings", choices=sorted(BARS_S), default="fast")
    parser.add_argument("--how", choices=("kill", "stop", "freeze"), default="kill")
    parser.add_argument("--kafka", default=broker.VERSION, metavar="VERSION")
    args = parser.parse_args()
    return asyncio.run(_interrupted(args))


async def _interrupted(args: argparse.Namespace) -> int:
    """An exit code; SIGTERM ends it as Ctrl-C does, so that nothing is left running."""
    working = asyncio.create_task(campaign(args.kills, args.settings, args.how, args.kafka))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return 143


if __name__ == "__main__":
    sys.exit(main())
