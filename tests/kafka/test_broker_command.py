"""`orchestrator broker start|stop` where something is in the way: each is named, and nothing of others is touched."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from state.log.kafka import broker
from tests import brokers
from tests.cli.console import Console

pytestmark = [pytest.mark.kafka, pytest.mark.processes]


def start(console: Console, *words: str) -> tuple[str, ...]:
    return ("broker", "start", "--folder", "b", "--kafka", brokers.VERSION, *words)


@pytest.fixture
def console(tmp_path: Path) -> Console:
    brokers.shared()  # there are jars here
    return Console(tmp_path)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_port_that_is_taken_is_named(console: Console, behind: int) -> None:
    """It was Java's stack in a file; the folder was kept for that port, and another one refused."""
    port = broker.free_port()
    with socket.create_server(("127.0.0.1", port + behind)):
        done = console(*start(console, "--port", str(port)))
    assert done.code == 1 and f"cannot listen on port {port + behind} (address already in use)" in done.err, done
    assert not (console.folder / "b").exists()


@pytest.mark.parametrize("port", ["65535", "70000"])
def test_a_port_that_there_is_not_is_wrong_use(console: Console, port: str) -> None:
    done = console(*start(console, "--port", port))
    assert done.code == 2 and f"--port {port}: a port is 1 to 65534" in done.err, done


def test_a_process_that_has_the_number_of_one_that_was_killed_is_left_alone(console: Console) -> None:
    """`broker stop` ended it, and `broker start` took it for the broker."""
    made = broker.prepare(console.folder / "b", version=brokers.VERSION)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (made.folder / "pid").write_text(str(other.pid))
        done = console("broker", "stop", "--folder", "b")
        assert done.code == 0 and done.out == "no broker was running\n" and other.poll() is None, done
        assert made.pid is None
        other.communicate(b"\n")
    assert other.returncode == 0


def test_of_several_that_start_one_at_once_one_does(console: Console) -> None:
    """One removed what another had formatted, or started: the first ones ended with Java's stack."""
    port = broker.free_port()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    words = [sys.executable, "-m", "orchestrator", *start(console, "--port", str(port))]
    try:
        starting = [
            subprocess.Popen(words, cwd=console.folder, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in "1234"
        ]
        said = sorted(one.communicate(timeout=90)[0] for one in starting)
        assert ["is up a" in text for text in said] == [True] * 4, said
        assert sum("is up after" in text for text in said) == 1, said
    finally:
        (console.folder / "other").symlink_to(console.folder)
        assert console("broker", "stop", "--folder", "other/b").out == "stopped\n"


def test_why_jars_cannot_be_fetched_is_said(console: Console) -> None:
    """It was the last line of Ivy's output, which says how to have more of it."""
    console.environment |= {
        "XDG_CACHE_HOME": str(console.folder / "cache"),
        "JAVA_TOOL_OPTIONS": "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1",
    }
    done = console(*start(console, "--port", str(broker.free_port())))
    assert done.code == 1 and "could not be fetched (Server access error at url " in done.err, done
    assert "Connection refused" in done.err and f"{console.folder}/cache" in done.err and done.err.count("\n") == 1, (
        done
    )
