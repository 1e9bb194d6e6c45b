"""A query asks the coordinator only where the task is, and then that instance: one that is gone, or has handed the task
over, is asked no more once the group has another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.coordinator import admin, messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.requests import LocateRequest, StoreRequest
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.errors import OrchestratorError
from orchestrator.model import MemberStatus, Owner, Role, Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from state.log.memory import MemoryLog
from state.log.protocol import GroupLog, NewRecord, Partition, TopicSpec
from state.store.memory import MemoryStore
from tests.attacks.place import credentials, join_request, no_lease
from workers.commands.query_place import ask_where_it_is
from workers.fleet.client import Client
from workers.instance.instance_stores import InstanceStores
from workers.worker.offered_stores import ENTRY_BYTES_MAX, answered, look_up, scan

TASK = TaskId(0, 0)


class Answering:
    """An instance with one worker, which answers each look-up with `value`, or that the task is not open."""

    def __init__(self, name: str, value: bytes | None) -> None:
        self.name, self.value, self.asked = name, value, 0
        self.services = Services(credentials())
        self.services.add(InstanceStores(name, {1: "one"}.get, no_lease))

    async def begin(self) -> None:
        await self.services.open()
        self.link = await connect(self.services.listener.address, credentials())
        self.link.send(messages.Attach(messages.VERSION, 1, "one", self.name))
        self.running = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        while True:
            lookup = await self.link.receive_down()
            assert isinstance(lookup, messages.Lookup)
            self.asked += 1
            problem = "" if self.value is not None else f"0_0 is not open on {self.name}; try again"
            self.link.send(messages.Found(lookup.id, self.value, "active", 0, problem))

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.link.close()
        await self.services.close()


async def joined(address: str, name: str, listens_at: str) -> Connection:
    link = await connect(address, credentials())
    request = replace(join_request(name), address=listens_at)
    link.send(messages.Join(messages.VERSION, "bank", request, MemberStatus(active={TASK: 1})))
    await link.receive_down()
    return link


@asynccontextmanager
async def client_of(
    log: GroupLog, instance: Answering, tasks: Sequence[TaskId], right: Right = Right.JOIN
) -> AsyncIterator[Client]:
    """Of a group with this one instance, which owns these tasks of the bank."""
    owners = [Owner(task, 1, instance.name, f"{instance.name}#1", 1) for task in tasks]
    coordinator = Coordinator(
        "bank", Settings(heartbeat_ms=10), KeptLedger(owners), [Task(task) for task in tasks], admin.HANDLERS
    )
    services = Services(credentials())
    coordinator.listen(services)
    async with asyncio.timeout(30):
        assert await log.acquire("bank", instance.name, await services.open(), None) is not None
        serving = asyncio.create_task(coordinator.serve())
        await instance.begin()
        link = await joined(services.listener.address, instance.name, instance.services.listener.address)
        client = Client(log, "bank", lambda: credentials(right))
        try:
            yield client
        finally:
            await client.close()
            await link.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await services.close()
            await instance.end()


@pytest.mark.parametrize("before", ["gone", "handed over"])
async def test_the_instance_is_looked_for_again(before: str) -> None:
    coordinator = Coordinator(
        "bank", Settings(heartbeat_ms=10), KeptLedger([Owner(TASK, 1, "S1", "S1#1", 1)]), [Task(TASK)], admin.HANDLERS
    )
    services = Services(credentials())
    coordinator.listen(services)
    log = MemoryLog(markers=False)
    assert await log.acquire("bank", "S1", await services.open(), None) is not None
    serving = asyncio.create_task(coordinator.serve())
    old, new = Answering("S1", None), Answering("S1", b"value")
    async with asyncio.timeout(30):
        await old.begin()
        await new.begin()
        first = old.services.listener.address
        if before == "gone":
            await old.end()
        link = await joined(services.listener.address, "S1", first)
        client = Client(log, "bank", lambda: credentials(Right.READ))
        place = await client.ask(LocateRequest("0_0"))
        assert (place["instance"], place["address"]) == ("S1", first)
        asking = asyncio.create_task(ask_where_it_is(client, StoreRequest("0_0", "table", b"key")))
        if before == "handed over":
            while not old.asked:  # noqa: ASYNC110 - the loop has to go on
                await asyncio.sleep(0)
        else:
            with pytest.raises(OrchestratorError, match="no instance answers at"):
                await client.ask_instance(first, StoreRequest("0_0", "table", b"key"))
        assert not asking.done()
        again = await joined(services.listener.address, "S1", new.services.listener.address)
        found = await asking
        assert (found["value"], found["instance"]) == (b"value", "S1") and new.asked == 1
        await client.close()
        for open_link in (link, again):
            await open_link.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await services.close()
        if before != "gone":
            await old.end()
        await new.end()


def test_a_task_whose_state_is_not_measured_yet_does_not_say_that_a_key_is_absent() -> None:
    """Right after a task was opened nobody knows how much of its changelog is missing."""
    opened: Any = SimpleNamespace(store=MemoryStore(stamp={}))
    run: Any = SimpleNamespace(
        stores={"t": opened}, process=None, halt=None, ends={}, catching_up=False, position=lambda: 0, epoch=0
    )
    worker: Any = SimpleNamespace(runs={TASK: run}, spec=SimpleNamespace(instance=SimpleNamespace(instance="i1")))
    lookup = messages.Lookup(1, "0_0", "t", b"ann")
    assert "try again" in look_up(worker, lookup, {}).error
    run.ends = {Partition("t-changelog", 0): 5}
    found = look_up(worker, lookup, run.ends)
    assert (found.error, found.value, found.restore_lag) == ("", None, 5)


@pytest.mark.parametrize(
    ("role", "catching_up", "answer"),
    [(Role.ACTIVE, False, ("active", 0)), (Role.ACTIVE, True, ("active", 1)), (Role.STANDBY, False, ("standby", 1))],
)
def test_a_halted_task_has_all_that_it_committed(role: Role, *, catching_up: bool, answer: tuple[str, int]) -> None:
    """On Kafka a marker lies behind its last commit, which no store counts: it was taken for a record that is missing, for as long as
    the task was halted."""
    store, ends = MemoryStore(stamp={}), {Partition("t-changelog", 0): 2}
    store.write({b"ann": b"5"}, 1)
    opened = {"t": SimpleNamespace(store=store)}
    run: Any = SimpleNamespace(stores=opened, process=None, halt=object(), role=role, ends=ends)
    run.catching_up, run.position, run.epoch = catching_up, lambda: 1, 3
    worker: Any = SimpleNamespace(runs={TASK: run}, spec=SimpleNamespace(instance=SimpleNamespace(instance="i1")))
    found = look_up(worker, messages.Lookup(1, "0_0", "t", b"ann"), ends)
    assert (found.value, found.role, found.restore_lag) == (b"5", *answer)


async def test_what_the_log_has_is_in_the_answer_or_in_its_lag() -> None:
    """The owner commits a position before its store has what belongs to it; a copy learns later still that there is more."""
    store, changelog = MemoryStore(stamp={}), Partition("t-changelog", 0)
    run: Any = SimpleNamespace(stores={"t": SimpleNamespace(store=store)}, process=object(), ends={}, catching_up=False)
    run.epoch = 4
    log = MemoryLog()
    await log.create_topic(TopicSpec("t-changelog", 1, "changelog"))
    instance = SimpleNamespace(instance=SimpleNamespace(instance="i1"))
    worker: Any = SimpleNamespace(runs={TASK: run}, spec=instance, log=log)
    lookup, committed = messages.Lookup(1, "0_0", "t", b"ann"), asyncio.Event()

    async def commit() -> None:
        await committed.wait()
        store.write({b"ann": b"5"}, 1)

    commits = SimpleNamespace(commit=asyncio.create_task(commit()))
    asking = asyncio.create_task(answered(worker, commits, lookup))
    await asyncio.sleep(0)
    committed.set()
    assert (await asking) == messages.Found(1, b"5", "active", 0, epoch=4)
    page = await answered(worker, commits, messages.Scan(2, "0_0", "t", b"", None, 10))
    assert page == messages.Scanned(2, [(b"ann", b"5")], False, "active", 0, epoch=4)

    run.epoch = 0  # a copy has none
    run.process, run.halt, run.ends, run.position = None, None, {changelog: 1}, lambda: store.offset
    await log.append({changelog: [NewRecord(b"ann", b"5", 1), NewRecord(b"ann", b"6", 2)]})
    more = (await log.ends([changelog]))[changelog] - store.offset
    assert more and (await answered(worker, commits, lookup)) == messages.Found(1, b"5", "standby", more)


def test_an_entry_that_is_too_large_to_be_sent_costs_its_question_and_not_the_worker() -> None:
    """The message could not be encoded, which ended the worker, and with it the fleet."""
    store = MemoryStore(stamp={})
    run: Any = SimpleNamespace(stores={"t": SimpleNamespace(store=store)}, process=object(), ends={}, catching_up=False)
    run.epoch = 1
    worker: Any = SimpleNamespace(runs={TASK: run}, spec=SimpleNamespace(instance=SimpleNamespace(instance="i1")))
    store.write({b"a": b"1", b"b": bytes(ENTRY_BYTES_MAX), b"c": bytes(ENTRY_BYTES_MAX + 1), b"d": b"4"}, 1)
    sent = [look_up(worker, messages.Lookup(1, "0_0", "t", key), {}) for key in (b"a", b"b", b"c")]
    assert [bool(found.error) for found in sent] == [False, False, True] and "is more than" in sent[-1].error
    pages = [scan(worker, messages.Scan(1, "0_0", "t", start, None, 9), {}) for start in (b"", b"c", b"d")]
    assert [([key for key, _ in page.pairs], page.more) for page in pages] == [
        ([b"a"], True),
        ([], False),
        ([b"d"], False),
    ]
    assert "is more than" in pages[1].error
    for message in (*sent, *pages):
        assert len(messages.encode(message)) <= messages.FRAME_BYTES_MAX
