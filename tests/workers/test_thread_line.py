"""The connection of a worker whose loop a call holds: it is followed to the next coordinator, and never behind the loop's back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.coordinator.services import Services
from orchestrator.model import MemberStatus, TaskId
from state.errors import LogUnavailable
from state.log.group_store import Lease
from tests.attacks.place import credentials, join_request
from tests.contracts.logs import until
from workers.connection import thread_line
from workers.connection.asking import Place
from workers.connection.contact import Contact
from workers.connection.thread_line import ThreadLine, ThreadUplink
from workers.connection.uplink import Caller
from workers.instance.instance_stores import InstanceStores

STATUS = MemberStatus(active={TaskId(0, 0): 3}, generation=7)


@dataclass
class Coordinator:
    """A coordinator's listener: `joined` has what joins, `says` what it answers to each."""

    term: int
    says: tuple[messages.Down, ...] = ()
    joined: asyncio.Queue[messages.Join] = field(default_factory=asyncio.Queue)

    listener: Listener | None = None

    async def open(self) -> str:
        self.listener = Listener(credentials(), self._serve)
        return await self.listener.open()

    async def close(self) -> None:
        if self.listener is not None:
            await self.listener.close()

    async def _serve(self, peer: Peer) -> None:
        join = messages.decode_up(await peer.connection.receive())
        assert isinstance(join, messages.Join)
        for answer in (messages.Welcome(self.term), *self.says):
            peer.connection.send(answer)
        self.joined.put_nowait(join)
        await asyncio.Event().wait()


class Group:
    """Two coordinators, an instance that knows the lease, and a worker whose loop is in a thread of its own."""

    def __init__(self, *says: messages.Down) -> None:
        self.first, self.second, self.third = Coordinator(1, says), Coordinator(2), Coordinator(3)
        self.lease: Lease | None = None
        self.lease_of_second: Lease | None = None  # from the end of the first call on
        self.asked = asyncio.Event()
        self.problem = ""
        self.received: list[messages.Down | str] = []
        self.begun, self.goes_on, self.ends = asyncio.Event(), threading.Event(), threading.Event()
        self.second_call: asyncio.Event | None = None
        self.third_call: asyncio.Event | None = None
        self.second_ends = threading.Event()
        self.moments, self.heartbeat_s = 1, 0.05

    async def look(self) -> Lease | None:
        self.asked.set()
        if self.problem:
            raise LogUnavailable(self.problem)
        if self.lease_of_second is not None and self.goes_on.is_set():
            self.lease, self.lease_of_second = self.lease_of_second, None
        return self.lease

    async def is_ended(self) -> bool:
        return self.uplink._pump.done()

    def leased_to(self, term: int, address: str) -> None:
        self.lease = Lease("bank", term, "i", address, 0)

    async def turn(self) -> None:
        """The worker's loop waits for something outside, as for the answer to a commit; the thread has its turn meanwhile."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.uplink._line._loop))  # type: ignore[arg-type]

    async def work(self, home: asyncio.AbstractEventLoop, place: Place, instance: str, held: bool, last: int) -> int:
        """The worker's loop: joins, is held by a call, and by one or two more where there is a `second_call` or a `third_call`, and receives
        messages until the last, or the connection's end. Before the third one it is free until the lease is looked at."""
        line = ThreadLine()
        caller = Caller(credentials(), self.heartbeat_s, lambda: "a call", Contact(home.time), instance)
        uplink = self.uplink = await line.open(place, caller)
        uplink.join("bank", join_request("S1"), STATUS)
        self.received.append(await uplink.receive())
        home.call_soon_threadsafe(self.begun.set)
        if held:
            self.goes_on.wait(60)
        if self.second_call is not None:
            receiving = asyncio.create_task(self._receive(uplink, last))
            for _ in range(self.moments):  # between two calls
                await self.turn()
            home.call_soon_threadsafe(self.second_call.set)
            if self.third_call is not None:
                self.second_ends.wait(60)
                looked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.asked.wait(), home))
                await asyncio.wait({looked, receiving}, return_when=asyncio.FIRST_COMPLETED)
                home.call_soon_threadsafe(self.third_call.set)
            self.ends.wait(60)
            await receiving
        else:
            await self._receive(uplink, last)
        await uplink.close()
        line.close()
        return uplink.term

    async def _receive(self, uplink: ThreadUplink, last: int) -> None:
        try:
            while len(self.received) < last:
                self.received.append(await uplink.receive())
        except ConnectionEnded:
            self.received.append("ended")


@asynccontextmanager
async def working(group: Group, *, held: bool = True, last: int = 2) -> AsyncIterator[asyncio.Task[int]]:
    """The worker joined the first coordinator, and is in a call where it is held."""
    services = Services(credentials())
    services.add(InstanceStores("S1", {}.get, group.look))
    instance = await services.open()
    group.leased_to(1, await group.first.open())
    assert group.lease is not None
    place, home = Place(1, group.lease.address), asyncio.get_running_loop()
    worker = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(group.work(home, place, instance, held, last))))
    try:
        async with asyncio.timeout(30):
            await group.begun.wait()
            await group.first.joined.get()
            yield worker
    finally:
        group.goes_on.set()
        group.second_ends.set()
        group.ends.set()
        for coordinator in (group.first, group.second, group.third):
            await coordinator.close()
        await services.close()
        await asyncio.gather(worker, return_exceptions=True)


async def test_a_worker_in_a_call_joins_the_next_coordinator_as_it_is() -> None:
    group = Group()
    async with working(group) as worker:
        await group.first.close()
        group.leased_to(2, await group.second.open())
        join = await group.second.joined.get()
        assert (join.application, join.hello, join.status) == ("bank", join_request("S1"), STATUS)
        group.goes_on.set()
        assert await worker == 2
        assert group.received == [messages.Welcome(1), messages.Welcome(2)], "the loop finds it all as it wakes"


async def test_a_coordinator_that_hangs_is_left_for_the_next_one_however_often() -> None:
    """It keeps its connections: nothing but the lease says so."""
    group = Group()
    async with working(group, last=3) as worker:
        group.leased_to(2, await group.second.open())
        await group.second.joined.get()
        group.leased_to(3, await group.third.open())
        await group.third.joined.get()
        group.goes_on.set()
        assert await worker == 3
        assert group.received == [messages.Welcome(1), messages.Welcome(2), messages.Welcome(3)]


@pytest.mark.parametrize("moments", (1, 50))
async def test_a_loop_that_wakes_between_two_calls_is_held(moments: int) -> None:
    """The lease was free until the first one had ended, and to join takes the loop several moments, more than a commit has."""
    group = Group()
    group.second_call, group.moments = asyncio.Event(), moments
    async with working(group) as worker:
        group.lease = None
        await group.first.close()
        await group.asked.wait()
        group.goes_on.set()
        await group.second_call.wait()
        group.leased_to(2, await group.second.open())
        join = await group.second.joined.get()
        assert join.status == STATUS
        group.ends.set()
        assert await worker == 2
        assert group.received == [messages.Welcome(1), messages.Welcome(2)]


async def test_a_loop_that_was_not_asked_for_seconds_is_not_taken_to_have_been_free() -> None:
    """Between two of its moments a coordinator that hangs was asked to answer; the second call came and went meanwhile."""
    group, connected, ended = Group(), asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await ended.wait()
        writer.close()

    group.second_call, group.third_call = asyncio.Event(), asyncio.Event()
    async with working(group) as worker, await asyncio.start_server(hang, "127.0.0.1", 0) as hanging:
        group.lease = None
        await group.first.close()
        for _ in range(2):  # the first one may be what the connection did before it ended
            group.asked.clear()
            await group.asked.wait()
        group.lease_of_second = Lease("bank", 2, "i", f"127.0.0.1:{hanging.sockets[0].getsockname()[1]}", 0)
        group.goes_on.set()
        await group.second_call.wait()
        await connected.wait()
        group.leased_to(3, await group.third.open())
        group.asked.clear()
        group.second_ends.set()
        await group.third_call.wait()
        join = await group.third.joined.get()
        assert join.status == STATUS
        group.ends.set()
        ended.set()
        assert await worker == 3
        assert group.received == [messages.Welcome(1), messages.Welcome(3)]


async def test_a_log_that_is_away_is_asked_again() -> None:
    group = Group()
    async with working(group) as worker:
        group.problem = "the brokers are away"
        await group.first.close()
        await group.asked.wait()
        group.leased_to(2, await group.second.open())
        group.problem = ""
        await group.second.joined.get()
        group.goes_on.set()
        assert await worker == 2


async def test_a_loop_that_runs_sees_to_it_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be about to come back as another incarnation, which nothing else knows."""
    monkeypatch.setattr(thread_line, "FREE_S", 30.0)
    group = Group()
    group.heartbeat_s = 30.0  # what this worker does not publish is no sign of a call
    async with working(group, held=False, last=9) as worker:
        group.asked.clear()
        group.leased_to(2, await group.second.open())
        await group.first.close()
        assert await worker == 1
        assert group.received == [messages.Welcome(1), "ended"]
        assert group.second.joined.empty()


@pytest.mark.parametrize("fenced", (True, False))
async def test_a_session_that_a_coordinator_has_closed_is_not_begun_again(fenced: bool) -> None:
    """Its transactional id is refused from then on, or another process has its name."""
    closed = messages.Closed(fenced, "fenced" if fenced else "another session took over")
    group = Group(closed)
    async with working(group, last=9) as worker:
        group.leased_to(2, await group.second.open())
        await group.first.close()
        await until("the end of the connection", group.is_ended)
        group.goes_on.set()
        assert await worker == 1
        assert group.received == [messages.Welcome(1), closed, "ended"]
        assert group.second.joined.empty()


async def test_a_loop_that_runs_again_while_nobody_has_the_lease_gets_the_end() -> None:
    group = Group()
    async with working(group, last=9) as worker:
        group.lease = None
        await group.first.close()
        await group.asked.wait()
        group.goes_on.set()
        assert await worker == 1
        assert group.received == [messages.Welcome(1), "ended"]
