"""How a worker knows that a coordinator hears it, and how it commits by that."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator import App, Record, Table
from orchestrator.coordinator import messages
from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.model import Settings
from state.log.memory import MemoryLog
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.contracts.logs import until
from workers.commands.status import weakest
from workers.connection.contact import Contact, patient
from workers.connection.credentials import instance_credentials
from workers.prepare import prepare
from workers.spec import InstanceSpec, WorkerSpec
from workers.worker.session import Session
from workers.worker.worker import Worker

app = App("counted", partitions=1, guarantee="at-least-once")
numbers = app.topic("numbers", key=str, value=int)
last = app.table("last", key=str, value=int)


@app.processor(numbers, last)
def keep(number: Record[str, int], last: Table[str, int]) -> None:
    last[number.key] = number.value


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_contact_is_as_old_as_the_heartbeat_that_was_answered() -> None:
    """Not as the answer: that may have waited for this process, which was stopped, in a buffer."""
    clock = Clock()
    contact = Contact(clock)
    assert not contact.may_begin() and not contact.may_write()
    contact.opened()
    contact.promised(4_000)
    contact.sent()
    clock.now = 1.0
    contact.sent()
    contact.acknowledged(1)
    assert contact.may_begin()
    clock.now = 2.0
    assert not contact.may_begin() and contact.may_write()
    contact.acknowledged(2)
    clock.now = 2.9
    assert contact.may_begin()
    clock.now = 4.9
    assert contact.may_write()
    clock.now = 5.0
    assert not contact.may_write()


def test_answers_of_another_connection_count_nothing() -> None:
    clock = Clock()
    contact = Contact(clock)
    contact.promised(4_000)
    contact.opened()
    contact.sent()
    contact.opened()
    contact.acknowledged(1)
    assert not contact.may_write()


@given(st.lists(st.tuples(st.sampled_from(["sent", "heard", "opened"]), st.integers(0, 5)), max_size=40))
def test_who_may_write_was_heard_of_within_the_promise(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order: what a coordinator has heard was sent, and is no older than it promised."""
    clock, sent, heard_at = Clock(), list[float](), float("-inf")
    contact = Contact(clock)
    contact.promised(3_000)
    for what, number in steps:
        clock.now += number
        if what == "sent":
            contact.sent()
            sent.append(clock.now)
        elif what == "opened":
            contact.opened()
            sent = []
        elif 0 < number <= len(sent):
            contact.acknowledged(number)
            heard_at = max(heard_at, sent[number - 1])
        assert contact.may_write() == (clock.now - heard_at < 3)
        assert contact.may_begin() == (clock.now - heard_at < 1.5)


def test_a_coordinator_is_patient_where_nothing_fences() -> None:
    settings = Settings(heartbeat_ms=500, disconnect_grace_ms=200)
    fenced, unfenced = MemoryLog(markers=False), MemoryLog()
    assert patient(settings, AT_LEAST_ONCE, unfenced).disconnect_grace_ms == 1_500
    assert patient(settings, AT_LEAST_ONCE, fenced) == patient(settings, EXACTLY_ONCE, unfenced) == settings
    assert settings.patience_ms == 200 and patient(settings, AT_LEAST_ONCE, unfenced).patience_ms == 1_500


async def test_a_commit_takes_a_transaction_until_a_coordinator_answers(tmp_path: Path) -> None:
    """One that answers no heartbeats, of an older version, is as good as none."""
    log = MemoryLog()
    instance = InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path), settings=Settings(heartbeat_ms=50))
    worker = Worker(WorkerSpec(instance, 1, "one"), log, await prepare(log, app), {})
    session = worker.session = Session(worker)
    answering, received = asyncio.Event(), asyncio.Event()

    async def welcome(peer: Peer) -> None:
        join = messages.decode_up(await peer.connection.receive())
        assert isinstance(join, messages.Join) and join.hello.guarantee == "at-least-once"
        peer.connection.send(messages.Welcome(1, True, 60_000))
        for count in range(1, 1_000):
            messages.decode_up(await peer.connection.receive())
            received.set()
            if answering.is_set():
                peer.connection.send(messages.Acknowledged(count))

    async def is_heard() -> bool:
        return session.guarantee()[0] == AT_LEAST_ONCE

    server = Listener(instance_credentials(instance), welcome)
    assert await log.acquire(app.id, "i1", await server.open(), None) is not None
    running = [asyncio.create_task(one) for one in (session.run(), session.beat())]
    try:
        async with asyncio.timeout(30):
            await received.wait()
            assert session.guarantee()[0] == EXACTLY_ONCE
            answering.set()
            await until("an answer", is_heard)
            may_write = session.guarantee()[1]
            assert may_write()
            session.rejoin()  # what was heard of the old id says nothing of the new one
            assert session.guarantee()[0] == EXACTLY_ONCE
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*session._ending)
        await session.close()
        await server.close()


async def test_where_the_log_fences_it_anyway_nothing_is_asked_of_the_clock(tmp_path: Path) -> None:
    log = MemoryLog(markers=False)
    spec = WorkerSpec(InstanceSpec("tests:app", app.id, "i1", "memory:", str(tmp_path)), 1, "one")
    session = Session(Worker(spec, log, await prepare(log, app), {}))
    assert session.guarantee()[0] == AT_LEAST_ONCE and session.guarantee()[1]()


def test_an_application_promises_what_the_weakest_of_its_versions_does() -> None:
    described = {"guarantee": "at-least-once"}
    once, least = {"guarantees": ["exactly-once"]}, {"guarantees": ["at-least-once"]}
    assert weakest([once, once], described) == "exactly-once"
    assert weakest([once, least], described) == "at-least-once"
    assert weakest([], described) == weakest([{}], described) == "at-least-once"
