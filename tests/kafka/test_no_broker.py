"""No broker at the start: each command ends by itself with one line, and an instance that is started again goes on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from aiokafka.protocol.admin import ApiVersionResponse_v0

from state.errors import LogUnavailable
from state.log.kafka import broker
from state.log.kafka import connections as connections_module
from state.log.kafka.access import Access
from state.log.kafka.connections import Connections
from state.log.kafka.requests import MetadataRequest_v12, MetadataResponse_v12
from tests import brokers
from tests.cli.console import Console

COMMANDS = (
    *(("run", "bank:app"), ("produce", "bank:app", "payments"), ("consume", "bank", "payments"), ("status", "bank")),
    *(("topics", "list", "bank"), ("topics", "create", "bank:app"), ("topics", "describe", "bank", "payments")),
    *(("scale-down", "bank", "--to", "50%"), ("query", "bank", "balances", "ann")),
)
PAYMENT = '{"key": "ann", "value": {"account": "ann", "amount": 5}}'


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path / "bank").bank()
    yield made
    made.close()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_command_ends_with_one_line(words: tuple[str, ...], is_silent: bool, console: Console) -> None:
    """Nothing listens at the first address, nor at the second; or what listens there says nothing."""
    config = console.write("client.properties", "request.timeout.ms=300\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent, nobody = listener.getsockname()[1], broker.free_port()
        url = f"kafka://127.0.0.1:{silent if is_silent else nobody + 1},127.0.0.1:{nobody}"
        done = console.here(*words, "--log", url, "--kafka-config", str(config), stdin=PAYMENT)
    assert (done.code, done.out) == (1, ""), done
    assert done.err.startswith("error: no Kafka broker answers (127.0.0.1:") and done.err.count("\n") == 1, done
    why = "nothing answers" if is_silent else "Connect call failed"
    assert f"{url[8:].partition(',')[0]}: " in done.err and why in done.err, done
    assert f"127.0.0.1:{nobody}: " in done.err, done
    assert ("start it again" in done.err) == (words[0] == "run"), done
    assert not list(console.folder.glob(".orchestrator")), "it left something behind"


@pytest.mark.kafka
@pytest.mark.processes
def test_an_instance_that_is_started_again_goes_on(console: Console, tmp_path: Path) -> None:
    """As a supervisor does it; what was refused before left nothing in its way."""
    brokers.shared()  # skips the test where none can be had
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION)
    log = ("--log", f"kafka://{made.address}")
    early = console("run", "bank:app", *log)
    assert early.code == 1 and "start it again" in early.err, early
    try:
        made.launch()
        console.start("run", "bank:app", *log, name="run")
        console.until("a secret", lambda: (console.folder / ".orchestrator/state/bank/group.secret").exists())
        done = console("wait", "bank", "--instances", "1", "--timeout", "25s", *log)
        assert done.code == 0, (done, console.said("run"))
        assert console("produce", "bank:app", "payments", *log, stdin=PAYMENT).code == 0
        asked = console("query", "bank", "balances", "ann", *log)
        assert (asked.code, asked.out) == (0, "5\n"), asked
    finally:
        console.close()
        made.stop(kill=True)


@pytest.mark.kafka
@pytest.mark.processes
def test_a_broker_that_tells_an_address_that_leads_nowhere_from_here(console: Console, tmp_path: Path) -> None:
    """The first address answers, and sends clients on, as a broker in a container does whose listeners are advertised to others."""
    brokers.shared()  # skips the test where none can be had
    settings = {"advertised.listeners": "PLAINTEXT://broker.invalid:9092"}
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION, settings=settings)
    try:
        made.launch()
        for words in (("status", "bank"), ("run", "bank:app"), ("topics", "create", "bank:app")):
            done = console(*words, "--log", f"kafka://{made.address}")
            assert done.code == 1 and done.err.count("\n") == 1, done
            assert done.err.startswith(f"error: kafka://{made.address} answers, and names its brokers at addresses"), (
                done
            )
            assert "(broker.invalid:9092: " in done.err and "advertised.listeners" in done.err, done
    finally:
        made.stop(kill=True)


async def speaking(
    spoken: Sequence[tuple[int, int, int]], metadata: Callable[[], MetadataResponse_v12]
) -> asyncio.Server:
    """A broker that speaks these versions of requests, lowest to highest, and answers what it is asked for metadata."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                kind, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                if kind == MetadataRequest_v12.API_KEY:
                    body = b"\0" + metadata().encode()
                else:
                    body = ApiVersionResponse_v0(0, list(spoken)).encode()
                writer.write(struct.pack(">ii", 4 + len(body), number) + body)
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


@contextlib.contextmanager
def beside(*spoken: tuple[int, int, int]) -> Iterator[int]:
    """The port of such a broker, on a loop of its own: commands have one, too."""

    def metadata() -> MetadataResponse_v12:
        return MetadataResponse_v12(0, [(1, "127.0.0.1", port, None, {})], "cluster", 1, [], {})

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(speaking([*spoken, (18, 0, 0)], metadata), loop).result()
    port: int = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:

        async def end() -> None:
            server.close()
            answering = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*answering, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    "words", [("status", "bank"), ("run", "bank:app"), ("topics", "create", "bank:app")], ids=" ".join
)
@pytest.mark.parametrize(
    ("highest", "lacks"),
    [
        (8, "speaks versions 0 to 8 of request 3 (Metadata), and version 12"),
        (12, "does not speak request 32 (DescribeConfigs), and version 1"),
    ],
    ids=["an older version", "not at all"],
)
def test_a_broker_that_is_too_old_is_named_with_what_it_lacks(
    words: tuple[str, ...], highest: int, lacks: str, console: Console
) -> None:
    with beside((MetadataRequest_v12.API_KEY, 0, highest)) as port:
        done = console.here(*words, "--log", f"kafka://127.0.0.1:{port}")
    advice = "use a broker of Kafka 3.9 or 4.x"
    assert done == (1, "", f"error: the Kafka broker at 127.0.0.1:{port} {lacks} is needed: {advice}\n"), done


@pytest.mark.parametrize("empty", [2, 1_000_000], ids=["for a moment", "for good"])
async def test_a_broker_that_knows_of_none_yet(monkeypatch: pytest.MonkeyPatch, empty: int) -> None:
    """As one of 3.9 does in its first moments, which ended a command with a ValueError."""
    asked = 0

    def metadata() -> MetadataResponse_v12:
        nonlocal asked
        asked += 1
        brokers = [] if asked <= empty else [(1, "127.0.0.1", port, None, {})]
        return MetadataResponse_v12(0, brokers, "cluster", 1, [], {})

    server = await speaking([(MetadataRequest_v12.API_KEY, 0, 12), (18, 0, 0)], metadata)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(connections_module, "_STARTING_S", 60.0 if empty < 10 else 0.3)
    connections = Connections([("127.0.0.1", port)], Access(None))
    try:
        if empty < 10:
            await connections.start()
            await connections.reach()
            assert connections.nodes() == [1]
        else:
            with pytest.raises(
                LogUnavailable, match=r"no Kafka broker answers \(127.0.0.1:\d+: it answers, and knows of no broker"
            ):
                await connections.start()
    finally:
        await connections.close()
        server.close()


@pytest.mark.kafka
async def test_a_broker_that_stops_behind_its_first_answer(tmp_path: Path) -> None:
    """What advertises the address is not to be blamed: it was spoken to there."""
    brokers.shared()  # skips the test where none can be had
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION)
    made.launch()
    connections = Connections([("127.0.0.1", made.port)], Access(None))
    try:
        await connections.start()
        made.stop(kill=True)
        with pytest.raises(LogUnavailable, match="no Kafka broker answers") as caught:
            await connections.reach()
        assert "advertised" not in str(caught.value)
    finally:
        await connections.close()
        made.stop(kill=True)


@pytest.mark.kafka
@pytest.mark.processes
def test_brokers_that_allow_shorter_transactions_alone(console: Console, tmp_path: Path) -> None:
    brokers.shared()  # skips the test where none can be had
    limit = {"transaction.max.timeout.ms": "20000"}
    made = broker.prepare(tmp_path / "broker", version=brokers.VERSION, settings=limit)
    log = f"kafka://{made.address}"
    try:
        made.launch()
        done = console("run", "bank:app", "--log", log)
        assert done.code == 1 and "INVALID_TRANSACTION_TIMEOUT" in done.err, done
        assert "transaction.max.timeout.ms" in done.err and "transaction-timeout in the log's URL" in done.err, done
        console.start("run", "bank:app", "--log", f"{log}?transaction-timeout=20", name="run")
        done = console("wait", "bank", "--instances", "1", "--log", log)
        assert done.code == 0, (done, console.said("run"))
    finally:
        console.close()
        made.stop(kill=True)
