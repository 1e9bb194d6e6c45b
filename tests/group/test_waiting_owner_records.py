"""Owner records that wait for the log are written together: each write is a transaction, and a task that moves has no owner
until its own is through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.heartbeat_delta import DeltaEncoder
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.model import (
    Assignment,
    Copy,
    JoinRequest,
    MemberStatus,
    Owner,
    Released,
    Role,
    Settings,
    Task,
    TaskId,
)
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, listening

DEADLINE_S = 30.0
TASKS = [TaskId(0, number) for number in range(6)]


class Slow(KeptLedger):
    """A log whose next write is answered when the test says so."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        super().__init__(owners)
        self.written: list[list[TaskId]] = []
        self.generations: dict[int, int] = {}  # how many writes of owner records came before each
        self.began, self.answers = asyncio.Event(), asyncio.Event()

    async def record_owners(self, records: Sequence[Owner]) -> None:
        self.written.append([record.task for record in records])
        self.began.set()
        await self.answers.wait()
        await super().record_owners(records)

    async def put_generation(self, generation: int, members: frozenset[str]) -> None:
        self.generations[generation] = len(self.written)


class Member:
    """A worker that says what the test has it say."""

    def __init__(self, name: str, link: Connection, status: MemberStatus) -> None:
        self._link = link
        self._encoder = DeltaEncoder(status)
        link.send(messages.Join(messages.VERSION, "bench", JoinRequest(name, name, f"{name}#1", f"{name}#1"), status))

    def say(self, status: MemberStatus) -> None:
        self._link.send(self._encoder.say(status))

    async def assigned(self) -> Assignment:
        while not isinstance(message := await self._link.receive_down(), messages.Assign):
            pass
        return message.assignment


async def test_owner_records_that_wait_are_written_with_the_next_one() -> None:
    ledger = Slow([Owner(task, 1, "S1", "S1#1", 1) for task in TASKS])
    settings = Settings(max_learners_per_instance=3, initial_delay_ms=0)
    coordinator = Coordinator("bench", settings, ledger, [Task(task) for task in TASKS], {})
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(DEADLINE_S):
        first, second = await connect(address, CREDENTIALS), await connect(address, CREDENTIALS)
        holds = dict.fromkeys(TASKS, 1)
        owner = Member("S1", first, MemberStatus(term=1, generation=1, active=holds))
        learner = Member("S2", second, MemberStatus(term=1, generation=1))
        while len((assigned := await learner.assigned()).learners) < 3:
            pass
        moving = sorted(assigned.learners)
        ready = {task: Copy(Role.LEARNER, 10, 10, True, 0, True) for task in moving}
        learner.say(MemberStatus(term=1, generation=assigned.generation, copies=ready))
        while len((asked := await owner.assigned()).release) < 3:
            pass
        for number in range(1, 4):  # one after the other, while the log is at work on the first
            gone = moving[:number]
            left = {task: 1 for task in TASKS if task not in gone}
            proofs = {task: Released(1) for task in gone}
            owner.say(MemberStatus(term=1, generation=asked.generation, active=left, released=proofs))
            await ledger.began.wait()
        while coordinator.group.recording.keys() != set(moving):  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)
        ledger.answers.set()
        while len((await learner.assigned()).active) < 3:
            pass
        while asked.generation not in ledger.generations:  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)
    assert ledger.written == [moving[:1], moving[1:]]
    assert ledger.generations[asked.generation] == 2, "what is agreed is written behind the records that tasks wait for"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    for link in (first, second):
        await link.close()
    await services.close()
