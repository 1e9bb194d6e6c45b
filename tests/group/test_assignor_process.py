"""The assignor process: asked, killed, stopped, told nonsense; and gone when its coordinator is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.coordinator import assignor_process as assignor_process_module
from orchestrator.coordinator import messages
from orchestrator.coordinator.assignor_codec import RequestEncoder
from orchestrator.coordinator.assignor_main import FRAME_BYTES_MAX, frame
from orchestrator.coordinator.assignor_process import AssignorProcess
from orchestrator.coordinator.shell import Coordinator
from orchestrator.group.state import LONG_ASSIGNMENT
from orchestrator.model import Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import MemberView, View
from tests.group.coordinators import joined, listening

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 30
TASKS = {TaskId(0, n): Task(TaskId(0, n)) for n in range(60)}
VIEW = View(TASKS, {name: MemberView(name, name) for name in ("A", "B", "C")})
HELD = replace(VIEW, active=assign_tasks(VIEW).active)


@contextlib.asynccontextmanager
async def assignor_process(*, start_every_s: float = 60) -> AsyncIterator[AssignorProcess]:
    made = AssignorProcess(start_every_s=start_every_s, answer_s=DEADLINE_S)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield made
    finally:
        await made.close()


def runs(pid: int) -> bool:
    """Whether the process is there, and more than a name that nobody has asked about yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.01)


async def test_one_process_answers_one_question_after_the_other() -> None:
    async with assignor_process() as assignor:
        assert assignor.pid is None, "started before it was needed"
        assert await assignor.assign(VIEW) == assign_tasks(VIEW)
        first = assignor.pid
        assert await assignor.assign(HELD) == assign_tasks(HELD)
        assert first is not None and assignor.pid == first
    assert not runs(first), "it outlives its coordinator"


async def test_one_that_was_killed_costs_a_line_and_is_replaced_not_too_often(caplog: pytest.LogCaptureFixture) -> None:
    async with assignor_process() as assignor:
        assert await assignor.assign(VIEW) == assign_tasks(VIEW)
        assert assignor.pid is not None
        os.kill(assignor.pid, signal.SIGKILL)
        for _ in range(3):
            assert await assignor.assign(HELD) == assign_tasks(HELD)
        assert assignor.pid is None, "a new one within the minute"
    # asyncio itself may say that the kernel was faster to tell of the end than its own thread was.
    ours = [record.levelno for record in caplog.records if record.name == "orchestrator.assignor_process"]
    assert ours == [logging.WARNING]
    assert "the assignor process failed" in caplog.text


async def test_a_new_one_knows_nothing_of_the_one_before() -> None:
    async with assignor_process(start_every_s=0) as assignor:
        pids = []
        for _ in range(2):
            assert await assignor.assign(VIEW) == assign_tasks(VIEW)  # the next one gets the tasks again
            assert assignor.pid is not None
            pids.append(assignor.pid)
            os.kill(assignor.pid, signal.SIGKILL)
            assert await assignor.assign(HELD) == assign_tasks(HELD)
        assert pids[0] != pids[1]


async def test_one_that_is_silent_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with assignor_process() as assignor:
        assert await assignor.assign(VIEW) == assign_tasks(VIEW)
        stopped = assignor.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assignor.answer_s = 0.1
        assert await assignor.assign(HELD) == assign_tasks(HELD)
        assert not runs(stopped)
    assert "no answer in time" in caplog.text


async def test_one_that_cannot_be_started_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with assignor_process() as assignor:
        for _ in range(2):
            assert await assignor.assign(VIEW) == assign_tasks(VIEW)
    assert len(caplog.records) == 1


async def test_one_that_ends_at_once_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    liar = tmp_path / "python"
    liar.write_text("#!/bin/sh\nprintf '\\000\\000\\000\\005hello'\n")
    liar.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(liar))
    async with assignor_process() as assignor:
        assert await assignor.assign(VIEW) == assign_tasks(VIEW)
        assert assignor.pid is None


async def test_one_whose_answer_is_left_unread_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its pipe is paused by then: here, as it is no answer; with a large one, as whoever waits for it is cancelled."""
    liar = tmp_path / "python"
    liar.write_text("#!/bin/sh\nprintf '%0999d' 9\nexec sleep 60\n")
    liar.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(liar))
    monkeypatch.setattr(assignor_process_module, "BUFFER_BYTES", 16)
    async with assignor_process() as assignor:
        assert await assignor.assign(VIEW) == assign_tasks(VIEW)
        assert assignor.pid is None


async def test_a_coordinator_whose_process_is_killed_in_the_middle_reaches_the_target(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = [Task(TaskId(0, n)) for n in range(LONG_ASSIGNMENT + 1)]
    coordinator = Coordinator("bench", Settings(), KeptLedger([]), tasks, {})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with asyncio.timeout(DEADLINE_S):
            link = await joined(address)
            while coordinator.assignor_process.pid is None:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
            assert coordinator.group.computing is not None
            os.kill(coordinator.assignor_process.pid, signal.SIGKILL)
            while not isinstance(told := await link.receive_down(), messages.Assign) or not told.assignment.active:
                pass
        assert told.assignment.active.keys() == {task.id for task in tasks}
        assert "the assignor process failed" in caplog.text
        await link.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()


COORDINATOR = """
import asyncio
from orchestrator.coordinator.assignor_process import AssignorProcess
from orchestrator.model import Task, TaskId
from orchestrator.task_assignor.view import MemberView, View

async def main():
    tasks = dict((TaskId(0, n), Task(TaskId(0, n))) for n in range(60))
    assignor_process = AssignorProcess()
    await assignor_process.assign(View(tasks, dict(A=MemberView("A", "A"))))
    print(assignor_process.pid, flush=True)
    {}

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "end", ["await asyncio.sleep(3600)", "assignor_process._process = None"], ids=["killed", "forgotten"]
)
def test_it_ends_with_its_coordinator(end: str) -> None:
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR.format(end)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
    )
    with coordinator:
        assert coordinator.stdout is not None
        pid = int(coordinator.stdout.readline())
        if "sleep" in end:
            assert runs(pid)
            coordinator.kill()
        until("the end of the assignor process", lambda: not runs(pid))


def placer() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestrator.coordinator.assignor_main"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


def answer_to(sent: bytes) -> tuple[int, bytes, str]:
    """What the process does with these bytes, while its stdin stays open."""
    with placer() as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(sent)
        process.stdin.flush()
        code = process.wait(DEADLINE_S)
        return code, process.stdout.read(), process.stderr.read().decode()


@pytest.mark.parametrize(
    "sent",
    [frame(b"hello"), (FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"GET / HTTP/1.1\r\n\r\n"],
    ids=["no request", "too long", "somebody else"],
)
def test_nonsense_ends_it_with_a_line(sent: bytes) -> None:
    code, out, said = answer_to(sent)
    assert (code, out) == (1, b"")
    assert said.startswith("error: the assignor process ends: ") and said.count("\n") == 1


def test_a_frame_that_breaks_off_is_an_end_like_any_other() -> None:
    request = [*RequestEncoder().request(VIEW)][-1]
    assert request is not None
    for sent in (b"", frame(request)[:-1]):
        ended = subprocess.run(
            [sys.executable, "-m", "orchestrator.coordinator.assignor_main"],
            input=sent,
            capture_output=True,
            cwd=ROOT,
            check=True,
        )
        assert (ended.stdout, ended.stderr) == (b"", b"")


def test_an_answer_that_nobody_takes_is_no_error() -> None:
    request = [*RequestEncoder().request(VIEW)][-1]
    assert request is not None
    with placer() as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(frame(request))
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""


def test_at_a_terminal_it_says_what_it_is() -> None:
    parent, child = os.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "orchestrator.coordinator.assignor_main"],
            stdin=child,
            capture_output=True,
            cwd=ROOT,
            timeout=DEADLINE_S,
        )
    finally:
        os.close(parent)
        os.close(child)
    assert ended.returncode == 2 and b"part of a coordinator" in ended.stderr
