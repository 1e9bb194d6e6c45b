"""The kinds of events: what each breaks, and how it mends that again.

One rule: an event has its machine, its link or the brokers to itself while it is under way; what it cannot meet (no machine
is down that could be added) it leaves, and is not counted.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from state.errors import StateError
from state.log.protocol import GroupLog
from tests.chaos.machine import Machine, send
from tests.chaos.plan import Event
from tests.chaos.world import APP, World

T = TypeVar("T")
LEAST = 2  # machines that a scale-down leaves
IN_SYNC_S = 60.0
AWAY = ("no Kafka broker answers", "was not answered for", "has no leader")  # of a command that met a broker's restart
FALLS_BACK = (2, 3, 4)  # the others are not in the group at the moment; no coordinator; not done in time


class Breaking:
    """Carries out the events of one life."""

    def __init__(self, world: World, log: GroupLog) -> None:
        self._world = world
        self._log = log
        self._links_broken: set[str] = set()
        self._broker_is_away = asyncio.Lock()

    async def meet(self, event: Event) -> None:
        """The event, until what it broke is whole again. Raises AssertionError for what may not be."""
        await self._meet(event)
        self._world.note(f"{event.kind} is over")

    async def _meet(self, event: Event) -> None:
        kind, _, what = event.kind.partition("-")
        if kind == "link":
            await self._link(event, what)
        elif kind == "broker":
            await self._broker(event, kill=what == "kill")
        elif event.kind == "kill-producer":
            self._producer()
        elif event.kind == "scale-up":
            await self._added(event)
        else:
            await self._machine(event)

    def _count(self, kind: str, where: str = "") -> None:
        self._world.outcome.events[kind] += 1
        self._world.note(f"{kind} {where}")

    # ---- machines

    async def _machine(self, event: Event) -> None:
        machine = await self._chosen(event)
        if machine is None:
            return
        machine.is_busy = True
        calls: dict[str, Callable[[Machine, Event], Awaitable[None]]] = {
            "kill": self._killed,
            "kill-coordinator": self._killed,
            "kill-worker": self._worker_killed,
            "term": self._bounced,
            "stop": self._stopped,
            "stop-coordinator": self._stopped,
            "stop-workers": self._stopped,
            "scale-down": self._drained,
        }
        try:
            await calls[event.kind](machine, event)
        finally:
            machine.is_busy = False

    async def _chosen(self, event: Event) -> Machine | None:
        """A machine that is up, has begun and is free; for those of the coordinator its own, if that can be known now."""
        found = [one for one in self._world.machines if one.is_up and not one.is_busy and one.has_begun()]
        if event.kind.endswith("-coordinator"):
            try:
                lease = await self._log.lease(APP)
            except StateError:
                return None
            found = [one for one in found if lease is not None and one.name == lease.holder and not one.is_busy]
        if event.kind == "scale-down" and sum(one.stays() for one in self._world.machines) <= LEAST:
            return None
        return _picked(found, event.pick)

    async def _killed(self, machine: Machine, event: Event) -> None:
        self._count(event.kind, machine.name)
        machine.kill()
        await asyncio.sleep(event.for_s)
        machine.start()

    async def _worker_killed(self, machine: Machine, event: Event) -> None:
        """Its parent starts it again."""
        if workers := machine.workers():
            self._count(event.kind, machine.name)
            send(workers, signal.SIGKILL)

    async def _bounced(self, machine: Machine, event: Event) -> None:
        self._count(event.kind, machine.name)
        code = await machine.end(signal.SIGTERM)
        assert code == 0, f"{machine.name} ended with {code} after SIGTERM; see {machine.log}"
        await asyncio.sleep(event.for_s / 4)
        machine.start()

    async def _stopped(self, machine: Machine, event: Event) -> None:
        pids = machine.workers() if event.kind == "stop-workers" else machine.processes()
        if not pids:
            return
        self._count(event.kind, machine.name)
        send(pids, signal.SIGSTOP)
        await asyncio.sleep(event.for_s)
        send(pids, signal.SIGCONT)

    async def _drained(self, machine: Machine, event: Event) -> None:
        """It hands over and ends; where the group cannot take that now, it is bounced for good."""
        self._count(event.kind, machine.name)
        machine.leaves = True
        words = ("drain", APP, machine.name, "--wait", "--timeout", "20s")
        draining = self._world.asked(*words, out=f"drain-{machine.name}")
        code = await asyncio.to_thread(draining.wait)
        if code == 0:
            ended = await machine.end(0)
            assert ended == 0, f"{machine.name} ended with {ended} after its drain; see {machine.log}"
            return
        self._world.outcome.refused[f"scale-down ({code})"] += 1
        said = self._world.said(f"drain-{machine.name}").rpartition("error:")[2]
        is_away = any(one in said for one in AWAY)
        assert code in FALLS_BACK or is_away, f"drain of {machine.name} ended with {code}: {said}"
        if machine.ended() is None:
            await machine.end(signal.SIGTERM)

    async def _added(self, event: Event) -> None:
        machine = _picked([one for one in self._world.machines if not one.is_up and not one.is_busy], event.pick)
        if machine is not None:
            self._count(event.kind, machine.name)
            machine.start()

    # ---- links, brokers, the producer

    async def _link(self, event: Event, fault: str) -> None:
        links = self._world.brokers.links
        up = [one.name for one in self._world.machines if one.is_up and one.name not in self._links_broken]
        name = _picked(up, event.pick)
        if name is None:
            return
        self._count(event.kind, name)
        self._links_broken.add(name)
        await links[name].break_it(fault)
        await asyncio.sleep(event.for_s)
        await links[name].mend(deliver=event.deliver)
        self._links_broken.discard(name)

    async def _broker(self, event: Event, *, kill: bool) -> None:
        """One at a time; of three the next one goes when all replicas are in sync again."""
        async with self._broker_is_away:
            nodes = self._world.brokers.nodes
            node = nodes[int(event.pick * len(nodes))]
            self._count(event.kind, node.address)
            self._world.is_broker_away = len(nodes) == 1
            began = time.monotonic()
            await asyncio.to_thread(node.stop, kill=kill)
            await asyncio.sleep(event.for_s / 2)
            await asyncio.to_thread(node.launch)
            if self._world.is_broker_away:
                self._world.is_broker_away = False
                self._world.outcome.away_s = max(self._world.outcome.away_s, time.monotonic() - began)
            else:
                await self._in_sync(len(nodes))

    async def _in_sync(self, replicas: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + IN_SYNC_S
        while True:
            assert loop.time() < deadline, f"the brokers' replicas are not in sync after {IN_SYNC_S:.0f} s"
            try:
                answer = await self._log._cluster.connections.metadata(None)  # type: ignore[attr-defined]
            except StateError:
                await asyncio.sleep(0.1)
                continue
            if all(len(partition[5]) == replicas for topic in answer.topics for partition in topic[4]):
                return
            await asyncio.sleep(0.1)

    def _producer(self) -> None:
        """It goes on where it ended."""
        producer = self._world.producer
        assert producer is not None
        self._count("kill-producer")
        producer.kill()
        producer.wait()
        self._world.produce()


def _picked(found: Sequence[T], pick: float) -> T | None:
    return found[int(pick * len(found))] if found else None
