"""Requests over a connection, and their answers; where the group's coordinator is, asked of the own instance.

One rule: an answer counts for the request that it names, and for no other. Clients ask coordinators and instances by this
(fleet/client.py), and a worker whose loop is held its instance (thread_line.py).
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.requests import CoordinatorRequest, Request
from orchestrator.coordinator.transport import connect
from orchestrator.errors import NotThere, OrchestratorError, RefusedBySafety, TimedOut, WrongUse

ASK_S = 20.0
_numbers = itertools.count(1)  # never the same twice: an answer that comes late matches no request


class Unanswered(ConnectionEnded):
    """The other end is there, and gave no answer in time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the coordinator of a term listens."""

    term: int
    address: str


async def ask_over(connection: Connection, request: Request) -> Any:
    """The answer to the request, over a connection that waits for nothing else. Raises ConnectionEnded, and what the other
    end answers as an error."""
    number = next(_numbers)
    connection.send(messages.ask(number, request))
    while True:
        try:
            async with asyncio.timeout(ASK_S):
                answer = await connection.receive_down()
        except TimeoutError:
            raise Unanswered(f"did not answer within {ASK_S:g} s") from None
        if isinstance(answer, messages.Answer) and answer.id == number:
            if answer.error:
                raise _raised(answer)
            return answer.body


def _raised(answer: messages.Answer) -> OrchestratorError:
    kinds = {2: WrongUse, 3: RefusedBySafety, 4: TimedOut, 5: NotThere}
    return kinds.get(answer.code, OrchestratorError)(answer.error)


async def coordinator_place(instance: str, credentials: Credentials, within_s: float) -> Place | None:
    """Where the lease says that the coordinator is, from the instance that listens at this address; None where no lease is held by one
    that listens. Raises ConnectionEnded, also where no answer comes in time, and what `connect` raises."""
    try:
        async with asyncio.timeout(within_s):
            connection = await connect(instance, credentials, timeout_s=within_s)
            try:
                answer = await ask_over(connection, CoordinatorRequest())
            finally:
                await connection.close()
    except TimeoutError:
        raise Unanswered(f"{instance} did not answer within {within_s:g} s") from None
    return Place(answer["term"], answer["address"]) if answer["address"] else None
