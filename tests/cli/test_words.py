"""What people read: one of a thing is not many, a number has its unit, and a table fits a terminal."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.demo.measure import listed
from orchestrator.names import counted
from tests.cli.console import Console
from workers.commands import scale_down, status
from workers.commands.show import WIDTH, table, warn_of_idle

ODD = re.compile(r"(?<![\d.>] )\b1 (tasks|instances|workers|records|standbys|partitions|bytes|entries|members|moves)\b")
TWO = """
from orchestrator import App, Record, Table

app = App("two", partitions=2)
words = app.topic("words", key=str, value=str)
last = app.table("last", key=str, value=str)


@app.processor(words, last)
def see(word: Record[str, str], last: Table[str, str]) -> None:
    last[word.key] = word.value
"""


def test_one_is_not_many() -> None:
    assert [counted(count, "task") for count in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert [counted(count, "entry") for count in (1, 2)] == ["1 entry", "2 entries"]
    assert listed(Counter({"changelog": 1, "snapshot": 8})) == "snapshot 8, changelog 1"


def test_a_scale_down_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    scale_down.Progress(quiet=False).show(1, 1)
    assert capsys.readouterr().err == "1 task to move, 1 instance still leaving\n"
    move = {"task": "0_1", "from": "i2", "bytes": 1, "ready_copy": True}
    facts: dict[str, Any] = {
        "plan": "p",
        "from": 2,
        "to": 1,
        "leaving": ["i2"],
        "moves": [move],
        "moved": 1,
        "disturbed": 1,
    }
    facts["hand_overs"] = {"max_ms": 7}
    for outcome in ("planned", "running", "done"):
        text = scale_down._text({**facts, "outcome": outcome})
        assert not ODD.search(text) and "2 -> 1 instance" in text, text
        assert outcome != "planned" or text.startswith("plan p: 2 -> 1 instance, i2 leaves\n")
    assert text == "2 -> 1 instance; 1 task moved; longest pause 7 ms; 1 other task paused too"


def test_nothing_to_do_says_why() -> None:
    def why(**args: str | None) -> str:
        given = Namespace(**{"to": None, "by": None, "instances": None, **args})
        return scale_down._why_nothing(given, {"from": 3})

    assert why(by="10%") == "3 instances run, and --by 10% of that is less than one"
    assert why(to="7") == "3 instances run, and --to 7 lets all of them stay"


def test_a_table_is_as_wide_as_a_terminal() -> None:
    rows = [("0_1", ["i2 (10 behind)", "i3 (0 behind)"]), ("0_2", []), ("0_3", None)]
    narrow = table(rows, ("task", "copies"))
    assert narrow.splitlines()[1] == "0_1   i2 (10 behind), i3 (0 behind)" and narrow.splitlines()[3] == "0_3   -"
    many = [f"instance-{n} ({n * 1000} behind)" for n in range(9)]
    broken = table([("0_1", many), ("0_2", ["i2 (0 behind)"])], ("task", "copies")).splitlines()
    assert max(map(len, broken)) <= WIDTH and len(broken) == 11
    assert broken[1].split()[0] == "0_1" and [line.strip() for line in broken[2:10]] == many[1:]


def test_status_of_a_large_group_fits() -> None:
    copies = [{"instance": f"i{n}", "restore_lag": 123_456_789} for n in (10, 11, 12)]
    task = {"active": "i13", "epoch": 1234, "input_lag": 123_456_789, "learners": copies[:2], "standbys": copies}
    row = {
        "state": "running",
        "load": 12,
        "host": "worker-17.example.com",
        "pid": 123456,
        "notices": [],
        "guarantees": [],
        "app_versions": ["2026.11.29"],
        "package_versions": ["0.1.0", "0.2.0"],
    }
    facts: dict[str, Any] = {
        "application": "bank",
        "generation": 12,
        "protocol": "learner",
        "guarantee": "exactly-once",
        "stable": True,
        "coordinator": {"instance": "i13"},
        "instances": [{"id": "i13", **row}],
        "tasks": [{"id": f"10_{n}", **task, "records_per_s": 123_456.7} for n in range(3)],
        "records_per_s": 370_370.1,
        "input_lag": 370_370_367,
        "versions": [{"tasks": 40, "partitions": {"10": 40}, "instances": [f"i{n}"]} for n in range(2)],
        "topics": [{"name": "n" * 30, "kind": "repartition", "partitions": 40, "offsets": 10**12, "read_by": [0, 1]}],
    }
    lines = status.text(facts).splitlines()
    assert max(map(len, lines)) <= WIDTH, max(lines, key=len)
    assert sum("123456789 behind" in line for line in lines) == 9
    assert "370370 records/s  370370367 records waiting" in lines and "a version with 40 tasks on i1" in lines
    assert "stream-orchestrator 0.2.0 on i13" in lines and any(line.endswith("123456  2026.11.29") for line in lines)
    one = status.text({**facts, "records_per_s": 1.2, "input_lag": 1}).splitlines()
    assert "1 record/s  1 record waiting" in one and "- records/s  - records waiting" in status.text(
        {**facts, "records_per_s": None, "input_lag": None}
    )


def test_more_workers_than_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_idle(8, 8)
    assert capsys.readouterr().err == ""
    warn_of_idle(9, 8)
    assert capsys.readouterr().err == "warning: 9 workers for 8 tasks: 1 of them runs none, but may hold copies\n"


@pytest.mark.processes
def test_a_fleet_that_is_too_large_is_told(tmp_path: Path) -> None:
    console = Console(tmp_path / "place", app="two")
    try:
        console.write("two.py", TWO)
        fleet = console.run("--heartbeat", "200ms", "--log-level", "INFO", instances=3)
        assert "warning: 3 workers for 2 tasks: 1 of them runs none, but may hold copies\n" in console.said("run")
        grown = console.here("scale-up", "two", "--to", "120%", "--wait")
        assert grown.code == 0 and "warning: 4 workers for 2 tasks: 2 of them run none" in grown.err, grown
        assert console.here("wait", "two", "--instances", "4").out.endswith(" instances\n")
        left = console.here("scale-down", "two", "--to", "1", "--wait")
        assert left.code == 0 and not ODD.search(left.out + left.err) and "-> 1 instance;" in left.out, left
        console.until("one instance", lambda: console.here("wait", "two").out.endswith(", 1 instance\n"))
        again = console.here("scale-down", "two", "--to", "1")
        assert again.out == "nothing to do: 1 instance runs, and --to 1 lets all of them stay\n", again
        assert console.here("scale-down", "two", "--undo").out == "nothing to do: no scale-down runs\n"
        fleet.terminate()
        assert console.end(fleet) == 0
        assert "None" not in console.said("run")
    finally:
        console.close()
