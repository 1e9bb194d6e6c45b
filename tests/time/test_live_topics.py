"""Topics as tables in real processes: there when the first record comes, after a kill as before it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console, console_of
from tests.time import desk

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with console_of(desk, tmp_path / "place") as found:
        yield found


def produce(console: Console, topic: str, at: int, pairs: dict[str, Any]) -> None:
    lines = [json.dumps({"key": key, "value": value, "timestamp_ms": at}) for key, value in pairs.items()]
    done = console.here("produce", "desk:app", topic, stdin="\n".join(lines))
    assert done.code == 0, done


def answers(console: Console) -> list[str]:
    done = console.here("consume", "desk", "out")
    return sorted(json.loads(line)["value"] for line in done.out.splitlines())


def test_topics_as_tables(console: Console) -> None:
    names = [f"c{n}" for n in range(8)]
    produce(console, "customers", 1, {name: name.upper() for name in names})
    produce(console, "rates", 1, {"eur": 1, "usd": 2, "gbp": 3, "jpy": 4})
    produce(console, "orders", 2, dict.fromkeys(names, 1))
    rates = [("eur", 1), ("gbp", 3), ("jpy", 4), ("usd", 2)]
    expected = [f"1 {name.upper()} {rates}" for name in names]
    run = console.run("--workers", "2", *FAST)
    console.until("the first answers", lambda: len(answers(console)) >= 8)
    assert answers(console) == expected
    run.send_signal(signal.SIGKILL)
    run.wait()
    console.nothing_left()
    produce(console, "customers", 3, {"c0": "new"})
    produce(console, "rates", 3, {"eur": 9})
    produce(console, "orders", 4, dict.fromkeys(names, 2))
    console.run("--workers", "2", *FAST)
    console.until("all answers", lambda: len(answers(console)) >= 16)
    rates[0] = ("eur", 9)
    later = [f"2 {'new' if name == 'c0' else name.upper()} {rates}" for name in names]
    assert answers(console) == sorted([*expected, *later])
    assert console.here("query", "desk", "customers", "c0").out == '"new"\n'
