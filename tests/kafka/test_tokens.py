"""Tokens of OAUTHBEARER: commands that hang or are not waited for any more, and tokens that cannot be had for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.protocol.admin import (
    ApiVersionRequest_v0,
    ApiVersionResponse_v0,
    SaslAuthenticateResponse_v1,
    SaslHandShakeResponse_v1,
)
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import EndTxnRequest_v0, InitProducerIdRequest_v0, InitProducerIdResponse_v0

from state.errors import LogUnavailable, OutcomeUnknown
from state.log.batches import build_all
from state.log.group_store import OwnerRecord
from state.log.kafka import access as access_module
from state.log.kafka.access import Access
from state.log.kafka.cluster import Cluster
from state.log.kafka.connections import Connections
from state.log.kafka.facts import UNDER_LEASE, View, owner_record
from state.log.kafka.facts_topic import FactsTopic
from state.log.kafka.offsets import Offsets
from state.log.kafka.producer import Producer
from state.log.kafka.properties import BadClientConfig
from state.log.kafka.requests import MetadataRequest_v12, MetadataResponse_v12, OffsetCommitRequest_v7, metadata
from state.log.kafka.topics import Names, Topics
from state.log.kafka.writers import Writers
from state.log.protocol import NewRecord, Partition, TaskCommit, always

DEADLINE_S = 5.0
OUT = Partition("out", 0)
HANGS = "sh -c 'sleep 60 & echo $! > {0}/made; mv {0}/made {0}/pid; wait'"


def token_of(folder: Path, setting: str) -> Callable[[], Awaitable[str]]:
    """What a connection asks for its token, by this setting."""
    path = folder / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n{setting}\n")
    asked: Callable[[], Awaitable[str]] = Access(path).options()["sasl_oauth_token_provider"].token
    return asked


def command(text: str) -> str:
    return f"sasl.oauthbearer.token.command={text}"


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - nothing else shows it
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["too late", "cancelled"])
async def test_what_a_command_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """A pipe of two programs in a shell: the shell alone was killed, what it had started held the output, and the end of that was
    waited for; a command whose connection was cancelled went on."""
    monkeypatch.setattr(access_module, "TOKEN_WITHIN_S", 60.0 if is_cancelled else 1.0)
    asking = asyncio.ensure_future(token_of(tmp_path, command(HANGS.format(tmp_path)))())
    await until((tmp_path / "pid").exists)
    started = int((tmp_path / "pid").read_text())
    if is_cancelled:
        asking.cancel()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(asyncio.CancelledError if is_cancelled else LogUnavailable):
            await asking
    await until(lambda: not runs(started))


async def test_what_has_left_a_command_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "TOKEN_WITHIN_S", 1.0)
    monkeypatch.setattr(access_module, "_KILLED_WITHIN_S", 0.1)
    try:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(LogUnavailable, match="gave no token within"):
                await token_of(tmp_path, command(HANGS.format(tmp_path).replace("sleep", "setsid sleep")))()
    finally:
        left = int((tmp_path / "pid").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
        await until(lambda: not runs(left))


class Brokers:
    """One broker at two addresses that take tokens; what it answers by `answers`, no answer: the connection ends."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.leads_at = 0
        self.answers: dict[int, Callable[[], Any]] = {
            MetadataRequest_v12.API_KEY: self._metadata,
            ApiVersionRequest_v0.API_KEY: lambda: ApiVersionResponse_v0(0, [(key, 0, 20) for key in range(40)]),
            SaslHandShakeResponse_v1.API_KEY: lambda: SaslHandShakeResponse_v1(0, ["OAUTHBEARER"]),
            SaslAuthenticateResponse_v1.API_KEY: self._authenticated,
            FindCoordinatorResponse_v1.API_KEY: lambda: FindCoordinatorResponse_v1(0, 0, None, 1, "", 0),
        }

    async def start(self, folder: Path, setting: str) -> Connections:
        self._servers = [await asyncio.start_server(self._answer, "127.0.0.1", 0) for _ in range(2)]
        self._ports = [one.sockets[0].getsockname()[1] for one in self._servers]
        token_of(folder, setting)
        connections = Connections([("127.0.0.1", self._ports[0])], Access(folder / "client.properties"))
        await connections.start()
        return connections

    def close(self) -> None:
        for one in self._servers:
            one.close()

    def _metadata(self) -> Any:
        partition = (0, 0, 1, 0, [1], [1], [], {})
        topics = [(0, "out", b"i" * 16, False, [partition], 0, {})]
        listed = [(1, "127.0.0.1", self._ports[self.leads_at], None, {})]
        return MetadataResponse_v12(0, listed, "cluster", 1, topics, {})

    def _authenticated(self) -> Any:
        """The second address takes no token."""
        return SaslAuthenticateResponse_v1(58 * self.leads_at, None, b"", 0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                kind, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.asked.append(kind)
                if kind not in self.answers:
                    break
                head = b"\0" if kind == MetadataRequest_v12.API_KEY else b""
                body = head + self.answers[kind]().encode()
                writer.write(struct.pack(">ii", 4 + len(body), number) + body)
        writer.close()


@contextlib.asynccontextmanager
async def brokers_with(folder: Path, setting: str) -> AsyncIterator[tuple[Brokers, Connections]]:
    """Brokers, and connections to them that were let in, by a token in the file `token`."""
    (folder / "token").write_text("a-token")
    made = Brokers()
    connections = await made.start(folder, setting.format(folder))
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield made, connections
    finally:
        await connections.close()
        made.close()


FILE, COMMAND = "sasl.oauthbearer.token.endpoint.url=file://{}/token", command("cat {}/token")


@pytest.mark.parametrize("setting", [FILE, COMMAND], ids=["file", "command"])
@pytest.mark.parametrize("is_there", [False, True], ids=["not there", "empty"])
async def test_a_token_that_is_written_anew_is_waited_for(tmp_path: Path, setting: str, is_there: bool) -> None:
    """The file is there, and empty, for a moment; or it is made anew. Before any was taken that ends the command."""
    tries = 0
    token = tmp_path / "token"

    async def attempt() -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            token.write_text("another")
        return await connections.send(1, metadata([]), "txn")

    async with brokers_with(tmp_path, setting) as (_, connections):
        token.write_text("") if is_there else token.unlink()
        with pytest.raises((BadClientConfig, LogUnavailable), match="token"):
            await Connections([address_of(connections)], Access(tmp_path / "client.properties")).start()
        assert (await connections.retried("a question", attempt)).cluster_id == "cluster"
        assert tries == 2


async def test_whether_a_transaction_took_place_is_not_known_without_a_token(tmp_path: Path) -> None:
    """Its end is sent, the connection ends, and there is no token for another: an error that means that nothing is written was
    raised. It ends once the requests of one are not tried again."""
    async with brokers_with(tmp_path, FILE) as (broker, connections):

        def end() -> Any:
            (tmp_path / "token").write_text("")
            raise ConnectionError("ends")

        broker.answers[EndTxnRequest_v0.API_KEY] = end
        with pytest.raises(OutcomeUnknown, match="the token is empty"):
            await producer_of(connections, "app.worker.w")._end(committed=True)
        assert broker.asked.count(EndTxnRequest_v0.API_KEY) == 1


async def test_whether_records_are_written_is_not_known_where_the_next_leader_lets_nobody_in(tmp_path: Path) -> None:
    async with brokers_with(tmp_path, FILE) as (broker, connections):

        def move() -> Any:
            broker.leads_at = 1
            raise ConnectionError("ends")

        broker.answers[ProduceRequest_v7.API_KEY] = move
        built = build_all({OUT: [NewRecord(b"k", b"v", 1)]}, 1000)
        producer = producer_of(connections, None)
        with pytest.raises(OutcomeUnknown, match="refuses the token"):
            await producer.produce(built)
        assert broker.asked.count(ProduceRequest_v7.API_KEY) == 1


async def test_whether_positions_are_committed_is_not_known_where_the_next_coordinator_lets_nobody_in(
    tmp_path: Path,
) -> None:
    """Those of a commit at least once: the worker ended for what a restore from the log cures."""
    async with brokers_with(tmp_path, FILE) as (broker, connections):

        def move() -> Any:
            broker.leads_at = 1
            raise ConnectionError("ends")

        broker.answers[InitProducerIdRequest_v0.API_KEY] = lambda: InitProducerIdResponse_v0(0, 0, 1, 0)
        broker.answers[OffsetCommitRequest_v7.API_KEY] = move
        topics = Topics(connections, Names(), {})
        writers = Writers(Cluster(connections, topics, Offsets(connections, topics, 1.0), 1.0), 1.0)
        writers._opened["app", "w"] = producer_of(connections, "app.worker.w")
        with pytest.raises(OutcomeUnknown, match=r"refuses the token.*processed again from the last positions"):
            await writers.commit_unfenced("app", "w", [TaskCommit("0_0", 1, {}, {OUT: 5})], owned("w"), always)
        assert broker.asked.count(OffsetCommitRequest_v7.API_KEY) == 1


def owned(transactional_id: str) -> FactsTopic:
    """Facts in which a task is that id's."""
    view = View("app")
    record = owner_record(OwnerRecord("0_0", 1, "m", transactional_id, 1))
    view.apply(UNDER_LEASE, 0, record.key, record.value)
    return cast(FactsTopic, SimpleNamespace(view=view, check=lambda: None))


def address_of(connections: Connections) -> tuple[str, int]:
    host, _, port = connections.where.rpartition(":")
    return host, int(port)


def producer_of(connections: Connections, transactional_id: str | None) -> Producer:
    topics = Topics(connections, Names(), {})
    return Producer(connections, topics, Offsets(connections, topics, 1.0), transactional_id, 1.0, "txn", 0.5)
