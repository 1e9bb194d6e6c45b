"""`produce` that is asked to end: what it says is what is in the log, and a run that says that all is written was a whole one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.console import DEADLINE_S, Console, Done
from tests.cli.test_produce_input import WORDS, amounts, lines

pytestmark = pytest.mark.processes
SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEAD = """
import os, sys
from orchestrator.cli.main import entry
from state.log.sqlite import SqliteLog
from workers.commands.produce_input import Given


def ask(kill=os.kill, pid=os.getpid()):
    kill(pid, {number})


def around(kind, name, *, before=False, behind=False, times=1):
    inner, left = getattr(kind, name), [times]

    async def asking(*args, **named):
        now = left[0] > 0
        left[0] -= 1
        if now and before:
            ask()
        found = await inner(*args, **named)
        if now and behind:
            ask()
        return found

    setattr(kind, name, asking)


class Last:
    def __del__(self, ask=ask):
        ask()


{moment}
sys.argv = ["orchestrator", *{words!r}]
entry()
"""
AT_THE_END = {
    "while its batch is on its way": 'around(SqliteLog, "append", before=True)',
    "when that is answered": 'around(SqliteLog, "append", behind=True)',
    "while it forgets what it has read": 'around(Given, "over", before=True)',
    "when it has": 'around(Given, "over", behind=True)',
    "while the interpreter shuts down": "kept = Last()",
}


def asked_to_end(console: Console, moment: str, sign: signal.Signals, rows: str) -> Done:
    """The command, to which a signal comes at a moment, as a person's comes at any. Its input is a file that is whole: where the next
    line of a pipe has to be waited for, what came before it is a batch."""
    program = HEAD.format(moment=moment, number=int(sign), words=WORDS)
    with console.write("rows.jsonl", rows).open("rb") as given:
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=console.folder,
            env=console._environment(),
            stdin=given,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    return Done(run.returncode, run.stdout.decode(), run.stderr.decode())


@pytest.mark.parametrize("sign", SIGNALS)
@pytest.mark.parametrize("moment", AT_THE_END)
def test_a_signal_at_its_end_changes_nothing(console: Console, moment: str, sign: signal.Signals) -> None:
    done = asked_to_end(console, AT_THE_END[moment], sign, lines(0, 30))
    assert (done.code, done.out, done.err) == (0, "30 records\n", ""), done
    assert amounts(console) == list(range(30))
    again = console.here(*WORDS, stdin=lines(0, 30))
    assert (again.out, again.err) == ("30 records\n", ""), "a run of its own"


@pytest.mark.parametrize("sign", SIGNALS)
def test_one_that_ends_in_the_middle_says_how_many_are_written(console: Console, sign: signal.Signals) -> None:
    done = asked_to_end(console, 'around(SqliteLog, "append", before=True)', sign, lines(0, 1_500))
    assert (done.code, done.out) == (128 + sign, "")
    assert (
        done.err
        == "interrupted: 1000 records are written; run it again with the same input, it goes on behind what is written\n"
    )
    assert amounts(console) == list(range(1_000))
    assert console.here(*WORDS, stdin=lines(0, 1_500)).out == "500 records\n"


def test_a_second_signal_does_not_wait_and_says_what_is_not_known(console: Console) -> None:
    done = asked_to_end(
        console,
        'around(SqliteLog, "append", before=True); ask_once, ask = ask, lambda: [ask_once(), ask_once()]',
        signal.SIGTERM,
        lines(0, 30),
    )
    assert done.code == 143 and done.out == ""
    assert done.err.startswith("interrupted: whether the next 30 records are written is not known"), done


def test_one_that_has_written_nothing_says_so(console: Console) -> None:
    done = asked_to_end(console, 'around(SqliteLog, "topics", before=True)', signal.SIGTERM, lines(0, 30))
    assert (done.code, done.out, done.err) == (143, "", "interrupted: nothing was written\n"), done


NO_MORE = """
import resource
inner, made = SqliteLog.append, []


async def append(*args, **named):
    if made:  # as where the disk takes no more
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    made.append(1)
    return await inner(*args, **named)


SqliteLog.append = append
"""


def test_one_that_the_log_ends_says_how_many_are_written(console: Console) -> None:
    """It named what is wrong with the log alone, as if nothing had been written."""
    done = asked_to_end(console, NO_MORE, signal.SIGTERM, lines(0, 1_500))
    (line,) = done.err.splitlines()
    assert (done.code, done.out) == (1, "") and line.startswith("error: the log "), done
    assert "; 1000 records are written" in line
    assert line.endswith("; run it again with the same input, it goes on behind what is written")
    assert amounts(console) == list(range(1_000))
    assert console.here(*WORDS, stdin=lines(0, 1_500)).out == "500 records\n"
