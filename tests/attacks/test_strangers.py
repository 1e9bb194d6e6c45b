"""Bytes of all kinds, and connections that say nothing, with and without TLS: a group goes on, and what they hold is bounded.

One rule: where a peer has proven the right to join, it may do what members do; nothing else that it sends may end the service, raise an
internal error, or stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.coordinator import handshake_rate, listener, messages
from orchestrator.coordinator.handshake import Introduction, Proof
from orchestrator.coordinator.listener import STRANGERS_MAX
from orchestrator.coordinator.requests import ExplainRequest, PlanRequest, StableRequest, StatusRequest, StoreRequest
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.tls import Tls, make_tls
from orchestrator.coordinator.transport import connect
from orchestrator.model import MemberStatus
from tests.attacks.place import NONCE, Attacker, Place, credentials, encode, join_request, status_of
from tests.attacks.test_tls import certificate
from tests.group.coordinators import ask

CONNECTIONS, FRAMES = 150, 24  # for each kind of peer, and at most for each of them
HELD = 1_000
HANDSHAKES, ELSEWHERE = 20, "127.0.0.9"
DEADLINE_S = 60.0
READING = [StatusRequest(), StableRequest(), ExplainRequest("0_1"), StoreRequest("0_0", "t", b"k"), PlanRequest(by="1")]


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Tls | None:
    if request.param == "plain":
        return None
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by openssl")
    return make_tls(*certificate(tmp_path, "fleet"), "")


class Fuzz:
    """Bodies of frames: noise, and what is nearly a message."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def body(self, known: list[bytes]) -> bytes:
        way = self.chance.randrange(6)
        if way == 0:
            return self.chance.randbytes(self.chance.choice((0, 1, 4, 100, 5_000)))
        if way == 1:
            return encode(self.value(4))
        body = bytearray(self.chance.choice(known))
        if way == 2:  # some bits
            for _ in range(self.chance.randint(1, 8)):
                body[self.chance.randrange(len(body))] ^= 1 << self.chance.randrange(8)
        elif way == 3:  # cut short, or with something behind it
            del body[self.chance.randrange(len(body)) :]
            body += self.chance.randbytes(self.chance.randrange(8))
        elif way == 4:  # two halves
            other = self.chance.choice(known)
            at = self.chance.randrange(min(len(body), len(other)))
            body[at:] = other[at:]
        else:  # the fields that there are, with other values
            return self._other_values(bytes(body))
        return bytes(body)

    def _other_values(self, body: bytes) -> bytes:
        found: dict[str, Any] = msgspec.msgpack.decode(body)
        for place in (found, found.get("request"), found.get("hello"), found.get("status")):
            if isinstance(place, dict):
                for name in [name for name in place if name != "type" and self.chance.random() < 0.3]:
                    place[name] = self.value(2)
        return encode(found)

    def value(self, depth: int) -> Any:
        chance = self.chance
        leaves = (
            None,
            True,
            -1,
            0,
            1 << 53,
            1 << 63,
            1.5,
            float("nan"),
            "",
            "x" * 2_000,
            "\0",
            "0_1",
            "S1",
            b"",
            b"\xff" * 9,
        )
        kind = chance.randrange(4) if depth else 0
        if kind == 1:
            return [self.value(depth - 1) for _ in range(chance.randrange(5))]
        if kind == 2:
            return {str(self.value(0)): self.value(depth - 1) for _ in range(chance.randrange(5))}
        return chance.choice(leaves)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Now and then cut anywhere, or under another length than its own."""
        way = self.chance.randrange(5)
        if way == 0:
            at = self.chance.randrange(len(data) + 1)
            yield data[:at]
            yield data[at:]
        elif way == 1:
            yield self.chance.choice((0, 1, 100, 1 << 20, 1 << 31, (1 << 32) - 1)).to_bytes(4, "big") + data[4:]
        else:
            yield data


def known(right: Right | None) -> list[bytes]:
    """Messages as a peer would send them there."""
    if right is None:
        return [
            encode(Introduction(messages.VERSION, "bank", Right.JOIN, NONCE)),
            encode(Proof(NONCE)),
            encode({"type": "ask", "id": 1, "request": {"type": "status"}}),
            encode({"type": "join", "version": 1, "application": "bank", "hello": {}}),
        ]
    requests = [encode(messages.Ask(7, msgspec.Raw(encode(one)))) for one in READING]
    if right < Right.JOIN:
        return requests
    newcomer = messages.Join(messages.VERSION, "bank", join_request("S9"), MemberStatus(generation=1, term=1))
    attach = messages.Attach(messages.VERSION, 1, "another", "S9")
    beats = [messages.FullStatus(status_of("S1")), messages.StatusDelta(generation=2, ends=[1, 2])]
    return [*requests, *map(encode, (newcomer, attach, *beats))]


async def speak(one: Attacker, fuzz: Fuzz, right: Right | None) -> None:
    """Frame after frame until the connection is ended, by whom does not matter."""
    for _ in range(fuzz.chance.randint(1, FRAMES)):
        if one.is_over or one.writer.transport.is_closing():
            return
        body = fuzz.body(known(right))
        for piece in fuzz.pieces(len(body).to_bytes(4, "big") + body):
            one.raw(piece)
            await asyncio.sleep(0)
    one.writer.close()


@pytest.mark.parametrize("right", [None, Right.READ, Right.SCALE, Right.JOIN])
async def test_bytes_of_all_kinds_end_nothing_and_stay_nowhere(tls: Tls | None, right: Right | None) -> None:
    fuzz = Fuzz(13 if right is None else int(right))
    uncaught: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
    async with asyncio.timeout(DEADLINE_S), Place(tls) as place:
        place.without_sweeps()
        door = place.services.listener
        before = door.connections[0]
        for _ in range(CONNECTIONS):
            one = await place.attacker()
            if right is not None:
                await one.admitted(right)
            await speak(one, fuzz, right)
        link = await connect(place.address, credentials())
        found = await ask(link, StatusRequest())
        assert {task["id"] for task in found["tasks"]} == {"0_0", "0_1", "0_2", "0_3"}
        await link.close()
        await place.until("the peers to be gone", lambda: door.connections[0] == before)
        assert door.unfinished.total == 0
        if right is Right.JOIN:
            place.before = await place.state()  # it may be a member, and then it gets tasks
    assert not uncaught


async def test_connections_that_say_nothing_make_way(tls: Tls | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than some hundred are held, also of those that have not begun TLS; a peer with the secret gets in meanwhile."""
    monkeypatch.setattr(listener, "TLS_HANDSHAKE_S", 3_600.0)  # no time drops them
    async with asyncio.timeout(DEADLINE_S), Place(tls) as place:
        place.without_sweeps()
        held: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        try:
            for _ in range(HELD):
                one = socket.socket()
                one.setblocking(False)
                held.append(one)
                await loop.sock_connect(one, place.where)

            async def ended(one: socket.socket) -> None:
                try:
                    assert await loop.sock_recv(one, 1) == b""
                except ConnectionError:
                    return

            for one in held[: HELD - STRANGERS_MAX]:
                await ended(one)
            link = await connect(place.address, credentials(Right.READ))
            await ask(link, StableRequest())
            await link.close()
            assert place.services.listener.connections[1] <= STRANGERS_MAX
        finally:
            for one in held:
                one.close()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"])
async def test_a_connection_that_does_not_go_on_is_dropped(tls: Tls | None, sent: bytes) -> None:
    """Half a greeting of TLS, or none, is a stranger's as well; and one that goes on very slowly."""
    async with asyncio.timeout(DEADLINE_S), Place(tls) as place:
        place.with_sweeps()
        silent, slow = [await asyncio.open_connection(*place.where) for _ in range(2)]
        silent[1].write(sent)
        while not slow[0].at_eof() and slow[0].exception() is None:
            slow[1].write(sent[:1] or b"\0")
            sent = sent[1:]
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            assert (
                len(await silent[0].read()) < 1_000
            )  # a line in the format of an older release, where it looks like one
        await place.until("them to be gone", lambda: place.services.listener.connections[1] == 0)
        for _, writer in (silent, slow):
            writer.transport.abort()


@pytest.mark.parametrize("tls", ["tls"], indirect=True)  # without TLS there is no handshake
async def test_a_client_that_ends_within_the_handshake_is_gone(tls: Tls) -> None:
    """At any byte of it."""
    async with asyncio.timeout(DEADLINE_S), Place(tls) as place:
        place.without_sweeps()
        door = place.services.listener
        before = door.connections[0]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        greeting = tls.now().client.wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            greeting.do_handshake()
        hello = outgoing.read()
        for end in range(0, len(hello) + 1, 7):
            _, writer = await asyncio.open_connection(*place.where)
            writer.write(hello[:end])
            await writer.drain()
            if end % 2:
                writer.close()
            else:
                writer.transport.abort()
        await place.until("them to be gone", lambda: door.connections == (before, 0))


@pytest.mark.parametrize("tls", ["tls"], indirect=True)
async def test_a_flood_of_handshakes_keeps_no_member_away(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another address than the members': so many are begun, the others are ended before."""
    monkeypatch.setattr(handshake_rate, "AT_ONCE", HANDSHAKES)
    monkeypatch.setattr(handshake_rate, "A_SECOND", 0.0)
    async with asyncio.timeout(DEADLINE_S), Place(tls) as place:
        place.without_sweeps()
        begun = 0
        for _ in range(3 * HANDSHAKES):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*place.where, ssl=tls.now().client, local_addr=(ELSEWHERE, 0))
                begun += 1
                writer.transport.abort()
        assert 0 < begun <= HANDSHAKES
        for _ in range(HANDSHAKES // 2):
            link = await connect(place.address, credentials(Right.READ))
            await ask(link, StableRequest())
            await link.close()
