"""Signals that come while the loop of a fleet is closed show nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes
TIMES = 8  # of eight that did not prepare for it five showed a traceback
BETWEEN_S = 0.0002
PROGRAM = """
import asyncio
import signal

from workers.end_watch import wake_no_more


async def main() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    print("ready", flush=True)
    await asyncio.sleep(0.02)
    wake_no_more()


asyncio.run(main())
"""


def test_signals_one_after_the_other_until_it_has_ended() -> None:
    for _ in range(TIMES):
        with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1, stderr=-1, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            while process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(BETWEEN_S)
            assert process.stderr.read() == ""
