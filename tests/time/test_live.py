"""The same app in real processes: their answer is the Driver's, whatever is killed on the way."""

from __future__ import annotations

import json
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.testing import Driver
from tests.cli.console import Console, console_of
from tests.time import watch

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
Beat = tuple[str, str, int, int]  # topic, key, value, time
END_MS = 10_000


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with console_of(watch, tmp_path / "place") as found:
        yield found


def history(count: int, seed: int) -> list[Beat]:
    """Records of some keys, sorted by time within each topic, with pauses; at last one of each key that closes all."""
    chance = random.Random(seed)
    keys = [f"k{n}" for n in range(8)]
    found: list[Beat] = []
    for number in range(count):
        topic = chance.choice(["beats", "beats", "ships"])
        found.append((topic, chance.choice(keys), number, chance.randrange(0, count * 2)))
    found.sort(key=lambda beat: beat[3])
    return found


def driver_answer(records: list[Beat]) -> dict[str, list[str]]:
    """What is sent, by key, in order."""
    with Driver(watch.app) as driver:
        with driver.together():
            for topic, key, value, at in records:
                driver.send(watch.app.topics[topic], key, value, timestamp_ms=at)
        return by_key((item.key, item.value) for item in driver.records(watch.out))


def by_key(pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def produce(console: Console, records: list[Beat]) -> None:
    for topic in ("beats", "ships"):
        lines = [
            json.dumps({"key": key, "value": value, "timestamp_ms": at})
            for of, key, value, at in records
            if of == topic
        ]
        done = console.here("produce", "watch:app", topic, stdin="\n".join(lines))
        assert done.code == 0, done


def live_answer(console: Console) -> dict[str, list[str]]:
    done = console.here("consume", "watch", "out")
    assert done.code == 0, done
    rows = [json.loads(line) for line in done.out.splitlines()]
    return by_key((row["key"], row["value"]) for row in rows)


def test_the_answer_is_that_of_the_driver_through_kills(console: Console) -> None:
    records = history(3_000, 7)
    expected = driver_answer(records)
    produce(console, records)
    chance, all_of_it = random.Random(3), sum(map(len, expected.values()))
    for _ in range(3):
        run = console.run("--workers", "2", *FAST, wait=False)
        before = sum(map(len, live_answer(console).values()))
        more = min(before + chance.randrange(1, 200), all_of_it)
        console.until("some progress", lambda more=more: sum(map(len, live_answer(console).values())) >= more)
        run.send_signal(signal.SIGKILL)
        run.wait()
        console.nothing_left()
    console.run("--workers", "2", *FAST)
    console.until("the end", lambda: sum(map(len, live_answer(console).values())) >= sum(map(len, expected.values())))
    assert live_answer(console) == expected


def test_a_backlog_in_one_input_is_not_late(console: Console) -> None:
    """All of one topic lies in the log, and is long; nothing of the other comes before what it has of an earlier time."""
    records = [("beats", f"k{n % 5}", n, n) for n in range(4_000)]
    records += [("ships", f"k{n % 5}", n, n) for n in range(0, 4_000, 100)]
    expected = driver_answer(sorted(records, key=lambda beat: beat[3]))
    produce(console, records)
    console.run(*FAST)
    console.until("the end", lambda: sum(map(len, live_answer(console).values())) >= sum(map(len, expected.values())))
    assert live_answer(console) == expected
