"""A group that is attacked: a real listener with a coordinator, an instance's stores, and two members at work.

One rule: after each attack the group is as it was: it answers, nobody's task has moved, and what strangers can hold is
bounded. An attacker writes bytes; what it expects to read is in the attack.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from types import TracebackType
from typing import Any

import msgspec

from orchestrator.coordinator import admin, messages
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Admission, Challenge, Credentials, Introduction, Proof, Refusal
from orchestrator.coordinator.listener import STRANGERS_MAX
from orchestrator.coordinator.requests import StatusRequest
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret, proof
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.tls import Tls, client_context, digest
from orchestrator.coordinator.transport import connect
from orchestrator.model import JoinRequest, MemberStatus, Owner, Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import ask
from workers.instance.instance_stores import InstanceStores

TASKS = [TaskId(0, number) for number in range(4)]
HOLDS = {"S1": TASKS[:2], "S2": TASKS[2:]}
OWNERS = [Owner(task, 1, name, f"{name}#1", 1) for name, tasks in HOLDS.items() for task in tasks]
DEADLINE_S = 60.0
SWEEP_S, NEVER_S = 0.005, 3_600.0
OPEN_HOST = "127.1"  # this machine, in a form that is not taken for it: as the address of a network card
SECRET = Secret(Right.JOIN, b"k" * KEY_BYTES)
WRONG = Secret(Right.JOIN, b"w" * KEY_BYTES)
NONCE = b"n" * KEY_BYTES


def credentials(right: Right = Right.JOIN, secret: Secret = SECRET, application: str = "bank") -> Credentials:
    return Credentials(application, secret.lowered(right))


def join_request(name: str, incarnation: int = 1, **more: Any) -> JoinRequest:
    return JoinRequest(name, name, f"{name}#{incarnation}", f"{name}#{incarnation}", **more)


def status_of(name: str) -> MemberStatus:
    return MemberStatus(generation=1, term=1, active=dict.fromkeys(HOLDS[name], 1))


def join(name: str, incarnation: int = 1, **more: Any) -> messages.Join:
    return messages.Join(messages.VERSION, "bank", join_request(name, incarnation, **more), status_of(name))


def encode(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


class Attacker:
    """Bytes to the listener, and what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        shown = writer.get_extra_info("ssl_object")
        self.binding = digest(shown.getpeercert(binary_form=True)) if shown is not None else b""

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def frame(self, body: Any) -> None:
        data = body if isinstance(body, bytes) else encode(body)
        self.raw(len(data).to_bytes(4, "big") + data)

    async def receive(self) -> bytes:
        """The next frame's body; "" where the connection ends."""
        try:
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    @property
    def is_over(self) -> bool:
        """The other end has closed or reset the connection."""
        return self.reader.at_eof() or self.reader.exception() is not None

    async def refusal(self) -> Refusal:
        """It is refused, and the connection ends."""
        found = msgspec.msgpack.decode(await self.receive(), type=Refusal)
        await self.dropped()
        return found

    async def dropped(self) -> None:
        """It gets nothing (more), and the connection ends."""
        assert await self.receive() == b""

    async def challenge(self, right: Right = Right.JOIN, nonce: bytes = NONCE) -> Challenge:
        self.frame(Introduction(messages.VERSION, "bank", right, nonce))
        return msgspec.msgpack.decode(await self.receive(), type=Challenge)

    async def admitted(self, right: Right = Right.JOIN) -> Attacker:
        """It has the secret of a right, and proves it as it should."""
        challenge = await self.challenge(right)
        facts = (messages.VERSION, "bank", int(right), NONCE, challenge.nonce, self.binding)
        self.frame(Proof(proof(SECRET.key_of(right), "client", *facts)))
        msgspec.msgpack.decode(await self.receive(), type=Admission)
        return self

    async def answer(self, request: Any, number: int = 7) -> messages.Answer:
        """What it gets for a request that it writes as it likes."""
        raw = request if isinstance(request, bytes) else encode(request)
        self.frame(messages.Ask(number, msgspec.Raw(raw)))
        return msgspec.msgpack.decode(await self.receive(), type=messages.Answer)


class Errors(logging.Handler):
    """What the product logs as an error of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


async def no_lease() -> None:
    """Of a group whose coordinator has no log."""


class Place:
    """`async with Place() as place`: the group, until the block ends; then it is looked at. With `tls` it listens as other
    machines would reach it."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls

    async def __aenter__(self) -> Place:
        self.errors = Errors()
        logging.getLogger("orchestrator").addHandler(self.errors)
        self.coordinator = Coordinator(
            "bank",
            Settings(heartbeat_ms=10, session_timeout_ms=600_000),
            KeptLedger(OWNERS),
            map(Task, TASKS),
            admin.HANDLERS,
        )
        self.services = Services(replace(credentials(), tls=self._tls), SWEEP_S if self._tls is None else NEVER_S)
        self.coordinator.listen(self.services)
        self.stores = InstanceStores("S1", {1: "one", 2: "two"}.get, no_lease)
        self.services.add(self.stores)
        self.address = await self.services.open(OPEN_HOST if self._tls is not None else "127.0.0.1")
        self._attackers: list[Attacker] = []
        self._serving = asyncio.create_task(self.coordinator.serve())
        self.members = {name: await self.joined(name) for name in HOLDS}
        self.client = await connect(self.address, credentials(Right.READ))
        self.before = await self.state()
        return self

    async def joined(self, name: str, incarnation: int = 1) -> Connection:
        link = await connect(self.address, credentials())
        link.send(join(name, incarnation))
        await link.receive_down()
        return link

    async def state(self) -> Any:
        """What must not change: who runs what, and the epochs."""
        facts = await ask(self.client, StatusRequest())
        return [(task["id"], task["active"], task["epoch"]) for task in facts["tasks"]], facts["scale"]

    @property
    def where(self) -> tuple[str, int]:
        """Host and port of the listener."""
        host, port, _ = client_context(self.address, None)
        return host, port

    async def attacker(self) -> Attacker:
        host, port, context = client_context(self.address, None)
        made = Attacker(*await asyncio.open_connection(host, port, ssl=context))
        self._attackers.append(made)
        return made

    def with_sweeps(self) -> None:
        """From now on; with TLS there were none: the handshake of a member takes longer than some of these."""
        self.without_sweeps()
        listener = self.services.listener
        listener._sweep_s = SWEEP_S
        listener._sweeping = asyncio.create_task(listener._sweep())

    def without_sweeps(self) -> None:
        """Time drops nobody from now on: what an attack ends by is the limit that it is for."""
        assert self.services.listener._sweeping is not None
        self.services.listener._sweeping.cancel()

    async def until(self, what: str, holds: Any) -> None:
        while not holds():  # noqa: ASYNC110 - the loop has to go on, under the deadline of the case
            await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                assert await self.state() == self.before, "a task has moved"
                assert not self.errors.found, "an internal error was logged"
                assert not self._serving.done(), "the coordinator has ended"
                listener = self.services.listener
                assert listener.connections[1] <= STRANGERS_MAX
                assert listener.unfinished.total <= listener.unfinished.limit
        finally:
            for attacker in self._attackers:
                if not attacker.writer.is_closing():
                    attacker.writer.transport.abort()
            for link in (*self.members.values(), self.client):
                with contextlib.suppress(ConnectionEnded):
                    await link.close()
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            await self.services.close()
            logging.getLogger("orchestrator").removeHandler(self.errors)
