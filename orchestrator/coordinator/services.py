"""What is served behind a listener, and the one place where rights are checked.

One rule: a peer gets what its right allows, and an answer to whatever it requests: a failure is a line with an exit code,
never the end of the service. A connection belongs to the service that its first message is for. The coordinator
(shell.py) and an instance's stores (workers/instance/instance_stores.py) are services.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.ledger import NotCoordinator
from orchestrator.coordinator.listener import SWEEP_S, Listener, Peer
from orchestrator.coordinator.messages import Answer, Ask, Attach, Join, Up, decode_up
from orchestrator.coordinator.requests import Request, Requests
from orchestrator.coordinator.secret import Right, refusal
from orchestrator.errors import OrchestratorError, ProtocolError, RefusedBySafety

log = logging.getLogger("orchestrator.listener")
ASKED_MAX = 64  # requests of one connection that have no answer yet


@runtime_checkable
class ForPeople(Protocol):
    """An error of the project, whichever room's: a log that takes no write fails with one of `state`. Its text is one line for
    people, and a command ends with its code."""

    exit_code: int


class Service(Protocol):
    """A service behind the listener."""

    requests: Requests
    opened_by: type[Join] | type[Attach]  # the message with which a peer begins a session here

    async def is_open(self) -> bool:
        """Waits until it takes sessions and requests; False where that does not come any more."""

    def begin(self, peer: Peer) -> None:
        """A connection is for this service; `ended` is called in any case afterwards."""

    def receive(self, peer: Peer, message: Up) -> None:
        """A message of a peer that may join. Raises ProtocolError for one that does not belong here."""

    def ended(self, peer: Peer) -> None:
        """The connection is over."""


class Services:
    """The listener of an instance, with all that is served behind it."""

    def __init__(self, credentials: Credentials, sweep_s: float = SWEEP_S) -> None:
        self.credentials = credentials
        self.listener = Listener(credentials, self._serve, sweep_s)
        self._services: list[Service] = []

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """See Listener.open."""
        return await self.listener.open(host, port)

    async def close(self) -> None:
        await self.listener.close()

    def add(self, service: Service) -> None:
        self._services.append(service)

    def remove(self, service: Service) -> None:
        if service in self._services:
            self._services.remove(service)

    # ---- a connection

    async def _serve(self, peer: Peer) -> None:
        connection = peer.connection
        first = await connection.receive()
        service = self._service_of(decode_up(first))
        if service is None or not await service.is_open():
            return  # it ends: what was looked for is elsewhere by now
        try:
            service.begin(peer)
            receive = self._receiver(peer, service)
            receive(first)
            await connection.receive_all(receive)
        finally:
            service.ended(peer)

    def _service_of(self, message: Up) -> Service | None:
        """Returns the service that the message is for. A request that none knows is the coordinator's, which refuses it; where
        there is none (any more) the connection ends, and the peer looks for the coordinator again."""
        if isinstance(message, Ask):
            named = [service for service in self._services if bytes(message.request) in service.requests]
            coordinating = [service for service in self._services if service.opened_by is Join]
            return next(iter(named or coordinating), None)
        if not isinstance(message, Join | Attach):
            raise ProtocolError("a message of a session that was never begun")
        return next((service for service in self._services if isinstance(message, service.opened_by)), None)

    def _receiver(self, peer: Peer, service: Service) -> Callable[[bytes], None]:
        """What takes every frame's body of the connection; a session's rights are looked at here, and not at each heartbeat."""

        def refuse(peer: Peer, message: Up) -> None:
            raise ProtocolError(refusal(peer.right, Right.JOIN))

        in_session = service.receive if peer.right >= Right.JOIN else refuse

        def receive(body: bytes) -> None:
            message = decode_up(body)
            if type(message) is Ask:
                self._ask(peer, service, message)
            else:
                in_session(peer, message)

        return receive

    # ---- requests

    def _ask(self, peer: Peer, service: Service, ask: Ask) -> None:
        try:
            request = service.requests.decode(bytes(ask.request))
            if peer.right < request.right:
                raise RefusedBySafety(refusal(peer.right, request.right))
            if len(peer.asking) >= ASKED_MAX:
                raise OrchestratorError(f"{ASKED_MAX} requests of this connection wait for an answer; wait for one")
        except OrchestratorError as error:
            peer.connection.send(Answer(ask.id, None, str(error), error.exit_code))
            return
        task = asyncio.get_running_loop().create_task(self._answer(peer, service, ask.id, request))
        peer.asking.add(task)
        task.add_done_callback(peer.asking.discard)

    async def _answer(self, peer: Peer, service: Service, number: int, request: Request) -> None:
        try:
            body = await service.requests.handler(request)(service, request)
            peer.connection.send(Answer(number, body))
        except (ConnectionEnded, NotCoordinator):
            await peer.connection.close()  # no service is left to answer: the peer asks the next one
        except Exception as error:
            if isinstance(error, ForPeople):
                peer.connection.send(Answer(number, None, str(error), error.exit_code))
                return
            log.exception("an internal error in the answer to %s", type(request).__name__)
            peer.connection.send(Answer(number, None, "an internal error; the log of the instance has it", 1))
