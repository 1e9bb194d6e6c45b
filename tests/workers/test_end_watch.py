"""A process whose work is over and that does not end: it says what it waits for, and ends. In real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HEAD = """
import asyncio
from workers.end_watch import end_within

async def deaf():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue

async def resource():
    yield 1
    await asyncio.Event().wait()

async def closing():
    made = resource()
    await anext(made)
    await anext(made, None)

async def main():
    task = asyncio.create_task(deaf(), name="deaf")
    await asyncio.sleep(0)
    stays = end_within({limit_s}, 7)
    {then}

asyncio.run(main())
"""


def run(limit_s: float, then: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parent.parent.parent
    code = HEAD.format(limit_s=limit_s, then=then)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_does_not_end_is_named_and_the_code_is_kept() -> None:
    done = run(0.3, "task.cancel(); await asyncio.gather(task)")
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert "did not end within 0.3 s of its last work" in lines[0]
    assert any("task deaf: <string>:" in line and "deaf > locks.py:" in line for line in lines), done.stderr
    assert any("thread MainThread" in line for line in lines)


def test_a_resource_that_is_not_closed_is_named() -> None:
    done = run(0.3, "await closing()")
    assert done.returncode == 7
    assert re.search(r"task Task-1: .*closing > <string>:\d+ resource > locks.py:\d+ wait", done.stderr), done.stderr


def test_what_ends_is_left_alone() -> None:
    done = run(0.2, "stays(); await asyncio.sleep(0.6); print('over', flush=True); import os; os._exit(0)")
    assert (done.returncode, done.stdout) == (0, "over\n")
