"""Commits that are answered long before their markers are written: who decides by the log waits for them, who only looks says
what is not in it yet."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import RefusedBySafety
from pipeline.spark.moment import moment_of
from pipeline.spark.repartition import Layout
from pipeline.spark.unread_inputs import refuse_unread
from state.errors import LogUnavailable
from state.log.batches import decode
from state.log.kafka.connections import GROUP
from state.log.protocol import GroupLog, Partition, TaskCommit, TopicSpec
from tests import brokers
from tests.chaos import by_shop
from tests.cli.console import Console
from tests.contracts.logs import DEADLINE_S, records, until, values
from tests.kafka.late_markers import Late
from tests.kafka.place import CHANGES, IN, OUT, Place, count, owner
from tests.kills.harness import life, scaled
from workers.commands.produce import BATCH
from workers.prepare import prepare

pytestmark = [pytest.mark.kafka]
LATE_S, WRITERS = 0.3, 6
SHORT_S = 1.0  # of a transaction, and of the tries of its requests
A_WHILE_S = 1.0  # in which what does not wait has ended


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    brokers.shared()  # skips the test where none can be had
    made = Late(tmp_path_factory.mktemp("late"), brokers.VERSION)
    try:
        made.launch()
        yield made
    finally:
        made.close()


@pytest.fixture
async def place(late: Late) -> AsyncIterator[Place]:
    made = Place(port=late.nodes[0].port)
    yield made
    await made.close()


async def owned(log: GroupLog, application: str = "bank") -> None:
    lease = await log.acquire(application, "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer(application, "w")


async def still_waits(*asked: asyncio.Task[object]) -> None:
    done, _ = await asyncio.wait(asked, timeout=A_WHILE_S, return_when=asyncio.FIRST_COMPLETED)
    assert not done, [one.result() for one in done]


async def test_a_decision_waits_for_markers_and_a_reader_gets_nothing_before(place: Place, late: Late) -> None:
    log, other = await place.topics(), await place.open()
    await owned(log)
    await log.commit("bank", "w", [count(1)])
    await log.open_writer("bank", "w")  # the transaction before is over
    behind = (await log.ends([OUT], settled=True))[OUT]
    reader = other.reader()
    reader.add(OUT, behind)
    with late.held():
        ends = await log.commit("bank", "w", [count(2)])
        late.are_held()
        assert (await other.ends([OUT]))[OUT] == behind
        assert (await other.written([OUT]))[OUT] >= ends[OUT] > behind
        asked: list[asyncio.Task[object]] = [
            asyncio.create_task(other.positions("bank", [IN])),
            asyncio.create_task(other.ends([OUT, CHANGES], settled=True)),
            asyncio.create_task(log.commit("bank", "w", [count(3)])),  # the transaction before it is not over
        ]
        await still_waits(*asked)
        assert not [one for one in await reader.poll(wait_ms=100) if one.data]
    found, settled, _ = await asyncio.gather(*asked)
    assert found in ({IN: 2}, {IN: 3})
    assert isinstance(settled, dict) and settled[OUT] >= ends[OUT]
    seen: list[bytes | None] = []

    async def both_read() -> bool:
        seen.extend(record.value for one in await reader.poll(wait_ms=100) for record in decode(one.data, one.position))
        return len(seen) > 1

    await until("both records", both_read)
    assert seen == [b"2", b"3"] and await values(other, OUT) == ["1", "2", "3"]
    await reader.close()


async def test_a_commit_behind_late_markers_is_made_again_by_the_same_writer(place: Place, late: Late) -> None:
    """Longer than its requests are tried again: nothing of it was written, and what was committed before it stands."""
    log = await place.topics(timeout_s=SHORT_S)
    await owned(log)
    with late.held():
        await log.commit("bank", "w", [count(1)])
        late.are_held()
        for _ in range(2):
            with pytest.raises(
                LogUnavailable, match="the transaction before it is decided, and its markers are not written"
            ) as raised:
                await log.commit("bank", "w", [count(2)])
            assert str(raised.value).endswith(f"in sync; it wrote to {OUT.topic}, {CHANGES.topic}, positions of bank")
        with pytest.raises(LogUnavailable, match="markers are not written"):
            await log.open_writer("bank", "w")
    ends = await log.commit("bank", "w", [count(2)])
    assert (await log.ends([OUT], settled=True))[OUT] >= ends[OUT]
    assert await values(log, OUT) == ["1", "2"] and await log.positions("bank", [IN]) == {IN: 2}


async def test_positions_of_many_are_found_while_each_is_committed_all_the_time(place: Place, late: Late) -> None:
    """There is no moment in which none of them waits for a marker."""
    log, other = await place.open(), await place.open()
    many = [Partition("many", number) for number in range(WRITERS)]
    await log.create_topic(TopicSpec("many", WRITERS))
    lease = await log.acquire("bank", "c", "a:1", None)
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease, f"0_{n}", f"w{n}") for n in range(WRITERS)])
    at = dict.fromkeys(many, 0)

    async def commit(number: int) -> None:
        await log.open_writer("bank", f"w{number}")
        while True:
            moved = {many[number]: at[many[number]] + 1}
            await log.commit("bank", f"w{number}", [TaskCommit(f"0_{number}", 1, {}, moved)])
            at.update(moved)

    late.delay(LATE_S)
    writing = [asyncio.create_task(commit(number)) for number in range(WRITERS)]
    try:
        await until("the first commits", lambda: asyncio.sleep(0, all(at.values())))
        answered = dict(at)
        async with asyncio.timeout(DEADLINE_S):
            found = await other.positions("bank", many)
        assert found.keys() == at.keys() and all(found[one] >= answered[one] for one in many), (found, answered)
    finally:
        late.delay(0)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


async def test_an_audit_sees_what_is_under_way(place: Place, late: Late) -> None:
    """A re-keyed record whose marker is late, behind a position whose marker is there."""
    log = await place.open()
    prepared = await prepare(log, by_shop.app)
    await owned(log, "receipts")
    held = 3 - await log._cluster.connections.coordinator(GROUP, f"{place.prefix}receipts")  # not where positions are
    topic = "receipts-by-shop-repartition"
    there = next(p for p in (Partition(topic, n) for n in range(8)) if log._cluster.topics.known_leader(p) == held)
    await log.append({Partition("payments", 0): records("1")})
    with late.held(held):
        await log.commit("receipts", "w", [TaskCommit("0_0", 1, {there: records("1")}, {Partition("payments", 0): 1})])
        late.are_held()
        assert await log.positions("receipts", [Partition("payments", 0)]) == {Partition("payments", 0): 1}
        found = asyncio.create_task(moment_of(log, prepared))
        await still_waits(found)
    assert (await found).under_way


async def test_a_repartition_sees_what_is_not_processed(place: Place, late: Late) -> None:
    """Records of a producer whose markers are late, and of several partitions: one transaction."""
    log = await place.open()
    prepared = await prepare(log, by_shop.app)
    app = by_shop.app
    layout = Layout(prepared.topology, {}, ["payments"], {"payments": 8}, prepared.topology.subtopologies)
    await refuse_unread(log, app.id, layout.sources())
    with late.held():
        await log.append({Partition("payments", number): records("1") for number in range(8)})
        late.are_held()
        asked = asyncio.create_task(refuse_unread(log, app.id, layout.sources()))
        await still_waits(asked)
    with pytest.raises(RefusedBySafety, match="not processed"):
        await asked


@pytest.mark.processes
def test_a_question_after_a_record_has_it_or_says_that_it_waits(late: Late, tmp_path: Path) -> None:
    place = Place(port=late.nodes[0].port)
    url = f"kafka://{late.address}?prefix={place.prefix}"
    console = Console(tmp_path / "bank").bank()
    try:
        console.start("run", "bank:app", "--log", url, name="run")
        console.until("a secret", lambda: (console.folder / ".orchestrator/state/bank/group.secret").exists())
        done = console("wait", "bank", "--instances", "1", "--timeout", "25s", "--log", url)
        assert done.code == 0, (done, console.said("run"))
        lines = "\n".join(
            f'{{"key": "{k}", "value": {{"account": "{k}", "amount": 5}}}}' for k in ("ann", "bob", "dan", "eva")
        )

        def pay() -> None:
            made = console("produce", "bank:app", "payments", "--log", url, stdin=lines)
            assert made.code == 0, made

        pay()
        asked = console("query", "bank", "balances", "ann", "--log", url)
        assert (asked.code, asked.out, asked.err) == (0, "5\n", ""), asked
        with late.held():
            pay()
            late.are_held()
            asked = console("query", "bank", "balances", "ann", "--log", url)
            assert (asked.code, asked.out) == (0, "5\n"), asked
            assert "wait" in asked.err, asked
            read = console("consume", "bank", "payments", "--log", url)
            assert (
                read.code == 0
                and read.out.count('"key": "ann"') == 1
                and "transaction is open in payments-" in read.err
            ), read
        asked = console("query", "bank", "balances", "ann", "--log", url)
        assert (asked.code, asked.out, asked.err) == (0, "10\n", ""), asked
        read = console("consume", "bank", "payments", "--log", url)
        assert read.out.count('"key": "ann"') == 2 and not read.err, read
    finally:
        console.close()


@pytest.mark.processes
def test_lines_of_a_killed_run_are_known_before_their_markers_are_written(late: Late, tmp_path: Path) -> None:
    """A run of `produce` that was killed behind its first commit; the same lines are piped again meanwhile."""
    url = f"kafka://{late.address}?prefix={Place(port=late.nodes[0].port).prefix}"
    console = Console(tmp_path / "bank").bank()
    lines = [f'{{"key": "k{n}", "value": {{"account": "k{n}", "amount": 1}}}}\n' for n in range(BATCH + 1)]
    try:
        first = console("produce", "bank:app", "payments", "--log", url, stdin=lines[0])  # makes what there is to make
        assert first.code == 0, first
        with late.held():
            killed = console.start(
                "produce", "bank:app", "payments", "--log", url, name="killed", stdin=subprocess.PIPE
            )
            assert killed.stdin is not None
            killed.stdin.write("".join(lines[:BATCH]).encode())
            killed.stdin.flush()
            late.are_held()
            killed.kill()
            killed.wait()
            again = console.start("produce", "bank:app", "payments", "--log", url, name="again", stdin=subprocess.PIPE)
            assert again.stdin is not None
            again.stdin.write("".join(lines).encode())
            again.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                again.wait(timeout=4 * A_WHILE_S)
        assert again.wait(timeout=DEADLINE_S) == 0, console.said("again")
        assert f"lines 1 to {BATCH} were written" in console.said("again")
        read = console("consume", "bank", "payments", "--log", url)
        assert len(read.out.splitlines()) == 1 + len(lines), read.err
    finally:
        console.close()


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["scaled", "both"])
async def test_hand_overs_and_restores_lose_and_double_nothing(kind: str, late: Late, tmp_path: Path) -> None:
    """No commit's markers are there when it is answered: of a release that another owner goes on from, nor of a killed one."""
    url = f"kafka://{late.address}?prefix={Place(port=late.nodes[0].port).prefix}"
    late.delay(LATE_S)
    try:
        if kind == "scaled":
            report = await scaled(tmp_path, [], url=url)
        else:
            report = await life(tmp_path, kind, 0.5, url=url)
    finally:
        late.delay(0)
    assert report.ok, report
