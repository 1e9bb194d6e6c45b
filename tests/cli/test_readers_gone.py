"""Commands whose standard output or error is a pipe that has no reader any more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.console import DEADLINE_S, ROOT, Console

pytestmark = pytest.mark.processes
PAYMENT = '{"key": "ann", "value": {"account": "ann", "amount": 5}}\n'


def alone(folder: Path, *words: str, gone: tuple[str, ...], stdin: str = "", **more: str) -> int:
    """The exit code of a command; `gone`: "stdout" or "stderr", or both of them."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {name: writer if name in gone else subprocess.DEVNULL for name in ("stdout", "stderr")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, input=stdin, text=True, timeout=DEADLINE_S, **streams
    )
    os.close(writer)
    return done.returncode


def test_a_warning_without_a_reader_ends_no_work(tmp_path: Path) -> None:
    """A name that is no setting is warned of before the work begins: it ended there with 0, and wrote nothing."""
    console = Console(tmp_path).bank()
    words = ("-m", "orchestrator", "produce", "bank:app", "payments")
    assert alone(tmp_path, *words, gone=("stderr",), stdin=PAYMENT, ORCHESTRATOR_FOO="1") == 0
    assert len(console.here("consume", "bank:app", "payments").out.splitlines()) == 1
    assert alone(tmp_path, *words, gone=("stdout", "stderr"), stdin=PAYMENT, ORCHESTRATOR_FOO="1") == 0
    assert len(console.here("consume", "bank:app", "payments").out.splitlines()) == 2


def test_an_answer_without_a_reader_has_its_exit_code(tmp_path: Path) -> None:
    damaged = tmp_path / "snapshots" / "one"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{}")
    words = ("-m", "orchestrator", "snapshot", "verify", "--snapshots", "snapshots")
    assert alone(tmp_path, *words, gone=("stdout",)) == 1
    (tmp_path / "what.txt").write_text("> no command\nx\n")
    assert alone(tmp_path, "-m", "orchestrator", "simulate", "what.txt", "--json", gone=("stdout",)) == 1
    assert alone(tmp_path, "-m", "orchestrator", "status", "--help", gone=("stdout",)) == 0  # it was 120


COMMAND = """
import sys
from orchestrator.cli import main
def work(argv):
    for number in range(3):
        print("a line", flush=True)
        print("a line", file=sys.stderr)
    open("done", "w").close()
    {then}
main.place_called = lambda place: work
main.entry()
"""


@pytest.mark.parametrize(
    ("name", "then", "code", "is_done"),
    [
        ("scale-down", "return 4", 4, True),
        ("consume", "return 4", 0, False),  # it only reads and prints: as `| head` wants it
        ("consume", "raise BrokenPipeError(32, 'of a connection')", 1, True),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_breaks_within_a_command(
    tmp_path: Path, name: str, then: str, code: int, is_done: bool, unbuffered: str
) -> None:
    gone = ("stderr",) if "raise" in then else ("stdout", "stderr")
    words = ("-c", COMMAND.format(then=then), name)
    assert alone(tmp_path, *words, gone=gone, PYTHONUNBUFFERED=unbuffered) == code
    assert (tmp_path / "done").exists() == is_done
