"""Statuses told by what they were before: whoever hears knows the same as from whole ones, and nonsense is dropped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.heartbeat_delta import FIELDS, DeltaDecoder, DeltaEncoder
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.errors import ProtocolError
from orchestrator.group.shared_keys import SharedKeys, same_keys
from orchestrator.model import (
    Copy,
    JoinRequest,
    MemberStatus,
    ProcessingStarted,
    Released,
    Role,
    Settings,
    Task,
    TaskId,
)
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, Look, ask, listening, status_of

TASKS = [TaskId(n % 2, n) for n in range(4)]
NUMBERS = st.integers(0, 3)


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[TaskId, Any]]:
    """In any order of keys."""
    return st.lists(st.tuples(st.sampled_from(TASKS), values), max_size=4).map(dict)


STATUSES = st.builds(
    MemberStatus,
    generation=NUMBERS,
    term=NUMBERS,
    active=maps(NUMBERS),
    copies=maps(st.builds(Copy, st.sampled_from(Role), NUMBERS, NUMBERS, st.booleans(), st.none() | NUMBERS)),
    disk=maps(NUMBERS),
    released=maps(st.builds(Released, NUMBERS, NUMBERS)),
    ends=maps(NUMBERS),
    started=maps(st.builds(ProcessingStarted, NUMBERS, NUMBERS)),
    facts=maps(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)),
    weights=maps(NUMBERS),
    leaving=st.booleans(),
    bounce=st.booleans(),
)
HELLO = JoinRequest("A", "A", "A#1", "A#1")


def over_the_wire(message: messages.Up) -> Any:
    return messages.decode_up(messages.encode(message)[4:])


@given(st.lists(STATUSES, min_size=1, max_size=6), st.integers(0, 6))
def test_what_is_heard_is_what_was_said(said: list[MemberStatus], understood_from: int) -> None:
    speaker, listener = DeltaEncoder(said[0]), DeltaDecoder()
    heard = listener.decode(over_the_wire(messages.Join(1, "bank", HELLO, said[0])))
    assert heard == said[0]
    for number, status in enumerate(said[1:], 1):
        speaker.changes = number >= understood_from
        message = speaker.say(status)
        assert isinstance(message, messages.StatusDelta) is speaker.changes
        before, heard = heard, listener.decode(over_the_wire(message))
        assert heard == status and status == heard
        for name in FIELDS:
            told, plain, earlier = getattr(heard, name), getattr(status, name), getattr(before, name)
            if isinstance(plain, dict):
                assert dict(told.items()) == dict(zip(told, told.values(), strict=True)) == plain
                assert told.keys() == plain.keys() and len(told) == len(plain)
                assert all(told[task] == plain[task] and task in told for task in plain)
                assert all((task in told) is (task in plain) for task in TASKS)
                assert (told == earlier) is (plain == dict(earlier)) is (earlier == told)
                assert same_keys(told, earlier) is (plain.keys() == earlier.keys())
                assert (told.get(TASKS[0], 7), repr(dict(told))) == (plain.get(TASKS[0], 7), repr(told))


def test_every_field_of_a_status_can_change() -> None:
    """A field that only the whole status has would stay for ever as it was when its worker joined."""
    assert MemberStatus.__struct_fields__ == messages.StatusDelta.__struct_fields__


def test_a_busy_worker_names_no_task_again() -> None:
    tasks = [TaskId(0, n) for n in range(100)]
    speaker = DeltaEncoder(status_of(tasks))
    speaker.changes = True
    whole, change = messages.FullStatus(status_of(tasks, 1)), speaker.say(status_of(tasks, 1))
    assert (
        isinstance(change, messages.StatusDelta) and isinstance(change.ends, list) and isinstance(change.facts, tuple)
    )
    assert change.active is msgspec.UNSET and change.generation is msgspec.UNSET
    assert len(messages.encode(change)) < 0.7 * len(messages.encode(whole))
    assert messages.encode(speaker.say(status_of(tasks, 1))) == messages.encode(messages.StatusDelta()), (
        "nothing is new"
    )


# ---- versions: a worker or a coordinator from before there were changes


class OldWelcome(msgspec.Struct, tag="welcome", frozen=True):
    """As it was."""

    term: int


def test_either_side_may_be_older() -> None:
    from_old = messages.decode_down(msgspec.msgpack.encode(OldWelcome(3)))
    assert from_old == messages.Welcome(3, changes=False), "so a new worker goes on with whole statuses"
    to_old = messages.encode(messages.Welcome(3, changes=True))[4:]
    assert msgspec.msgpack.decode(to_old, type=OldWelcome) == OldWelcome(3)
    speaker, listener = DeltaEncoder(MemberStatus()), DeltaDecoder()
    for number in range(3):
        message = speaker.say(MemberStatus(generation=number))
        assert message == messages.FullStatus(MemberStatus(generation=number))
        assert listener.decode(over_the_wire(message)).generation == number


# ---- nonsense

PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(TASKS) | st.text(max_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(STATUSES, st.lists(st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=3), max_size=4))
def test_any_change_is_understood_or_refused(joined: MemberStatus, changes: list[dict[str, Any]]) -> None:
    listener = DeltaDecoder()
    listener.decode(messages.Join(1, "bank", HELLO, joined))
    for change in changes:
        body = msgspec.msgpack.encode({"type": "change", **change})
        try:
            status = listener.decode(messages.decode_up(body))  # type: ignore[arg-type]
        except ProtocolError:
            return
        assert messages.decode_up(messages.encode(messages.FullStatus(plain(status)))[4:]) == messages.FullStatus(
            status
        )


def plain(status: MemberStatus) -> MemberStatus:
    values = {name: getattr(status, name) for name in FIELDS}
    return MemberStatus(**{n: dict(v.items()) if isinstance(v, SharedKeys) else v for n, v in values.items()})


@pytest.mark.parametrize(
    "change",
    [
        messages.StatusDelta(ends=[1]),
        messages.StatusDelta(ends=[1, 2, 3]),
        messages.StatusDelta(copies=[Copy(Role.LEARNER)]),
        messages.StatusDelta(facts=([1, 1], [1, 1], [1, 1], [1])),
        messages.StatusDelta(facts=([], [], [], [])),
    ],
)
def test_a_column_of_the_wrong_length_is_refused(change: messages.StatusDelta) -> None:
    listener = DeltaDecoder()
    listener.decode(messages.FullStatus(status_of(TASKS[:2])))
    with pytest.raises(ProtocolError, match="tell the map whole"):
        listener.decode(change)


async def test_a_peer_that_changes_what_it_never_told_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log; the others do not notice."""
    group: list[int] = []

    async def look(coordinator: Coordinator, request: Look) -> int:
        group.append(len(coordinator.group.members))
        member = coordinator.group.members.get("A")
        return member.status.ends.get(TASKS[0], 0) if member is not None else 0

    credentials = Credentials("bank", CREDENTIALS.secret)
    coordinator = Coordinator("bank", Settings(), KeptLedger([]), [Task(task) for task in TASKS], {Look: look})
    services, address = await listening(coordinator, credentials)
    serving = asyncio.create_task(coordinator.serve())
    try:
        async with asyncio.timeout(30):
            control, good, bad = [await connect(address, credentials) for _ in range(3)]
            speaker = DeltaEncoder(status_of(TASKS))
            good.send(messages.Join(messages.VERSION, "bank", HELLO, status_of(TASKS)))
            assert await good.receive_down() == messages.Welcome(1, changes=True, patience_ms=Settings().patience_ms)
            speaker.changes = True
            bad.send(messages.StatusDelta(generation=1))
            with caplog.at_level(logging.WARNING, "orchestrator"), pytest.raises(ConnectionEnded):
                await told_by(bad)
            good.send(speaker.say(status_of(TASKS, 1)))
            while await ask(control, Look()) != status_of(TASKS, 1).ends[TASKS[0]]:
                pass
            good.send(messages.StatusDelta(ends=[1]))
            with caplog.at_level(logging.WARNING, "orchestrator"), pytest.raises(ConnectionEnded):
                while True:
                    await told_by(good)
            await control.close()
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2 and all("sent a malformed frame" in line for line in lines), lines
        assert group and not serving.done()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()


async def told_by(link: Connection) -> messages.Down:
    return await link.receive_down()
