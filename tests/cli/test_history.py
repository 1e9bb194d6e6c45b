"""`orchestrator history`: what real instances wrote down of moves, and why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console
from workers.commands.history import events, line
from workers.journal import read_journals

SOON = ("--heartbeat", "200ms", "--disconnect-grace", "200ms", "--session-timeout", "3s")


def moves(console: Console, *words: str) -> list[dict[str, Any]]:
    done = console.here("history", "bank", "--json", *words)
    assert done.code == 0, done
    return [event for event in done.json["events"] if event["what"] == "moved"]


@pytest.mark.processes
def test_where_the_state_was_found_above(console: Console) -> None:
    """Up, down and a crash: each with its reason; and it is there when nothing runs."""
    run = console.bank().run(*SOON, instances=1)
    console.pay(*((f"k{number}", 1) for number in range(30)))
    assert console.here("scale-up", "bank", "--to", "2", "--wait").code == 0
    console.until("moves up", lambda: len(moves(console)) >= 4)
    assert {(event["from"], event["to"], event["why"]) for event in moves(console)} == {("i1", "i2", "balance")}
    log = str(console.folder / ".orchestrator" / "bank.db")

    done = console.here("scale-down", "bank", "--instances", "i2", "--wait", "--json")
    assert done.code == 0, done
    console.until("moves down", lambda: len(moves(console)) >= 8)
    down = [event for event in moves(console) if event["from"] == "i2"]
    assert {event["why"] for event in down} == {f"i2 leaves, scale-down {done.json['plan']}"}
    assert all(event["pause_ms"] is None or event["pause_ms"] >= 0 for event in down)
    assert all(event["restored_from"] for event in down), down

    run.terminate()
    assert console.end(run) == 0
    deeper = console.folder / "deeper"
    deeper.mkdir()
    rows = read_journals(console.folder / ".orchestrator/state/bank")
    assert len({row["log_id"] for row in rows if row["what"] in ("started", "handed over")}) == 1
    shown = console("history", "bank", cwd=deeper)
    assert shown.code == 0 and "i2 -> i1" in shown.out and "i1  started, process" in shown.out, shown
    assert "leaves, scale-down" in shown.out
    assert console.here("history", "bank", "--log", f"sqlite:{log}").out == shown.out
    assert moves(console, "--since", "1h") == moves(console) and moves(console, "--since", "1ms") == []
    assert console.here("history", "bank", "--since", "1ms").out == "nothing happened in that time\n"


@pytest.mark.processes
def test_a_crash_is_the_reason(console: Console) -> None:
    console.bank().run(*SOON, "--standbys", "1", instances=2)
    status = console.here("status", "bank", "--json").json
    host = status["coordinator"]["instance"]
    [other] = [row for row in status["instances"] if row["id"] != host]
    os.kill(other["pid"], signal.SIGSTOP)
    try:
        gone = f"{other['id']} was "
        console.until("its move", lambda: any(event["why"].startswith(gone) for event in moves(console)))
        console.until("a warm copy", lambda: any(event["level_ms"] is not None for event in moves(console)))
    finally:
        with contextlib.suppress(ProcessLookupError):  # its parent may have been quicker
            os.kill(other["pid"], signal.SIGKILL)


@pytest.mark.processes
def test_a_state_folder_that_was_named(console: Console) -> None:
    run = console.bank().run("--state-dir", "elsewhere", instances=1)
    run.terminate()
    assert console.end(run) == 0
    assert "-> i1" in console.here("history", "bank", "--state-dir", "elsewhere").out
    wrong = console.here("history", "bank")
    assert wrong.code == 2 and "no instance of 'bank' has written a journal" in wrong.err


def test_a_move_is_one_event_and_a_torn_line_costs_itself(console: Console) -> None:
    start = {"what": "started", "task": "0_1", "epoch": 2, "instance": "i2", "source": "disk", "restored_from": 3}
    over = {
        "what": "handed over",
        "task": "0_1",
        "epoch": 2,
        "from": "i1",
        "to": "i2",
        "why": "balance",
        "instance": "i1",
    }
    rows: list[dict[str, Any]] = [
        {"at_ms": 5, **start, "position": 10, "opened_ms": 7},
        {"at_ms": 6, **over, "gap_ms": None, "pause_ms": 2},
        {"at_ms": 8, **over, "gap_ms": 30, "pause_ms": 2},
    ]
    [event] = events(rows)
    assert (event["at_ms"], event["gap_ms"], event["restored_offsets"], event["coordinator"]) == (6, 30, 7, "i1")
    assert "0_1  i1 -> i2  balance; pause 2 ms; gap 30 ms; 7 offsets restored from disk, ready after 7 ms" in line(
        event
    )
    assert event["level_ms"] is None, "a journal of an earlier version"
    folder = console.folder / ".orchestrator/state/bank/i1"
    folder.mkdir(parents=True)
    Path(folder, "journal.jsonl").write_text("\n".join([*map(json.dumps, rows), '{"at_ms": 9, "wha']))
    assert moves(console) == [event]


def test_how_long_a_copy_was_kept_is_no_part_of_its_restore() -> None:
    """A standby that took over at once after an hour was `ready after 3600000 ms`."""
    start = {"at_ms": 5, "what": "started", "task": "0_1", "epoch": 2, "instance": "i2", "source": "empty"}
    [event] = events([{**start, "restored_from": 3, "position": 10, "level_ms": 90, "opened_ms": 90_090}])
    assert line(event).endswith("7 offsets restored from empty, ready after 90 ms, a copy for 1.5 min from then on")
    [event] = events([{**start, "restored_from": 3, "position": 10, "level_ms": 90, "opened_ms": 118}])
    assert line(event).endswith("7 offsets restored from empty, ready after 90 ms")


def lines_of(log: str, begun_ms: int, *owners: str) -> list[dict[str, Any]]:
    """What a task's owners and its coordinator write, in a log whose name lines have or, of an older version, have not."""
    rows: list[dict[str, Any]] = []
    always = {"task": "0_0", **({"log_id": log} if log else {})}
    known = {"source": "empty", "restored_from": 0, "opened_ms": 1, "why": "balance", "pause_ms": 1}
    for epoch, (before, owner) in enumerate(zip(("", *owners), owners, strict=False), 1):
        now_ms, row = begun_ms + 1_000 * epoch, {**always, **known, "epoch": epoch}
        if before:
            row |= {"from": before, "to": owner, "gap_ms": None}
            rows.append({"at_ms": now_ms, **row, "what": "handed over", "instance": "i1"})
        rows.append({"at_ms": now_ms, **row, "what": "started", "instance": owner, "position": begun_ms + epoch})
        if before:
            rows.append({"at_ms": now_ms + 500, **row, "what": "handed over", "instance": "i1", "gap_ms": 9})
    return rows


@pytest.mark.parametrize("logs", [("a", "b"), ("", ""), ("", "b"), ("b", "")])
@pytest.mark.parametrize(
    "others", [("i1", "i2"), ("i3", "i4"), ("i1",), ("i2", "i1", "i2")], ids=lambda owners: "-".join(owners)
)
def test_lines_of_two_logs_are_no_event_of_one(logs: tuple[str, str], others: tuple[str, ...]) -> None:
    """In a log that was replaced or copied epochs begin anew: what came to pass there had the time of what was before."""
    rows = [lines_of(logs[0], 0, "i1", "i2", "i1"), lines_of(logs[1], 1_000_000, *others)]
    apart = [event for one in rows for event in events(one)]
    assert len(apart) == 3 + len(others) and events([row for one in rows for row in one]) == apart


def test_a_log_that_was_replaced_before_the_first_line_of_it_here() -> None:
    """Its first epoch was another machine's."""
    before, after = lines_of("", 0, "i1", "i2"), lines_of("", 1_000_000, "i5", "i3")[1:]
    assert [(event["what"], event["to"], event["at_ms"]) for event in events(before + after)] == [
        ("started", "i1", 1_000),
        ("moved", "i2", 2_000),
        ("moved", "i3", 1_002_000),
    ]


def test_what_is_no_line_of_a_journal_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "i1").mkdir()
    row = {"at_ms": 1, "what": "instance", "instance": "i1", "pid": 7}
    lines = [
        json.dumps(row).encode(),
        b"\xff\xc6\x00",
        b"5",
        b"[]",
        b"{}",
        b'{"at_ms": "x", "what": "started"}',
        b'{"at_ms": 3',
    ]
    (tmp_path / "i1" / "journal.jsonl").write_bytes(b"\n".join(lines))
    assert read_journals(tmp_path) == [row]
