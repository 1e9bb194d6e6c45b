"""Log lines of real processes, as objects and as text; colours for terminals alone."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess

import pytest

from orchestrator.errors import WrongUse
from orchestrator.instance_settings import FOREIGN_PARTS, LOG_PARTS, level
from orchestrator.model import TaskId
from tests.cli.console import Console
from tests.docs.snippets import ROOT
from workers.log_lines import TASK, AsJson, AsText

FAILS = """
from orchestrator import App
app = App("fails", partitions=1)
given = app.topic("given", key=str, value=str)

@app.processor(given)
def see(record):
    raise ValueError(record.value)
"""


def record(*args: object) -> logging.LogRecord:
    return logging.LogRecord("orchestrator.task", logging.WARNING, "x.py", 1, "%s is slow", args, None)


def test_a_line_names_instance_worker_and_task() -> None:
    row = json.loads(AsJson("i2", 1).format(record(TaskId(0, 3))))
    assert (row["instance"], row["worker"], row["task"], row["level"]) == ("i2", 1, "0_3", "WARNING")
    assert row["message"] == "0_3 is slow" and row["at_ms"] > 1_000_000_000_000
    assert json.loads(AsJson("i2", None).format(record("it")))["task"] is None
    token = TASK.set("1_0")
    assert json.loads(AsJson("i2", 1).format(record("it")))["task"] == "1_0"
    assert AsText("i2", 1).format(record("it")).endswith("i2.1 1_0 WARNING orchestrator.task: it is slow")
    TASK.reset(token)
    assert " i2 WARNING " in AsText("i2", None).format(record("it"))


@pytest.mark.processes
def test_every_line_of_a_fleet_is_an_object(console: Console) -> None:
    console.app = "fails"
    console.write("fails.py", FAILS)
    words = ("--log-format", "json", "--log-level", "INFO", "--heartbeat", "200ms", "--workers", "2")
    run = console.run(*words)
    line = json.dumps({"key": "a", "value": "b\nc"})
    assert console.here("produce", "fails:app", "given", stdin=line).code == 0
    assert console.end(run) == 1
    rows = [json.loads(text) for text in (console.folder / "run.err").read_text().splitlines()]
    assert {(row["instance"], row["worker"]) for row in rows} >= {("i1", None), (None, None)} and {1, 2} & {
        row["worker"] for row in rows
    }
    [error] = [row for row in rows if "exit_code" in row]
    assert "ValueError" in error["message"] and "fails.py" in error["frames"]
    said = [row["message"] for row in rows if row["logger"] == "orchestrator.fleet"]
    assert said[0].startswith("warning: 2 workers for 1 task") and said[1:] == ["i1 failed; the fleet stops"]


@pytest.mark.processes
@pytest.mark.parametrize(("level", "heard"), [("candidate=INFO", True), ("INFO,candidate=WARNING", False)])
def test_text_names_the_instance_and_a_part_may_say_more(console: Console, level: str, heard: bool) -> None:
    run = console.bank().run("--log-level", level)  # by now it has a coordinator
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0
    said = (console.folder / "run.err").read_text()
    assert (" i1 INFO orchestrator.candidate: i1 is the coordinator" in said) == heard
    assert set(re.findall(r" INFO (\S+):", said)) - {"orchestrator.candidate"} == set() or not heard


def test_levels_are_of_parts_that_there_are() -> None:
    """Each logger of a fleet can be named, and no other."""
    assert level("info") == "INFO" and level("stores=debug") == "WARNING,stores=DEBUG"
    assert level("error, task=INFO,aiokafka=debug") == "ERROR,aiokafka=DEBUG,task=INFO"
    for text, why in (
        ("loud", "'loud' is not one of DEBUG"),
        ("stores=", "'' is not one of DEBUG"),
        ("INFO,store=DEBUG", "no part 'store' with a level of its own: assignor_process, "),
        ("INFO,DEBUG", "the level of everything is given twice"),
        ("task=INFO,task=DEBUG", "the level of task is given twice"),
    ):
        with pytest.raises(WrongUse, match=why):
            level(text)
    files = [path for room in ("orchestrator", "workers", "state") for path in (ROOT / room).rglob("*.py")]
    named = {name for path in files for name in re.findall(r'getLogger\("orchestrator\.(\w+)"\)', path.read_text())}
    assert named <= set(LOG_PARTS) and set(LOG_PARTS) - named <= {*FOREIGN_PARTS, "hosting"}


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals(console: Console, more: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in console._environment().items() if k != "NO_COLOR"}
    subprocess.run(
        console._words(("status", "nobody")),
        cwd=console.folder,
        env={**environment, "TERM": "xterm", **more},
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    said = os.read(ours, 10_000)
    os.close(ours)
    assert b"no log of application" in said and (b"\x1b[31m" in said) == coloured
    assert "\x1b" not in console.here("status", "nobody").err
