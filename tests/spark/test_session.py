"""Spark's session on a user's terminal: what its bridge to Java writes when Java ends in a call."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters
from py4j.protocol import Py4JError

pytestmark = pytest.mark.spark
AT_ONCE = struct.pack("ii", 1, 0)  # a close that resets the connection, as the kernel does it for a killed process


def end_in_a_call(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    connection.close()


def test_nothing_is_written_for_java_that_was_killed_in_a_call(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The caller is the one to say what it means: py4j's own stack traces stood between the user and that line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=end_in_a_call, args=(listener,), daemon=True).start()
        bridge = ClientServer(JavaParameters(port=listener.getsockname()[1]))
        with pytest.raises(Py4JError):
            bridge.jvm.java.lang.System.nanoTime()
        bridge.close()
    assert [row for row in caplog.records if row.levelno >= logging.WARNING] == []
