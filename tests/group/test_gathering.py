"""A new coordinator neither plans nor counts before those without tasks had the time to come back."""

from __future__ import annotations

import asyncio

from orchestrator.coordinator import admin, messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.requests import PlanRequest, StatusRequest
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.explain.planning import why_not_planned
from orchestrator.group import events as ev
from orchestrator.group.step import Group
from orchestrator.model import Copy, JoinRequest, MemberStatus, Owner, Role, Settings, Task, TaskId
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, ask, listening

TASKS = [TaskId(0, 0), TaskId(0, 1)]
OWNERS = [Owner(task, 1, "S1", "S1#1", 1) for task in TASKS]


def join_request(name: str) -> JoinRequest:
    return JoinRequest(name, name, f"{name}#1", f"{name}#1")


def test_a_learner_that_is_back_last_goes_on() -> None:
    group = Group(Settings(), map(Task, TASKS), OWNERS, term=2, gathering=True)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus(generation=4, active=dict.fromkeys(TASKS, 1))), 0)
    group.step(ev.Joined(2, join_request("S2"), MemberStatus(generation=4)), 10)
    group.step(ev.Tick(), 900)
    assert not group.learners, "S2 would learn from nothing what S3 has half of"
    group.step(
        ev.Joined(3, join_request("S3"), MemberStatus(generation=4, copies={TASKS[1]: Copy(Role.LEARNER, 5, 9)})), 1_000
    )
    group.step(ev.Gathered(), 2_000)
    assert dict(group.learners) == {TASKS[1]: "S3"}


def test_it_says_that_it_gathers() -> None:
    group = Group(Settings(), map(Task, TASKS), OWNERS, term=2, gathering=True)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus(active=dict.fromkeys(TASKS, 1))), 500)
    assert why_not_planned(group, 500) == (
        "nothing is planned for another 1.5 s: the coordinator is new, and those without tasks may still come back"
    )
    group.step(ev.Gathered(), 2_000)
    assert why_not_planned(group, 2_000) is None


def test_a_fresh_group_waits_for_nobody() -> None:
    group = Group(Settings(), map(Task, TASKS), gathering=True)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus()), 0)
    assert set(group.recording) == set(TASKS)


def test_once_the_members_of_the_last_generation_are_back_nothing_is_waited_for() -> None:
    group = Group(Settings(), map(Task, TASKS), OWNERS, term=2, gathering=True, before=["S1", "S2"])
    group.step(ev.Joined(1, join_request("S1"), MemberStatus(active=dict.fromkeys(TASKS, 1))), 0)
    assert group.gathering, "S2 may have copies"
    group.step(ev.Joined(2, join_request("S2"), MemberStatus(copies={TASKS[1]: Copy(Role.LEARNER, 5, 9)})), 10)
    assert not group.gathering
    assert dict(group.learners) == {TASKS[1]: "S2"}


def test_one_that_came_and_went_is_waited_for() -> None:
    group = Group(Settings(), map(Task, TASKS), OWNERS, term=2, gathering=True, before=["S1", "S2"])
    group.step(ev.Joined(2, join_request("S2"), MemberStatus()), 0)
    group.step(ev.SessionEnded(2), 5)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus(active=dict.fromkeys(TASKS, 1))), 10)
    assert group.gathering


def test_a_new_group_that_is_whole_does_not_wait_for_others() -> None:
    group = Group(Settings(initial_delay_ms=700), map(Task, TASKS), gathering=True, started_with=2)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus()), 0)
    assert not group.recording, "its other member has not joined"
    group.step(ev.Joined(2, join_request("S2"), MemberStatus()), 100)
    assert {owner.member for owner in group.recording.values()} == {"S1", "S2"}


async def joined(address: str, name: str, status: MemberStatus) -> Connection:
    link = await connect(address, CREDENTIALS)
    link.send(messages.Join(messages.VERSION, "bench", join_request(name), status))
    await link.receive_down()
    return link


async def test_a_status_that_is_asked_for_at_once_counts_everybody() -> None:
    settings = Settings(heartbeat_ms=250)
    handlers = admin.HANDLERS
    coordinator = Coordinator("bench", settings, KeptLedger(OWNERS), map(Task, TASKS), handlers)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        first = await joined(address, "S1", MemberStatus(active=dict.fromkeys(TASKS, 1)))
        control_link = await connect(address, CREDENTIALS)
        asking = asyncio.create_task(ask(control_link, StatusRequest()))
        second = await joined(address, "S2", MemberStatus())
        assert not asking.done(), "nobody knows yet how many there are"
        assert [one["id"] for one in (await asking)["instances"]] == ["S1", "S2"]
        assert (await ask(control_link, PlanRequest(to="50%")))["from"] == 2
        await over(services, serving, first, second, control_link)


async def test_members_that_are_all_back_are_counted_at_once() -> None:
    ledger = KeptLedger(OWNERS, members=["S1", "S2"])
    coordinator = Coordinator(
        "bench",
        Settings(heartbeat_ms=60_000, session_timeout_ms=120_000, rejoin_grace_ms=120_000),
        ledger,
        map(Task, TASKS),
        admin.HANDLERS,
    )
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        first, second = await connect(address, CREDENTIALS), await connect(address, CREDENTIALS)
        owner = MemberStatus(active=dict.fromkeys(TASKS, 1))
        first.send(messages.Join(messages.VERSION, "bench", join_request("S1"), owner))
        second.send(messages.Join(messages.VERSION, "bench", join_request("S2"), MemberStatus()))
        control_link = await connect(address, CREDENTIALS)
        assert len((await ask(control_link, StatusRequest()))["instances"]) == 2
        await over(services, serving, first, second, control_link)


async def over(services: Services, serving: asyncio.Task[None], *links: Connection) -> None:
    for link in links:
        await link.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await services.close()


async def test_a_count_is_refused_while_owners_may_come_back() -> None:
    settings = Settings(heartbeat_ms=20, rejoin_grace_ms=60_000)
    owners = [OWNERS[0], Owner(TASKS[1], 1, "S2", "S2#1", 1)]
    handlers = admin.HANDLERS
    coordinator = Coordinator("bench", settings, KeptLedger(owners), map(Task, TASKS), handlers)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    async with asyncio.timeout(30):
        first, control_link = (
            await joined(address, "S1", MemberStatus(active={TASKS[0]: 1})),
            await connect(address, CREDENTIALS),
        )
        assert len((await ask(control_link, StatusRequest()))["instances"]) == 1
        for request in (StatusRequest(counted=True), PlanRequest(to="1")):
            control_link.send(messages.ask(7, request))
            answer = await control_link.receive_down()
            assert isinstance(answer, messages.Answer) and answer.code == 3
            assert answer.error.startswith("S2 had tasks and is not back")
        await over(services, serving, first, control_link)


def test_a_scale_down_is_not_done_before_a_leaver_that_is_not_back_is_fenced() -> None:
    """Any step may come just when the grace is over, before the tick that fences it (seed 1101)."""
    settings = Settings()
    owners = [OWNERS[0], Owner(TASKS[1], 1, "S2", "S2#1", 1)]
    group = Group(settings, map(Task, TASKS), owners, term=2, gathering=True)
    group.step(ev.Leaving("down", ("S2",), None, resumed=True), 0)
    group.step(ev.Joined(1, join_request("S1"), MemberStatus(active={TASKS[0]: 1})), 10)
    done = ev.OperationEnded("down", "done")
    for at_ms in range(500, settings.rejoin_grace_ms, 500):
        group.step(ev.Tick(), at_ms)
    assert done not in group.step(ev.Gathered(), settings.rejoin_grace_ms)
    effects = group.step(ev.Tick(), settings.rejoin_grace_ms)
    assert ev.Fence("S2#1") in effects and done not in effects
    assert done in group.step(ev.Fenced("S2#1", (TASKS[1],)), settings.rejoin_grace_ms)
