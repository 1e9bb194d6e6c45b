"""Why a stop always comes through: wishes stay in the pipe, and cancellations are not swallowed."""

from __future__ import annotations

import os

import pytest

from tests.test_tidy import ROOT, sources
from workers.spec import first_line


def test_what_follows_the_spec_stays_in_the_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"spec": 1}\nstop\n')
    os.close(writing)
    assert first_line(reading) == '{"spec": 1}'
    assert os.read(reading, 100) == b"stop\n"
    assert first_line(reading) == "", "the end of the pipe ends the reading"
    os.close(reading)


@pytest.mark.parametrize("room", ["orchestrator", "workers", "state"])
def test_nobody_uses_wait_for(room: str) -> None:
    """Before Python 3.12 it drops a cancellation that comes together with the result; asyncio.timeout does not."""
    found = [p for p in sources() if p.is_relative_to(ROOT / room) and "asyncio.wait_for(" in p.read_text()]
    assert not found
