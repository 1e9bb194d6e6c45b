"""When a broker of `orchestrator broker start` is taken for up, and where: on a port below those that connections are given. One
rule: no Java is needed here, so that it is tried wherever tests run."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

import pytest

from state.log.kafka import broker
from tests.contracts.logs import until

EPHEMERAL = 32_768  # where Linux begins by default
API_VERSIONS = 18
# In Java's place: it listens at once, notes the kind of each request, and answers from the moment on that it is let.
LISTENER = """\
#!{python}
import socket, struct, sys
from pathlib import Path
here = Path(sys.argv[-1]).parent
with socket.create_server(("127.0.0.1", {port})) as listener:
    while True:
        connection, _ = listener.accept()
        with connection:
            size, kind, version, number = struct.unpack(">ihhi", connection.recv(4096)[:12])
            with (here / "asked").open("a") as asked:
                asked.write(f"{{kind}}\\n")
            if (here / "ready").exists():
                connection.sendall(struct.pack(">iihi", 10, number, 0, 0))
"""


def test_a_port_is_chosen_below_those_of_connections() -> None:
    """Above, a probe of a port without a listener may connect to itself, and would call it taken, or a broker."""
    assert max(broker._PORTS) + 1 < EPHEMERAL
    assert broker.free_port() in broker._PORTS


async def test_a_broker_is_up_once_it_answers_which_versions_it_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port is open before: a command behind `broker start` would find nothing that answers."""
    made = broker.Broker(tmp_path / "b", broker.free_port())
    (made.folder).mkdir()
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(LISTENER.format(python=sys.executable, port=made.port))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(broker, "jars", lambda module="kafka", version="": tmp_path)
    launching = asyncio.create_task(asyncio.to_thread(made.launch))
    asked = made.folder / "asked"
    try:

        async def probed_again() -> bool:
            return asked.exists() and len(asked.read_text().split()) > 1

        await until("a second probe of an open port", probed_again)
        assert not launching.done()
        (made.folder / "ready").touch()
        await launching
        assert set(asked.read_text().split()) == {str(API_VERSIONS)}
    finally:
        (made.folder / "ready").touch()
        await asyncio.wait([launching])
        made.stop(kill=True)


@pytest.mark.parametrize(("number", "is_broker"), [(7, True), (8, False), (None, False)])
async def test_what_answers_otherwise_is_no_broker(number: int | None, is_broker: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        writer.write(b"HTTP/1.1 400" if number is None else struct.pack(">iihi", 10, number, 0, 0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        assert await asyncio.to_thread(broker.answers, port) is is_broker
    finally:
        server.close()
