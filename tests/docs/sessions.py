"""Plays the console blocks of a page in one shell, in an empty folder, and compares what is printed with the page.

One rule: a block runs where the page says `<!-- run -->` above it. What differs from run to run (times, sizes, process
numbers, ids) is compared by its kind; a line `...` stands for any lines. Used by tests/docs/test_sessions.py.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from tests.docs.snippets import ROOT, Command

DEADLINE_S = 120.0
END = "end of the command"
VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r'("timestamp_ms": )\d+'), r"\1N"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b\d[\d.,]* ?(ms|s|bytes)\b"), r"N \1"),
    (re.compile(r"\b(process|generation|epoch) \d+"), r"\1 N"),
    (re.compile(r"(\bhost1 +\d+) +[0-9a-f]{8}$"), r"\1 VERSION"),
    (re.compile(r"\bhost1 +\d+"), "host1 PID"),
    (re.compile(r"\bcoordinator on i\d+"), "coordinator on some instance"),
    (re.compile(r"\bactive on i\d+"), "active on some instance"),
    (re.compile(r"\bi\d+ +ended"), "some instance ended"),
    (re.compile(r"(the other tasks never paused|\d+ other tasks? paused too)$"), "what others did"),
    (re.compile(r"^\d+ records?/s +\d+ records? waiting$"), "N records/s N records waiting"),
    (re.compile(r"\s+"), " "),
)

ASKS, AGAIN_S = re.compile(r"orchestrator (status|explain|query|history|table) "), 20.0


def by_kind(line: str) -> str:
    """The line with what varies replaced by its kind."""
    line = re.sub(rf"\b{re.escape(platform.node())}\b", "host1", line)
    for pattern, kind in VARIES:
        line = pattern.sub(kind, line)
    return line.strip()


def fits(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether lines are as the page has them."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(fits(expected[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and by_kind(expected[0]) == by_kind(printed[0]) and fits(expected[1:], printed[1:])


class Shell:
    """A bash in a folder. Standard error is shown where a command fails, as progress goes there otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_ = folder.parent / "bin"
        bin_.mkdir()
        for name, words in {"orchestrator": "-m orchestrator", "python": ""}.items():
            script = bin_ / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            script.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        path = f"{bin_}:{clean.get('PATH', '')}"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env={**clean, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()
        self._tell("set -m")
        self._background = 0

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line.rstrip("\n"))

    def _tell(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text + "\n")
        self._bash.stdin.flush()

    def play(self, command: Command) -> None:
        """Runs a command, and fails where it prints something else than the page. One that only asks is run again until a
        deadline: rates are not measured yet in the first second, and the like."""
        text = re.sub(r"\s+#\s.*$", "", command.text)
        if text.endswith("&"):
            self._begin(text.removesuffix("&"), command)
            return
        errors = self.folder.parent / "errors"
        deadline = time.monotonic() + (AGAIN_S if ASKS.match(text) else 0)
        while True:
            printed, code = self._play(text, command.where, errors)
            if code != 0:
                printed += errors.read_text().splitlines()
            if fits(command.output, printed) or time.monotonic() >= deadline:
                break
        assert fits(command.output, printed), (
            f"{command.where}: `{text}` ended with {code} and printed\n"
            + "\n".join(printed)
            + f"\n{errors.read_text()}"
        )

    def _play(self, text: str, where: str, errors: Path) -> tuple[list[str], int]:
        """What a command prints, and its exit code."""
        self._tell(
            f"{{ {text}\n}} </dev/null 2>{shlex.quote(str(errors))}\ncode=$?; echo; echo {shlex.quote(END)} $code"
        )
        printed: list[str] = []
        deadline = time.monotonic() + DEADLINE_S
        while not (printed and printed[-1].startswith(END)):
            try:
                printed.append(self._lines.get(timeout=max(0.01, deadline - time.monotonic())))
            except Empty:
                raise AssertionError(f"{where}: `{text}` did not end; it printed {printed}") from None
        code = int(printed.pop().removeprefix(END))
        if printed and printed[-1] == "":
            printed.pop()  # the line that ends what did not end in one
        return printed, code

    def _begin(self, text: str, command: Command) -> None:
        """Starts a command in the background, and waits for what the page says that it prints."""
        self._background += 1
        out = self.folder.parent / f"background-{self._background}"
        out.touch()
        self._tell(f"{text} </dev/null >{shlex.quote(str(out))} 2>&1 &")
        deadline = time.monotonic() + DEADLINE_S
        while not fits(command.output, out.read_text().splitlines()):
            assert time.monotonic() < deadline, f"{command.where}: `{text}` printed\n{out.read_text()}"
            time.sleep(0.05)

    def close(self) -> None:
        """Ends what runs in the background, in order, and the shell."""
        self._play('for job in $(jobs -p); do kill -- "-$job"; done; wait', "the end", self.folder.parent / "errors")
        self._bash.kill()
        self._bash.wait()
