"""Joins of tables in real processes: after kills and a scale-up the last result of each key is the definition's."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console, console_of
from tests.spark.test_table_joins import Change, driver_answer, history
from tests.time import market

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with console_of(market, tmp_path / "place") as found:
        yield found


def produce(console: Console, changes: list[Change]) -> None:
    for topic in ("orders", "customers", "payments", "people"):
        lines = [
            json.dumps({"key": key, "value": value, "timestamp_ms": at})
            for of, key, value, at in changes
            if of == topic
        ]
        done = console.here("produce", "market:app", topic, stdin="\n".join(lines))
        assert done.code == 0, done


def live_answer(console: Console) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for topic in ("enriched", "settled", "chiefs"):
        done = console.here("consume", "market", topic)
        assert done.code == 0, done
        rows = [json.loads(line) for line in done.out.splitlines()]
        found[topic] = {key: value for key, value in {row["key"]: row["value"] for row in rows}.items() if value}
    return found


def test_the_results_are_those_of_the_driver_through_kills_and_a_scale_up(console: Console) -> None:
    changes = history(2_000, 11)
    expected, _ = driver_answer(changes)
    produce(console, changes[:1_000])
    run = console.run("--instances", "2", *FAST)
    console.until("the first results", lambda: any(live_answer(console).values()))
    produce(console, changes[1_000:1_500])
    run.send_signal(signal.SIGKILL)
    run.wait()
    console.nothing_left()
    console.run("--instances", "2", *FAST)
    produce(console, changes[1_500:])
    done = console.here("scale-up", "market", "--to", "3", "--wait")
    assert done.code == 0, done
    console.until("the last results", lambda: live_answer(console) == expected)
