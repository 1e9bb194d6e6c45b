"""Queries of an instance: its listener takes them, its workers look the keys up. And where the coordinator is, for its workers.

One rule: an answer counts only from the worker that was asked, over the connection that it was asked on, for a question
that still waits. Workers are those processes that this instance has started: each attaches with its own incarnation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.coordinator import messages
from orchestrator.coordinator.listener import Peer
from orchestrator.coordinator.requests import CoordinatorRequest, CopyRequest, Requests, ScanRequest, StoreRequest
from orchestrator.errors import OrchestratorError, ProtocolError, WrongUse
from orchestrator.model import TaskId
from state.errors import StateError
from state.log.group_store import Lease
from workers.metrics.measures import Samples

ANSWER_S, COPY_S = 5.0, 60.0


Answered = messages.Found | messages.Scanned


@dataclass(eq=False, slots=True)
class Attached:
    """A worker that offers its stores."""

    peer: Peer
    member: str
    asked: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    samples: Samples = field(default_factory=dict)  # the last that it reported
    reported_at: float = 0.0  # by the clock of the loop; 0.0: never


class InstanceStores:
    """See services.Service. `incarnation_of`: of the process that is the worker of this number now; `lease`: the group's, as the log
    has it."""

    opened_by: type[messages.Join] | type[messages.Attach] = messages.Attach

    def __init__(
        self, instance: str, incarnation_of: Callable[[int], str | None], lease: Callable[[], Awaitable[Lease | None]]
    ) -> None:
        self.requests = Requests(
            {StoreRequest: look_up, ScanRequest: scan, CopyRequest: copy_stores, CoordinatorRequest: coordinator}
        )
        self.instance = instance
        self.lease = lease
        self._incarnation_of = incarnation_of
        self._attached: dict[int, Attached] = {}  # by peer
        self._ids = itertools.count(1)

    async def is_open(self) -> bool:
        return True

    def begin(self, peer: Peer) -> None:
        """Nothing is known of it yet."""

    def receive(self, peer: Peer, message: messages.Up) -> None:
        attached = self._attached.get(peer.id)
        match message:
            case messages.Attach(version, worker, incarnation, member) if attached is None:
                if version != messages.VERSION or self._incarnation_of(worker) != incarnation:
                    raise ProtocolError(f"worker {worker} ({incarnation[:40]!r}) was not started by {self.instance}")
                self._attached[peer.id] = Attached(peer, member)
            case messages.Measured(samples) if attached is not None:
                attached.samples, attached.reported_at = samples, asyncio.get_running_loop().time()
            case messages.Found(number) | messages.Scanned(number) | messages.Copied(number) if attached is not None:
                waiting = attached.asked.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is no message for the stores of {self.instance}")

    def ended(self, peer: Peer) -> None:
        attached = self._attached.pop(peer.id, None)
        for waiting in attached.asked.values() if attached is not None else ():
            if not waiting.done():
                waiting.set_exception(OrchestratorError("its worker has ended; try again"))

    async def ask(self, attached: Attached, request: StoreRequest | ScanRequest) -> Answered:
        """A worker's answer. Raises OrchestratorError where none comes."""
        number, task, table = next(self._ids), request.task, request.table
        wanted: messages.Down
        if isinstance(request, ScanRequest):
            wanted = messages.Scan(number, task, table, request.start, request.stop, request.limit)
        else:
            wanted = messages.Lookup(number, task, table, request.key)
        answer: Answered = await self._answer(attached, number, wanted, f"the worker of {task}", ANSWER_S)
        return answer

    async def ask_copies(self, attached: Attached, name: str) -> messages.Copied:
        """Copies of all stores of a worker. Raises OrchestratorError."""
        number = next(self._ids)
        wanted = messages.CopyStores(number, name)
        answer: messages.Copied = await self._answer(attached, number, wanted, f"worker {attached.member}", COPY_S)
        return answer

    async def _answer(self, attached: Attached, number: int, wanted: messages.Down, who: str, limit_s: float) -> Any:
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        attached.asked[number] = waiting
        attached.peer.connection.send(wanted)
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except TimeoutError:
            raise OrchestratorError(f"{who} did not answer within {limit_s:g} s; try again") from None
        finally:
            attached.asked.pop(number, None)

    def everyone(self) -> list[Attached]:
        """All workers that offer their stores."""
        return list(self._attached.values())

    def reporting(self) -> list[Attached]:
        """The workers that have reported what they measured."""
        return [one for one in self._attached.values() if one.reported_at]

    def attached(self, member: str) -> list[Attached]:
        """The member's worker; all of them where it is not known."""
        there = list(self._attached.values())
        return [one for one in there if one.member == member] or there


async def look_up(stores: InstanceStores, request: StoreRequest) -> dict[str, Any]:
    """The key from the worker that has the task here. Raises WrongUse, OrchestratorError."""
    best = await _best(stores, request)
    assert isinstance(best, messages.Found)
    return {"value": best.value, **_whence(stores, request, best)}


async def scan(stores: InstanceStores, request: ScanRequest) -> dict[str, Any]:
    """A page of a table from the worker that has the task here. Raises WrongUse, OrchestratorError."""
    best = await _best(stores, request)
    assert isinstance(best, messages.Scanned)
    return {"pairs": best.pairs, "more": best.more, **_whence(stores, request, best)}


async def coordinator(stores: InstanceStores, request: CoordinatorRequest) -> dict[str, Any]:
    """Where it listens ("": none does), and its term. Raises OrchestratorError where the log does not answer."""
    try:
        lease = await stores.lease()
    except StateError as error:
        raise OrchestratorError(str(error)) from None
    return {"term": 0, "address": ""} if lease is None else {"term": lease.term, "address": lease.address}


async def copy_stores(stores: InstanceStores, request: CopyRequest) -> dict[str, Any]:
    """Copies of all stores that the instance has open. Raises OrchestratorError."""
    found = [await stores.ask_copies(attached, request.name) for attached in stores.everyone()]
    return {
        "instance": stores.instance,
        "stores": [list(one) for copied in found for one in copied.stores],
        "problems": [problem for copied in found for problem in copied.problems],
    }


def _whence(stores: InstanceStores, request: StoreRequest | ScanRequest, best: Answered) -> dict[str, Any]:
    return {
        "task": request.task,
        "instance": stores.instance,
        "role": best.role,
        "epoch": best.epoch,
        "restore_lag": best.restore_lag,
    }


async def _best(stores: InstanceStores, request: StoreRequest | ScanRequest) -> Answered:
    """The answer of the worker that runs the task, before one of a copy. Raises WrongUse, OrchestratorError."""
    try:
        TaskId.parse(request.task)
    except ValueError:
        raise WrongUse(f"'{request.task[:40]}' is no task; write it as 0_3") from None
    best: Answered | None = None
    problem = f"{request.task} is not open on {stores.instance}; try again"
    for attached in stores.attached(request.member):
        found = await stores.ask(attached, request)
        if found.error:
            problem = found.error
        elif best is None or found.role == "active":
            best = found
    if best is None:
        raise OrchestratorError(problem)
    return best
