"""`status --watch` with real processes: in place on a terminal, lines otherwise, and a clean end; and what `status` adds up."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from typing import Any

import pytest

from state.log.protocol import Partition
from state.log.sqlite import open_sqlite
from tests.cli.console import DEADLINE_S, Console
from workers.commands.status import in_place, total

pytestmark = pytest.mark.processes
SOON = ("--heartbeat", "200ms")


def status(console: Console) -> Any:
    return console.here("status", "bank", "--json").json


def test_sums_versions_and_topics(console: Console) -> None:
    console.bank().run(*SOON, instances=2)
    first = status(console)
    assert first["versions"] == [{"tasks": 8, "partitions": {"0": 8}, "instances": ["i1", "i2"]}]
    one, other = (i["app_versions"] + i["package_versions"] for i in first["instances"])
    assert one == other and len(one) == 2 and all(one)
    topics = {topic["name"]: topic for topic in first["topics"]}
    assert topics["payments"] == {"name": "payments", "kind": "plain", "partitions": 8, "offsets": 0, "read_by": [0]}
    assert topics["alerts"]["read_by"] == [] and set(topics) == {"payments", "alerts"}

    def rate() -> float:
        console.pay(*((f"k{number}", 1) for number in range(50)))
        return float(status(console)["records_per_s"] or 0)

    console.until("a rate", lambda: rate() > 1)
    console.until("that it is quiet", lambda: status(console)["records_per_s"] == 0)
    console.until("no lag", lambda: status(console)["input_lag"] == 0)
    paid = next(topic["offsets"] for topic in status(console)["topics"] if topic["name"] == "payments")
    assert paid > 0 and paid % 50 == 0
    shown = console.here("status", "bank").out
    assert "0 records/s  0 records waiting" in shown and "payments" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_lines_and_an_interrupt(console: Console) -> None:
    console.bank().run(*SOON)
    watching = console.start("status", "bank", "--watch", name="watch")
    console.until("three lines", lambda: console.said("watch").count("1 instance  8 tasks, 0 to move") >= 3)
    watching.send_signal(signal.SIGINT)
    assert console.end(watching) == 130
    assert "\x1b" not in console.said("watch") and (console.folder / "watch.err").read_text() == ""


def test_json_is_an_object_a_line(console: Console) -> None:
    run = console.bank().run(*SOON)
    watching = console.start("status", "bank", "--watch", "--json", name="json")
    console.until("two lines", lambda: (console.folder / "json.out").read_text().count("\n") >= 2)
    run.terminate()  # a group that is away is looked for again
    console.end(run)
    console.until("its end", lambda: "has no coordinator" in (console.folder / "json.err").read_text())
    console.run(*SOON)
    before = (console.folder / "json.out").read_text().count("\n")
    console.until("more", lambda: (console.folder / "json.out").read_text().count("\n") > before)
    watching.send_signal(signal.SIGTERM)
    assert console.end(watching) == 143
    rows = [json.loads(line) for line in (console.folder / "json.out").read_text().splitlines()]
    assert all(row["schema"] == 1 and len(row["tasks"]) == 8 for row in rows)


def test_in_place_on_a_terminal(console: Console) -> None:
    console.bank().run(*SOON)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
    words = console._words(("status", "bank", "--watch"))
    watching = subprocess.Popen(
        words, cwd=console.folder, env=console._environment(), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + DEADLINE_S
    while shown.count(b"\x1b[H") < 3:
        assert time.monotonic() < deadline, shown
        if select.select([ours], [], [], 0.2)[0]:
            shown += os.read(ours, 65_536)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(DEADLINE_S) == 130
    os.close(ours)
    assert b"Traceback" not in shown
    one = shown.split(b"\x1b[H")[2]
    assert one.count(b"\n") < 12 and b"more lines" in one


def test_a_watch_of_nothing_ends(console: Console) -> None:
    done = console.here("status", "bank", "--watch")
    assert done.code == 2 and "no log of application" in done.err


def test_what_is_shown_in_place_fits() -> None:
    shown = in_place("\n".join("x" * 100 for _ in range(50)), 40, 10)
    rows = shown.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\n")
    assert len(rows) == 10 and all(len(row.removesuffix("\x1b[K")) <= 40 for row in rows)
    assert "... 42 more lines" in rows[8]
    assert in_place("a\nb", 40, 10) == "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"


def test_what_is_not_known_is_no_number() -> None:
    assert total([]) is None and total([None, None]) is None and total([None, 0, 2.5]) == 2.5


@pytest.mark.long
def test_status_says_why_tasks_do_not_run_whose_changelogs_were_cut(console: Console) -> None:
    """They were "moving", with 0 behind, as any task on its way."""
    changes = "bank-balances-changelog"
    console.pay(*((f"a{n}", 1) for n in range(40)))
    fleet = console.run(instances=1)
    assert console.balance("a1") == "1\n"
    fleet.terminate()
    assert console.end(fleet) == 0
    shutil.rmtree(console.folder / ".orchestrator/state")

    async def cut() -> None:
        log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
        assert await log.trim(await log.ends([Partition(changes, number) for number in range(8)]))
        await log.close()

    asyncio.run(cut())
    fleet = console.run(instances=1, wait=False)
    found = ""

    def is_shown() -> bool:
        nonlocal found
        found = console.here("status", "bank").out
        return " does not run: table balances, " in found

    console.until("the reason", is_shown)
    assert f"`orchestrator topics accept bank {changes}`" in found
    fleet.terminate()
    assert console.end(fleet) == 0
    assert console.here("topics", "accept", "bank", changes).code == 0
    console.run(instances=1)
    assert "does not run" not in console.here("status", "bank").out
