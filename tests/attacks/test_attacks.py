"""What somebody can try who reaches the port of an instance, one case each; the docstring says what is expected.

`Place` looks after each of them whether the coordinator answers, no task has moved, and what is held is bounded.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import STRANGER_BYTES_MAX, ConnectionEnded
from orchestrator.coordinator.handshake import Introduction, NotTrusted, Proof
from orchestrator.coordinator.listener import STRANGERS_MAX
from orchestrator.coordinator.requests import StableRequest, StoreRequest
from orchestrator.coordinator.secret import Right, proof
from orchestrator.coordinator.services import ASKED_MAX
from orchestrator.coordinator.transport import connect
from orchestrator.model import COUNT_MAX, TASKS_MAX, MemberStatus, TaskRange
from tests.attacks.place import (
    DEADLINE_S,
    NONCE,
    SECRET,
    WRONG,
    Place,
    credentials,
    encode,
    join,
    join_request,
)
from tests.group.coordinators import ask

Attack = Callable[[Place], Awaitable[None]]
ATTACKS: list[Attack] = []


def attack(case: Attack) -> Attack:
    ATTACKS.append(case)
    return case


# ---- without the secret


@attack
async def nothing_is_proven(place: Place) -> None:
    """A request without an introduction: dropped, unanswered."""
    one = await place.attacker()
    one.frame(messages.FullStatus(MemberStatus()))
    await one.dropped()


@attack
async def a_wrong_secret(place: Place) -> None:
    """The client notices that the server does not have its secret, and the server refuses the proof."""
    with pytest.raises(NotTrusted, match="does not have this secret"):
        await connect(place.address, credentials(secret=WRONG))
    one = await place.attacker()
    challenge = await one.challenge()
    one.frame(Proof(proof(WRONG.key, "client", messages.VERSION, "bank", 3, NONCE, challenge.nonce, b"")))
    assert "the proof is wrong" in (await one.refusal()).reason


@attack
async def a_replayed_proof(place: Place) -> None:
    """What a member has sent opens nothing again: the server's nonce is another."""
    first = await place.attacker()
    challenge = await first.challenge()
    good = Proof(proof(SECRET.key, "client", messages.VERSION, "bank", 3, NONCE, challenge.nonce, b""))
    second = await place.attacker()
    await second.challenge()
    second.frame(good)
    assert "the proof is wrong" in (await second.refusal()).reason


@attack
async def the_challenge_reflected(place: Place) -> None:
    """The server's own proof, sent back to it, is not a client's."""
    one = await place.attacker()
    one.frame(Proof((await one.challenge()).proof))
    assert "the proof is wrong" in (await one.refusal()).reason


@attack
async def a_challenge_answered_by_another_connection(place: Place) -> None:
    """The server is made to prove itself over its own nonce: its proof still is a server's, with the nonces in order."""
    one, other = await place.attacker(), await place.attacker()
    challenge = await one.challenge()
    one.frame(Proof((await other.challenge(nonce=challenge.nonce)).proof))
    assert "the proof is wrong" in (await one.refusal()).reason


@attack
async def a_downgrade(place: Place) -> None:
    """Another version, older or newer, is refused by name."""
    for version in (0, 1, messages.VERSION + 1, 1 << 60):
        one = await place.attacker()
        one.frame(Introduction(version, "bank", Right.JOIN, NONCE))
        assert f"and the peer {version}" in (await one.refusal()).reason


@attack
async def a_version_changed_on_the_way(place: Place) -> None:
    """The proof is of the version (and the right) that were introduced: one for others does not fit."""
    for facts in ((messages.VERSION - 1, "bank", 3), (messages.VERSION, "bank", 1), (messages.VERSION, "other", 3)):
        one = await place.attacker()
        challenge = await one.challenge()
        one.frame(Proof(proof(SECRET.key, "client", *facts, NONCE, challenge.nonce, b"")))
        assert "the proof is wrong" in (await one.refusal()).reason


@attack
async def another_application(place: Place) -> None:
    """A listener of 'bank' is not one of 'shop', and a client of it looks elsewhere."""
    with pytest.raises(ConnectionEnded, match="an instance of 'bank', and not of 'shop'"):
        await connect(place.address, credentials(application="shop"))


@attack
async def a_right_that_is_none(place: Place) -> None:
    """Rights are 1 to 3: others are malformed."""
    for right in (0, 4, -1, 1 << 62):
        one = await place.attacker()
        one.frame(
            {"type": "introduction", "version": messages.VERSION, "application": "bank", "right": right, "nonce": NONCE}
        )
        await one.dropped()


@attack
async def a_short_nonce(place: Place) -> None:
    """A nonce or a proof of another length is malformed."""
    one, other = await place.attacker(), await place.attacker()
    one.frame({"type": "introduction", "version": messages.VERSION, "application": "bank", "right": 3, "nonce": b""})
    await one.dropped()
    await other.challenge()
    other.frame({"type": "proof", "proof": b""})
    await other.dropped()


@attack
async def a_client_of_the_release_before(place: Place) -> None:
    """It gets its answer in its own format, with an exit code and what to do."""
    one = await place.attacker()
    one.frame({"type": "ask", "id": 3, "verb": "scale-down", "args": {"by": "1"}})
    found = msgspec.msgpack.decode(await one.receive(), type=messages.Answer)
    assert (found.id, found.code) == (3, 3) and "version 2 of the protocol" in found.error
    await one.dropped()


@attack
async def a_worker_of_the_release_before(place: Place) -> None:
    """So does a worker, also one whose first message is longer than what a stranger may send."""
    for padding in ("", "x" * STRANGER_BYTES_MAX):
        one = await place.attacker()
        one.frame({"type": "join", "version": 1, "application": "bank", "padding": padding})
        found = msgspec.msgpack.decode(await one.receive(), type=messages.Closed)
        assert not found.fenced and "version 2 of the protocol" in found.reason


@attack
async def half_a_frame(place: Place) -> None:
    """A stranger that does not go on is dropped."""
    one = await place.attacker()
    one.raw(b"\0\0\1\0half")
    await one.dropped()


@attack
async def silence(place: Place) -> None:
    """A stranger that says nothing at all is dropped, and one that stops within the handshake."""
    one, other = await place.attacker(), await place.attacker()
    await other.challenge()
    await one.dropped()
    await other.dropped()


@attack
async def a_slow_frame(place: Place) -> None:
    """A byte now and then does not keep a stranger's connection."""
    one = await place.attacker()
    one.raw(b"\0\0\x10\0")
    while not one.is_over:
        one.raw(b"x")
        await asyncio.sleep(0.001)  # the pace of the attack


@attack
async def a_huge_frame(place: Place) -> None:
    """What a stranger announces is not waited for."""
    place.without_sweeps()
    one = await place.attacker()
    one.raw((STRANGER_BYTES_MAX + 1).to_bytes(4, "big"))
    while (body := await one.receive()) != b"":
        assert b"version 2" in body  # the line for a worker of the release before
    other = await place.attacker()
    other.raw(b"\xff" * 4_096)
    while await other.receive() != b"":
        pass


@attack
async def nested_without_end(place: Place) -> None:
    """Arrays in arrays as deep as a stranger may send: dropped."""
    one = await place.attacker()
    one.frame(b"\x91" * (STRANGER_BYTES_MAX - 1) + b"\xc0")
    await one.dropped()


@attack
async def json_and_noise(place: Place) -> None:
    """Other formats and noise are dropped, a connection each."""
    chance = random.Random(7)
    for body in (
        b"{}",
        b'{"type": "introduction"}',
        b"GET / HTTP/1.1\r\n\r\n",
        *(chance.randbytes(50) for _ in range(60)),
    ):
        one = await place.attacker()
        one.frame(body)
        await one.dropped()


@attack
async def ten_thousand_connections(place: Place) -> None:
    """Strangers make way for others: no more than some hundred are held, and who has the secret still gets in."""
    host, _, port = place.address.rpartition(":")
    held: list[socket.socket] = []
    worst = 0
    try:
        for number in range(10_000):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, int(port)))
            held.append(one)
            if len(held) > 600:
                held.pop(0).close()
            if number % 100 == 0:
                await asyncio.sleep(0)
                worst = max(worst, place.services.listener.connections[1])
        assert worst <= STRANGERS_MAX
        link = await connect(place.address, credentials(Right.READ))
        await ask(link, StableRequest())
        await link.close()
    finally:
        for one in held:
            one.close()


# ---- with a secret that does not go far enough


@attack
async def a_reader_that_introduces_itself_as_more(place: Place) -> None:
    """The key to read proves nothing about joining."""
    one = await place.attacker()
    challenge = await one.challenge(Right.JOIN)
    key = SECRET.key_of(Right.READ)
    one.frame(Proof(proof(key, "client", messages.VERSION, "bank", 3, NONCE, challenge.nonce, b"")))
    assert "does not have the secret to join" in (await one.refusal()).reason


@attack
async def a_reader_that_scales(place: Place) -> None:
    """Exit code 3, one line, and no scale-down."""
    one = await (await place.attacker()).admitted(Right.READ)
    for request in ({"type": "scale-down", "by": "1"}, {"type": "undo"}, {"type": "plan", "by": "1"}):
        found = await one.answer(request)
        assert found.code == 3 and found.error.startswith("a secret to read does not allow to scale")


@attack
async def a_reader_that_joins(place: Place) -> None:
    """Neither to read nor to scale is to join: no member comes of it."""
    for right in (Right.READ, Right.SCALE):
        one = await (await place.attacker()).admitted(right)
        one.frame(join("S1", 2))
        await one.dropped()
    assert len(place.coordinator.group.members) == 2


@attack
async def a_reader_that_answers_queries(place: Place) -> None:
    """Nor is it to be the worker of an instance."""
    one = await (await place.attacker()).admitted(Right.READ)
    one.frame(messages.Attach(messages.VERSION, 1, "one", "S1"))
    await one.dropped()


# ---- with the secret: requests


@attack
async def requests_that_are_malformed(place: Place) -> None:
    """Each gets one line and exit code 2: values of other types, out of bounds, too long, fields that there are not."""
    one = await (await place.attacker()).admitted()
    for request in (
        {"type": "status", "hand_overs_since": -1},
        {"type": "status", "hand_overs_since": COUNT_MAX + 1},
        {"type": "status", "hand_overs_since": (1 << 64) - 1},
        {"type": "status", "hand_overs_since": "10"},
        {"type": "status", "counted": 1},
        {"type": "status", "unknown": 1},
        {"type": "plan", "current": -5},
        {"type": "plan", "by": "1", "to": 2},
        {"type": "plan", "instances": "x" * 200_000},
        {"type": "scale-down", "by": "1", "timeout_ms": "10s"},
        {"type": "scale-down", "by": "1", "timeout_ms": -1},
        {"type": "explain"},
        {"type": "locate", "task": None},
    ):
        found = await one.answer(request)
        assert found.code == 2 and "is malformed" in found.error and "\n" not in found.error, request


@attack
async def requests_that_mean_nothing(place: Place) -> None:
    """Well formed, and of no use: one line and exit code 2, whatever the text is."""
    one = await (await place.attacker()).admitted()
    for request in (
        {"type": "plan", "by": "1e999%"},
        {"type": "plan", "by": "-1"},
        {"type": "plan", "instances": ",,,"},
        {"type": "scale-down"},
        {"type": "explain", "task": "0_" + "9" * 5_000},
        {"type": "explain", "task": "no task"},
        {"type": "locate", "task": "-1_-1"},
    ):
        found = await one.answer(request)
        assert found.code == 2 and found.error and "\n" not in found.error, request


@attack
async def requests_that_there_are_not(place: Place) -> None:
    """An unknown tag, none, or no map at all gets an answer."""
    one = await (await place.attacker()).admitted()
    for request in ({"type": "shutdown"}, {"type": 5}, {}, [], 7, None, "status"):
        found = await one.answer(request)
        assert found.code == 1 and "there is no request" in found.error, request


@attack
async def a_number_as_key(place: Place) -> None:
    """`bytes(10**10)` would be ten gigabytes: a key is bytes, and nothing else."""
    for key in (10**10, -1, [1] * 1_000, "text"):
        one = await (await place.attacker()).admitted()
        found = await one.answer({"type": "store", "task": "0_0", "table": "t", "key": key})
        assert found.code == 2 and "malformed" in found.error


@attack
async def a_request_nested_without_end(place: Place) -> None:
    """A deep value gets an answer; one that is too deep to be looked at ends the connection."""
    one = await (await place.attacker()).admitted()
    request = b"\x82\xa4type\xa6status\xa7counted"
    found = await one.answer(request + b"\x91" * 500 + b"\xc0")
    assert found.code == 2 and "malformed" in found.error
    one.frame(messages.Ask(1, msgspec.Raw(request + b"\x91" * 200_000 + b"\xc0")))
    await one.dropped()


@attack
async def text_that_is_none(place: Place) -> None:
    """Bytes that are not UTF-8 in a text."""
    one = await (await place.attacker()).admitted()
    found = await one.answer(b"\x82\xa4type\xa7explain\xa4task\xa2\xff\xfe")
    assert found.code == 2


@attack
async def more_requests_than_can_be_answered(place: Place) -> None:
    """Of those that wait for an answer a connection has so many; the next ones are refused at once."""
    place.coordinator.gathered.clear()
    one = await (await place.attacker()).admitted()
    for number in range(ASKED_MAX + 20):
        one.frame(messages.Ask(number, msgspec.Raw(encode({"type": "status"}))))
    refused = [msgspec.msgpack.decode(await one.receive(), type=messages.Answer) for _ in range(20)]
    assert [answer.id for answer in refused] == list(range(ASKED_MAX, ASKED_MAX + 20))
    assert all("wait for an answer" in answer.error for answer in refused)
    place.coordinator.gathered.set()


# ---- with the secret: frames


@attack
async def a_members_half_frame(place: Place) -> None:
    """One that is not whole after some sweeps ends the connection, and slow bytes do not prolong it."""
    one, other = await (await place.attacker()).admitted(), await (await place.attacker()).admitted()
    for attacker in (one, other):
        attacker.frame(messages.Ask(1, msgspec.Raw(encode({"type": "stable"}))))
        await attacker.receive()
        attacker.raw(b"\0\1\0\0half")
    while not other.is_over:
        other.raw(b"x")
        await asyncio.sleep(0.001)  # the pace of the attack
    await one.dropped()


@attack
async def a_members_huge_frame(place: Place) -> None:
    """Over the limit of a frame: dropped before it comes."""
    place.without_sweeps()
    one = await (await place.attacker()).admitted()
    one.raw((messages.FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"x" * 1_000)
    await one.dropped()


@attack
async def many_frames_that_are_not_whole(place: Place) -> None:
    """Together they hold no more than the limit of the listener: the largest make way."""
    unfinished = place.services.listener.unfinished
    unfinished.limit = 1 << 20
    place.without_sweeps()
    attackers = [await (await place.attacker()).admitted() for _ in range(12)]
    for one in attackers:
        one.raw((1 << 20).to_bytes(4, "big") + b"x" * 200_000)
    await place.until("some are dropped", lambda: sum(one.is_over for one in attackers) >= 7)


@attack
async def a_message_that_there_is_not(place: Place) -> None:
    """An unknown tag, or a message of the other direction, ends the connection."""
    for body in ({"type": "format-disk"}, messages.Welcome(99), messages.Assign, {"type": 3}, b""):
        one = await (await place.attacker()).admitted()
        one.frame(body if not isinstance(body, type) else {"type": "assign"})
        await one.dropped()


# ---- with the secret: other members


@attack
async def a_heartbeat_that_nobody_joined_for(place: Place) -> None:
    """A status without a session is nobody's."""
    one = await (await place.attacker()).admitted()
    one.frame(messages.FullStatus(MemberStatus(leaving=True)))
    await one.dropped()
    two = await (await place.attacker()).admitted()
    two.frame(messages.StatusDelta(leaving=True))
    await two.dropped()


@attack
async def a_session_that_turns_into_another_members(place: Place) -> None:
    """A session is of the member that joined: it cannot send S1's heartbeats later, and S1 keeps its own."""
    one = await (await place.attacker()).admitted()
    one.frame(messages.Join(messages.VERSION, "bank", join_request("S3"), MemberStatus()))
    await one.receive()
    session = place.coordinator.group.members.get("S1")
    one.frame(join("S1"))
    while await one.receive() != b"":
        pass
    after = place.coordinator.group.members.get("S1")
    assert session is not None and after is not None and after.session == session.session


@attack
async def a_fenced_members_messages(place: Place) -> None:
    """A later incarnation of S2 has joined: what the earlier one still sends changes nothing."""
    old = place.members["S2"]
    before = place.coordinator.group.members.get("S2")
    assert before is not None
    again = await connect(place.address, credentials())
    again.send(join("S2"))  # the same incarnation over a new connection: the old session is over
    await again.receive_down()
    old.send(messages.FullStatus(MemberStatus(leaving=True, bounce=True)))
    old.send(messages.ask(1, StableRequest()))
    while not isinstance(await old.receive_down(), messages.Answer):
        pass
    after = place.coordinator.group.members.get("S2")
    assert after is not None and not after.status.leaving and after.session != before.session
    place.members["again"] = again


@attack
async def a_join_with_a_bomb(place: Place) -> None:
    """A version of the app with more tasks than a group has, capacities below zero, names of megabytes: dropped."""
    for more in (
        {"tasks": (TaskRange(0, 0, TASKS_MAX + 1),)},
        {"tasks": (TaskRange(0, 10**9, 1),)},
        {"tasks": (TaskRange(0, 0, -1),)},
        {"tasks": tuple(TaskRange(n, 0, 500_000) for n in range(3))},
        {"capacity": -1},
        {"capacity": 10**12},
        {"host": "x" * 2_000_000},
    ):
        one = await (await place.attacker()).admitted()
        one.frame(_join_s9(more))
        await one.dropped()
    assert place.coordinator.group.members.get("S9") is None


def _join_s9(more: dict[str, object]) -> dict[str, object]:
    hello = {"member": "S9", "instance": "S9", "incarnation": "S9#1", "writer": "S9#1", **more}
    return {"type": "join", "version": messages.VERSION, "application": "bank", "hello": hello, "status": {}}


@attack
async def generations_out_of_bounds(place: Place) -> None:
    """A heartbeat with a generation or a term that no group reaches ends its session, not the group's numbers."""
    for change in ({"generation": 1 << 62}, {"term": -1}, {"notice": "x" * 200_000}):
        one = await (await place.attacker()).admitted()
        one.frame(_join_s9({}))
        await one.receive()
        one.frame({"type": "change", **change})
        while await one.receive() != b"":
            pass
    assert place.coordinator.group.generation < 1_000


# ---- with the secret: answers to queries


@attack
async def a_worker_that_the_instance_did_not_start(place: Place) -> None:
    """Who attaches names the incarnation of a process of this instance; once."""
    for number, incarnation in ((1, "two"), (1, ""), (9, "one"), (0, "one")):
        one = await (await place.attacker()).admitted()
        one.frame(messages.Attach(messages.VERSION, number, incarnation, "S1"))
        await one.dropped()


@attack
async def an_answer_to_anothers_query(place: Place) -> None:
    """Two workers are attached; one was asked and the other answers: its answer is dropped, the right one counts."""
    asked, other = [await (await place.attacker()).admitted() for _ in range(2)]
    asked.frame(messages.Attach(messages.VERSION, 1, "one", "S1.1"))
    other.frame(messages.Attach(messages.VERSION, 2, "two", "S1.2"))
    await place.until("both are there", lambda: len(place.stores.attached("")) == 2)
    client = await connect(place.address, credentials(Right.READ))
    client.send(messages.ask(5, StoreRequest("0_0", "t", b"k", "S1.1")))
    lookup = msgspec.msgpack.decode(await asked.receive(), type=messages.Lookup)
    for number in range(lookup.id + 3):
        other.frame(messages.Found(number, b"forged", "active", 0))
    client.send(messages.ask(6, StableRequest()))  # of the coordinator, and this connection is the stores'
    refused = await client.receive_down()
    assert isinstance(refused, messages.Answer) and refused.id == 6 and refused.code == 1
    asked.frame(messages.Found(lookup.id, b"true", "active", 0))
    found = await client.receive_down()
    assert isinstance(found, messages.Answer) and found.body["value"] == b"true"
    asked.frame(messages.Found(lookup.id, b"late", "active", 0))  # nobody waits for it any more
    await client.close()


@attack
async def an_answer_that_nobody_asked_for(place: Place) -> None:
    """From a peer that is no worker: dropped. From one that was asked in an earlier session: dropped."""
    one = await (await place.attacker()).admitted()
    one.frame(messages.Found(1, b"forged", "active", 0))
    await one.dropped()
    first = await (await place.attacker()).admitted()
    first.frame(messages.Attach(messages.VERSION, 1, "one", "S1"))
    await place.until("it is there", lambda: bool(place.stores.attached("")))
    client = await connect(place.address, credentials(Right.READ))
    client.send(messages.ask(5, StoreRequest("0_0", "t", b"k")))
    lookup = msgspec.msgpack.decode(await first.receive(), type=messages.Lookup)
    first.writer.transport.abort()
    ended = await client.receive_down()
    assert isinstance(ended, messages.Answer) and "its worker has ended" in ended.error
    second = await (await place.attacker()).admitted()
    second.frame(messages.Attach(messages.VERSION, 1, "one", "S1"))
    await place.until("it is back", lambda: bool(place.stores.attached("")))
    second.frame(messages.Found(lookup.id, b"of the earlier session", "active", 0))
    client.send(messages.ask(6, StoreRequest("0_0", "t", b"k")))
    lookup = msgspec.msgpack.decode(await second.receive(), type=messages.Lookup)
    second.frame(messages.Found(lookup.id, b"true", "active", 0))
    found = await client.receive_down()
    assert isinstance(found, messages.Answer) and found.body["value"] == b"true"
    await client.close()


@pytest.mark.parametrize("case", ATTACKS, ids=[case.__name__ for case in ATTACKS])
async def test_an_attack_costs_the_group_nothing(case: Attack) -> None:
    async with asyncio.timeout(DEADLINE_S), Place() as place:
        await case(place)


def test_there_are_thirty() -> None:
    assert len(ATTACKS) >= 30
