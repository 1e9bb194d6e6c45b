"""A real coordinator in the test's own loop: its listener, its workers and who asks it, over real connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.requests import Request
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.model import JoinRequest, MemberStatus, TaskId

CREDENTIALS = Credentials("bench", Secret(Right.JOIN, bytes(KEY_BYTES)))


class Look(Request, tag="look", frozen=True):
    """What a test wants to know, answered by a handler of its own."""


async def listening(coordinator: Coordinator, credentials: Credentials = CREDENTIALS) -> tuple[Services, str]:
    """A listener of its own for a coordinator; `close` it."""
    services = Services(credentials)
    coordinator.listen(services)
    return services, await services.open()


def status_of(tasks: Sequence[TaskId], beat: int = 0) -> MemberStatus:
    """What a busy worker that runs these tasks says with its nth heartbeat: every end and every fact has changed."""
    return MemberStatus(
        generation=1,
        term=1,
        active=dict.fromkeys(tasks, 1),
        ends={task: 1_000_000 + 211 * beat + n for n, task in enumerate(tasks)},
        facts={
            task: (17 + (beat + n) % 50, 5_000_000 + 4_096 * beat + n, 123_456 + 211 * beat + n, 12 + (beat + n) % 30)
            for n, task in enumerate(tasks)
        },
    )


async def joined(address: str, name: str = "stream-00000") -> Connection:
    """A worker that has joined the group and holds nothing."""
    link = await connect(address, CREDENTIALS)
    join_request = JoinRequest(name, name, f"{name}#1", f"{name}#1")
    link.send(messages.Join(messages.VERSION, "bench", join_request, status_of([])))
    await link.receive_down()
    return link


async def ask(connection: Connection, request: Request) -> Any:
    """The body of the answer."""
    connection.send(messages.ask(1, request))
    while True:
        answer = await connection.receive_down()
        if isinstance(answer, messages.Answer):
            return answer.body
