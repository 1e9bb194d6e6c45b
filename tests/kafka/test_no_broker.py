"""No broker at the start: each command ends by itself with one line, and an instance that is started again goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from state.errors import LogUnavailable
from state.log.kafka import broker
from state.log.kafka.access import Access
from state.log.kafka.connections import Connections
from tests import brokers
from tests.cli.console import Console

COMMANDS = (
    *(("run", "bank:app"), ("produce", "bank:app", "payments"), ("consume", "bank", "payments"), ("status", "bank")),
    *(("topics", "list", "bank"), ("topics", "create", "bank:app"), ("topics", "describe", "bank", "payments")),
    *(("scale-down", "bank", "--to", "50%"), ("wait", "bank"), ("query", "bank", "balances", "ann")),
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
