"""Releases that are wanted at once are asked for a few at a time. Laws: what waits is sent as what it still is, each release is asked
for within the bound, one that was asked for stays so, and a member hears of a rebalance no more than a few times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.coordinator import admin, messages, release_pacing
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.release_pacing import BETWEEN_MS, MOST_MS, SHARE, ReleasePacing
from orchestrator.coordinator.requests import ScaleDownRequest
from orchestrator.coordinator.shell import Coordinator
from orchestrator.coordinator.transport import connect
from orchestrator.model import (
    Assignment,
    Copy,
    JoinRequest,
    MemberStatus,
    Owner,
    Protocol,
    Role,
    Settings,
    Task,
    TaskId,
)
from orchestrator.simulator.ledger import KeptLedger
from tests.group.coordinators import CREDENTIALS, ask, listening

TASKS = [TaskId(0, n) for n in range(40)]
TIMEOUT_MS = Settings().release_timeout_ms
LEARNING = Settings(max_learners_per_instance=9)


def releasing(*tasks: TaskId, epoch: int = 1, protocol: Protocol = Protocol.LEARNER) -> Assignment:
    return Assignment(2, 1, release=dict.fromkeys(tasks, epoch), protocol=protocol)


def running(*tasks: TaskId, epoch: int = 1) -> dict[TaskId, int]:
    return dict.fromkeys(tasks, epoch)


class Pacing(ReleasePacing):
    """Of members that run all that is wanted of them."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[int, Mapping[TaskId, int]] = {}


def of(pacing: Pacing, session: int, wanted: Assignment, now_ms: int, timeout_ms: int = TIMEOUT_MS) -> Assignment:
    pacing.runs[session] = {**wanted.active, **wanted.release}
    return pacing.paced(session, wanted, pacing.runs[session], now_ms, timeout_ms)


def due(pacing: Pacing, now_ms: int) -> list[tuple[int, Assignment]]:
    return pacing.due(now_ms, pacing.runs.get)


def test_a_few_are_asked_for_one_after_the_other_whoever_runs_them() -> None:
    pacing = Pacing()
    first, second = of(pacing, 1, releasing(*TASKS[:2]), 1_000), of(pacing, 2, releasing(*TASKS[2:4]), 1_001)
    assert first.release == {TASKS[0]: 1} and first.active == {TASKS[1]: 1}
    assert not second.release and second.active == running(*TASKS[2:4])
    seen = []
    while (at_ms := pacing.next_ms()) is not None:
        seen += [(at_ms, session, list(sent.release), list(sent.active)) for session, sent in due(pacing, at_ms)]
    assert seen == [
        (1_000 + BETWEEN_MS, 1, TASKS[:2], []),
        (1_000 + 2 * BETWEEN_MS, 2, TASKS[2:3], TASKS[3:4]),
        (1_000 + 3 * BETWEEN_MS, 2, TASKS[2:4], []),
    ]


def test_one_alone_is_asked_for_at_once_and_the_next_when_the_time_between_is_over() -> None:
    pacing = Pacing()
    assert of(pacing, 1, releasing(TASKS[0]), 1_000).release
    assert of(pacing, 2, releasing(TASKS[1]), 1_000 + BETWEEN_MS).release
    assert pacing.next_ms() is None


def test_many_are_asked_for_within_the_bound_in_a_few_assignments() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS), 1_000)
    sent = []
    while (at_ms := pacing.next_ms()) is not None:
        sent += [(at_ms, one) for _, one in due(pacing, at_ms)]
    assert sent[-1][0] <= 1_000 + MOST_MS and set(sent[-1][1].release) == set(TASKS)
    assert len(sent) <= SHARE + 1


def test_a_short_release_timeout_shortens_the_bound() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:4]), 1_000, timeout_ms=40)
    [(_, sent)] = due(pacing, 1_010)
    assert set(sent.release) == set(TASKS[:4])


def test_where_all_stops_for_a_rebalance_nothing_waits() -> None:
    for protocol in (Protocol.EAGER, Protocol.COOPERATIVE):
        wanted = releasing(*TASKS[:4], protocol=protocol)
        assert of(Pacing(), 1, wanted, 1_000) == wanted


def test_what_its_member_does_not_run_does_not_wait() -> None:
    """It never began, or was given up: there is nothing to go on with, and a proof to be had."""
    for runs in ({}, running(*TASKS[:4], epoch=2)):
        wanted = releasing(*TASKS[:4])
        assert Pacing().paced(1, wanted, runs, 1_000, TIMEOUT_MS) == wanted


def test_one_that_is_taken_back_and_wanted_again_waits_anew() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:2]), 1_000)
    assert of(pacing, 1, Assignment(3, 1, active=running(*TASKS[:2])), 1_010).active == running(*TASKS[:2])
    assert pacing.next_ms() is None
    assert of(pacing, 1, releasing(*TASKS[:2]), 1_020).active == running(*TASKS[:2])
    assert pacing.next_ms() == 1_000 + BETWEEN_MS


def test_one_that_is_wanted_in_another_epoch_waits_behind_the_others() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:2]), 1_000)
    of(pacing, 2, releasing(TASKS[2]), 1_010)
    of(pacing, 1, Assignment(3, 1, release={TASKS[0]: 1, TASKS[1]: 2}), 1_020)
    assert [session for session, _ in due(pacing, 1_000 + BETWEEN_MS)] == [2]


def test_what_else_the_group_wants_meanwhile_is_sent_at_once() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:2]), 1_000)
    later = Assignment(3, 1, active={TASKS[5]: 7}, release=running(*TASKS[:2]), learners=(TASKS[6],))
    sent = of(pacing, 1, later, 1_010)
    assert sent.active == {TASKS[5]: 7, TASKS[1]: 1} and sent.release == {TASKS[0]: 1}
    assert (sent.learners, sent.generation) == (later.learners, 3)
    assert due(pacing, 1_000 + BETWEEN_MS) == [(1, later)]


def test_the_end_of_a_session_ends_its_waits() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:3]), 1_000)
    pacing.forget(1)
    assert pacing.next_ms() is None and due(pacing, 5_000) == []


def test_a_task_that_its_member_has_given_up_meanwhile_waits_no_longer() -> None:
    """Its owner record is about to name another."""
    pacing = Pacing()
    of(pacing, 1, wanted := releasing(*TASKS[:9]), 1_000)
    pacing.runs[1] = running(*TASKS[:4])
    [(_, sent)] = due(pacing, 1_000 + BETWEEN_MS)
    assert sent.active == {TASKS[3]: 1} and {**sent.active, **sent.release} == wanted.release


def test_a_fenced_member_is_sent_nothing() -> None:
    pacing = Pacing()
    of(pacing, 1, releasing(*TASKS[:3]), 1_000)
    del pacing.runs[1]
    assert due(pacing, 1_000 + BETWEEN_MS) == [] and pacing.next_ms() is None


releases = st.dictionaries(st.sampled_from(TASKS[:8]), st.integers(1, 2), max_size=8)
steps = st.lists(
    st.tuples(st.integers(1, 3), releases, st.sampled_from([*Protocol, Protocol.LEARNER]), st.integers(0, 90)),
    max_size=25,
)


@given(steps)
def test_whatever_is_wanted(script: list[tuple[int, Mapping[TaskId, int], Protocol, int]]) -> None:
    pacing, now_ms = Pacing(), 0
    wanted: dict[int, Assignment] = {}
    since: dict[tuple[int, TaskId, int], int] = {}
    asked: dict[int, set[tuple[TaskId, int]]] = {}

    def sent(session: int, one: Assignment) -> None:
        """Raises AssertionError where it breaks a law."""
        assert {**one.active, **one.release} == wanted[session].release
        assert not one.active.keys() & one.release.keys()
        still = asked.get(session, set()) & set(wanted[session].release.items())
        assert still <= set(one.release.items())
        asked[session] = set(one.release.items())

    def until(end_ms: int) -> None:
        while (at_ms := pacing.next_ms()) is not None and at_ms <= end_ms:
            for session, one in due(pacing, at_ms):
                sent(session, one)
                assert all(
                    at_ms <= since[session, task, epoch] + MOST_MS
                    for task, epoch in one.release.items()
                    if (session, task, epoch) in since
                )
                for item in one.release.items():
                    since.pop((session, *item), None)

    for session, release, protocol, pause_ms in script:
        until(now_ms := now_ms + pause_ms)
        wanted[session] = Assignment(1, 1, release=release, protocol=protocol)
        sent(session, one := of(pacing, session, wanted[session], now_ms))
        waiting = {(session, *item) for item in one.active.items()}
        for gone in [key for key in since if key[0] == session and key not in waiting]:
            del since[gone]
        for key in waiting:
            since.setdefault(key, now_ms)
    until(now_ms + MOST_MS)
    assert pacing.next_ms() is None and not since
    assert all(asked.get(session, set()) == set(one.release.items()) for session, one in wanted.items())


async def assignments(link: Connection, releases: int) -> list[Assignment]:
    """All of them, up to one that asks for so many releases."""
    found: list[Assignment] = []
    while not found or len(found[-1].release) < releases:
        message = await link.receive_down()
        if isinstance(message, messages.Assign):
            found.append(message.assignment)
    return found


async def joined(address: str, name: str, status: MemberStatus) -> Connection:
    link = await connect(address, CREDENTIALS)
    link.send(messages.Join(messages.VERSION, "bench", JoinRequest(name, name, f"{name}#1", f"{name}#1"), status))
    return link


@asynccontextmanager
async def leaving(settings: Settings, role: Role, *others: str) -> AsyncIterator[tuple[str, Connection, KeptLedger]]:
    """S1 runs three tasks, the others have ready copies of them, and S1 is to leave: the address, its connection, the ledger."""
    ledger = KeptLedger([Owner(task, 1, "S1", "S1#1", 1) for task in TASKS[:3]], members=["S1", *others])
    coordinator = Coordinator("bench", settings, ledger, map(Task, TASKS[:3]), admin.HANDLERS)
    services, address = await listening(coordinator)
    serving = asyncio.create_task(coordinator.serve())
    copies = {task: Copy(role, 9, 9, True, 0) for task in TASKS[:3]}
    async with asyncio.timeout(30):
        links = [await joined(address, "S1", MemberStatus(active=running(*TASKS[:3])))]
        links += [await joined(address, name, MemberStatus(copies=copies)) for name in others]
        links.append(await connect(address, CREDENTIALS))
        await ask(links[-1], ScaleDownRequest(instances="S1"))
        try:
            yield address, links[0], ledger
        finally:
            for one in links:
                await one.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await services.close()


async def test_a_coordinator_asks_a_leaver_for_one_task_after_the_other() -> None:
    async with leaving(LEARNING, Role.LEARNER, "S2") as (_, leaver, _):
        sent = await assignments(leaver, 3)
        counts = [len(one.release) for one in sent]
        assert counts == sorted(counts) and set(counts) >= {1, 2, 3}
        assert all(one.active.keys() | one.release.keys() == set(TASKS[:3]) for one in sent)


async def test_who_is_back_over_another_session_is_asked_over_that_alone() -> None:
    async with leaving(LEARNING, Role.LEARNER, "S2") as (address, leaver, _):
        asked = await assignments(leaver, 1)
        again = await joined(address, "S1", MemberStatus(generation=1, term=1, active=running(*TASKS[:3])))
        assert len((await assignments(again, 3))[-1].release) == 3
        await again.close()
        assert len(asked[-1].release) == 1
        while not isinstance(await leaver.receive_down(), messages.Closed):
            pass
        with pytest.raises(TimeoutError):  # what came over it before the last one over the other is here by now
            async with asyncio.timeout(0.2):
                await leaver.receive_down()


async def test_who_is_fenced_while_releases_wait_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still keeps its connection. Its tasks are others' by the time that what waits would be sent."""
    monkeypatch.setattr(release_pacing, "BETWEEN_MS", 2_500)
    monkeypatch.setattr(release_pacing, "MOST_MS", 2_500)
    settings = Settings(max_learners_per_instance=9, standbys=2, heartbeat_ms=100, disconnect_grace_ms=100)
    found: list[Assignment] = []
    async with leaving(settings, Role.STANDBY, "S2", "S3") as (_, leaver, ledger):
        with suppress(TimeoutError):  # it is fenced after half a second, and what waits would be sent within these
            async with asyncio.timeout(3):
                while isinstance(message := await leaver.receive_down(), messages.Assign | messages.Welcome):
                    if isinstance(message, messages.Assign):
                        found.append(message.assignment)
    assert all(owner.writer != "S1#1" for owner in await ledger.owners())
    assert {len(one.release) for one in found if one.release} == {1}
