"""A fleet whose log or host fails: what it could not write or start is tried again, and healthy instances never pay."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.clocks import wall_ms
from orchestrator.errors import RefusedBySafety, TimedOut
from state.log.sqlite import open_sqlite
from workers.commands.scale_up import _ask_fleet
from workers.fleet import restarts
from workers.fleet.fleet import GRANTED, REQUEST, Fleet
from workers.fleet.hosts import ProcessHandle
from workers.fleet.named import NamedInstance
from workers.fleet.presence import FLEET, NAMED, fleet_of, may_be_looked_after, started, this_process
from workers.fleet.restarts import Then, follows
from workers.instance.ledger import LogLedger
from workers.log.patient_log import PatientLog
from workers.spec import FAILED_APP, HOST_GOES, LOG_REPLACED, NO_SPACE, InstanceSpec

pytestmark = pytest.mark.processes
DEADLINE_S = 30.0
REFUSE = "create trigger refuse before insert on notes when new.key like '{}' begin select raise(abort, 'refused'); end"


class QuietHost:
    """Processes that do nothing until a line or the end of their pipe: a fleet asks no more of an instance."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.handles: dict[str, ProcessHandle] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.ports: list[int] = []
        self.ends: dict[str, list[int]] = {}  # with which the next processes end at once

    async def start(self, spec: InstanceSpec) -> ProcessHandle:
        if waiting := self.failures.get(spec.instance):
            raise waiting.pop(0)
        code = ends.pop(0) if (ends := self.ends.get(spec.instance)) else None
        program = "import sys; sys.stdin.readline()" if code is None else f"raise SystemExit({code})"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE)
        self.started.append(spec.instance)
        self.ports.append(spec.metrics_port)
        self.handles[spec.instance] = ProcessHandle(process)
        return self.handles[spec.instance]


async def nowhere_else(names: Collection[str]) -> str | None:
    return None


class Life:
    """A fleet, its host and its log."""

    def __init__(self, folder: Path, log: Any) -> None:
        self.path = folder / "log.db"
        self.log = log
        self.host = QuietHost()
        self.said: list[str] = []
        self.spec = InstanceSpec("none:app", "app", "", f"sqlite:{self.path}", str(folder / "state"))
        self.fleet = Fleet(self.host, log, self.spec, self.said.append, nowhere_else)
        self.running: asyncio.Task[int] | None = None

    async def run(self, count: int) -> None:
        self.fleet.claim()
        await self.fleet.announce()
        self.running = asyncio.create_task(self.fleet.run(count))
        await self.until("all are there", lambda: len(self.host.started) == count)
        await self.known(*self.host.started)

    async def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, f"{what}: not after {DEADLINE_S:.0f} s; {self.said}"
            await asyncio.sleep(0.01)

    async def known(self, *instances: str) -> None:
        """Until the log knows these instances."""
        await self.until(f"{instances} known", lambda: self.notes()["fleet"]["instances"] == list(instances))

    def notes(self) -> dict[str, Any]:
        with closing(sqlite3.connect(self.path)) as db:
            rows = db.execute("select key, value from notes where kind = ?", (FLEET.name,)).fetchall()
        return {key: json.loads(value) for key, value in rows}

    async def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute(statement)

    async def request(self, count: int) -> None:
        await self.log.put_metadata("app", FLEET, REQUEST + "w", json.dumps({"add": count}).encode())

    async def end(self) -> int:
        assert self.running is not None
        self.fleet.stop()
        async with asyncio.timeout(DEADLINE_S):
            return await self.running


@asynccontextmanager
async def life_in(folder: Path) -> AsyncIterator[Life]:
    log = await open_sqlite(folder / "log.db", create=True, busy_timeout_ms=50)
    life = Life(folder, log)
    try:
        yield life
    finally:
        if life.running is not None and not life.running.done():
            life.fleet.stop()
            await asyncio.wait([life.running], timeout=DEADLINE_S)
        await log.close()


async def test_an_instance_ends_while_the_log_is_locked(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        await life.run(3)
        with closing(sqlite3.connect(life.path, isolation_level=None)) as other:
            other.execute("begin immediate")
            life.host.handles["i2"].bounce()
            await life.until("a word", lambda: bool(life.said))
            life.host.handles["i3"].bounce()
            await life.until("its end", lambda: life.fleet.instances() == ["i1"])
            other.execute("rollback")
        await life.known("i1")
        await life.until("a word that it is over", lambda: len(life.said) == 2)
        said, over = life.said
        assert "cannot use the log now" in said and "locked" in said and "tries again" in said
        assert re.fullmatch(r"the fleet can use the log again after \d+\.\d s", over)
        assert life.host.started == ["i1", "i2", "i3"]
        assert await life.end() == 0
        assert life.notes() == {}


@pytest.mark.parametrize("refused", ["granted-%", "fleet"])
async def test_a_wish_is_granted_once_however_long_the_answer_is_refused(tmp_path: Path, refused: str) -> None:
    async with life_in(tmp_path) as life:
        await life.run(1)
        await life.execute(REFUSE.format(refused))
        await life.request(2)
        await life.until("three", lambda: len(life.host.started) == 3)
        await life.until("a word", lambda: bool(life.said))
        await life.execute("drop trigger refuse")
        await life.until("the answer", lambda: GRANTED + "w" in life.notes())
        assert life.notes()[GRANTED + "w"] == {"added": ["i2", "i3"]} and REQUEST + "w" not in life.notes()
        await life.known("i1", "i2", "i3")
        await life.until("a word that it is over", lambda: len(life.said) == 2)
        assert sorted(life.host.started) == ["i1", "i2", "i3"]
        assert [line.split(" the log ")[0] for line in life.said] == ["the fleet cannot use", "the fleet can use"]
        assert await life.end() == 0


async def test_a_wish_that_was_withdrawn_starts_nothing(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        await life.fleet.announce()  # and looks at nothing yet
        await life.execute("create trigger keep before delete on notes begin select raise(ignore); end")
        with pytest.raises(TimedOut, match="nothing was started"):
            await _ask_fleet(life.log, "app", 2, time.monotonic(), [])
        [key] = [key for key in life.notes() if key.startswith(REQUEST)]  # the note itself could not be removed
        await life.run(1)
        await life.request(1)
        await life.until("the other request", lambda: GRANTED + "w" in life.notes())
        await life.until("its instance", lambda: len(life.host.started) > 1)  # the answer is not behind its start
        assert life.fleet.instances() == life.host.started == ["i1", "i2"] and key in life.notes()


async def test_scale_up_does_not_deny_what_the_fleet_has_taken(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        await life.run(1)
        await life.execute(REFUSE.format("granted-%"))
        asking = asyncio.create_task(_ask_fleet(life.log, "app", 1, time.monotonic() + 1.5, ["i1"]))
        await life.until("the second", lambda: life.host.started == ["i1", "i2"])
        with pytest.raises(TimedOut, match="may start them yet"):
            await asking


async def test_of_two_that_counted_the_same_instances_one_counts_again(tmp_path: Path) -> None:
    """Two `scale-up --to 3` at one moment made five."""
    async with life_in(tmp_path) as life:
        await life.run(1)
        until = time.monotonic() + DEADLINE_S
        asked = [asyncio.create_task(_ask_fleet(life.log, "app", 2, until, ["i1"])) for _ in range(2)]
        answers = await asyncio.gather(*asked)
        assert None in answers and ["i2", "i3"] in answers
        await life.known("i1", "i2", "i3")
        assert await _ask_fleet(life.log, "app", 1, until, ["i1", "i2", "i3"]) == ["i4"]
        assert sorted(life.host.started) == ["i1", "i2", "i3", "i4"]


async def test_what_a_fleet_that_ended_had_taken_is_not_done_again(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        taken = json.dumps({"add": 5, "taken_by": "another"}).encode()
        await life.log.put_metadata("app", FLEET, REQUEST + "old", taken)
        await life.run(1)
        await life.request(1)
        await life.until("the other request", lambda: GRANTED + "w" in life.notes())
        await life.until("its instance", lambda: len(life.host.started) > 1)
        assert life.fleet.instances() == life.host.started == ["i1", "i2"]


async def test_no_instance_is_started_under_a_name_that_leaves(tmp_path: Path) -> None:
    """A scale-down outlives its fleet: of the two that the next one starts, one was sent away at once, without a word. One whose
    time is over is taken back by the next coordinator."""
    async with life_in(tmp_path) as life:
        lease = await life.log.acquire("app", "i9", "", None)
        facts = {"id": "one", "leaving": ["i1", "i3"], "deadline_wall_ms": None, "force": False}
        over = {"id": "two", "leaving": ["i2"], "deadline_wall_ms": 1_000, "force": False}
        await LogLedger(life.log, lease).put_operations([facts, over])
        life.fleet = Fleet(
            life.host,
            life.log,
            msgspec.structs.replace(life.spec, metrics_port=9_100),
            life.said.append,
            nowhere_else,
        )
        await life.run(2)
        assert life.host.started == ["i2", "i4"]
        assert life.host.ports == [9_100, 9_101], "the first of the fleet is where it was asked for"


async def test_an_instance_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        life.host.failures["i2"] = [OSError(errno.EAGAIN, "Resource temporarily unavailable")]
        await life.run(2)
        assert sorted(life.host.started) == ["i1", "i2"]
        assert life.said == ["i2 cannot be started now (Resource temporarily unavailable); it is tried again in 0.5 s"]
        life.host.failures["i1"] = [OSError(errno.ENOMEM, "Cannot allocate memory")] * 2
        life.host.handles["i1"].kill()
        await life.until("i1 is back", lambda: life.host.started.count("i1") == 2)
        assert len(life.said) == 4 and "i1 was killed by signal 9" in life.said[1]
        assert await life.end() == 0


async def test_an_instance_without_space_for_its_state_ends_none_of_those_that_have_it(tmp_path: Path) -> None:
    """A scale-up on a full disk, or a worker that was killed there, ended the whole fleet."""
    async with life_in(tmp_path) as life:
        await life.run(1)
        life.host.ends["i2"] = [NO_SPACE, NO_SPACE]
        await life.request(1)
        await life.until("i2 is tried for the third time", lambda: life.host.started == ["i1", "i2", "i2", "i2"])
        assert life.said == ["i2 has no space for its state; it is started again"] * 2
        assert await life.end() == 0


async def test_a_fleet_of_which_no_instance_has_space_for_its_state_ends(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        life.host.ends["i1"] = [NO_SPACE]
        life.fleet.claim()
        await life.fleet.announce()
        assert await life.fleet.run(1) == 1 and life.said == ["i1 failed; the fleet stops"]


@pytest.mark.parametrize("code", [1, 2, 3])
async def test_one_that_fails_as_it_starts_ends_none_of_those_that_are_there(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale-up while the app's module was being replaced ended the whole fleet, and so did the death of one worker."""
    monkeypatch.setattr(restarts, "SETTLED_S", 1.0)
    async with life_in(tmp_path) as life:
        await life.run(1)
        settled = time.monotonic() + 1.5
        await life.until("i1 has been there for a while", lambda: time.monotonic() > settled)
        life.host.ends["i2"] = [code, code]
        await life.request(1)
        await life.until("i2 is tried for the third time", lambda: life.host.started == ["i1", "i2", "i2", "i2"])
        assert life.said == ["i2 failed, and others go on; it is started again"] * 2
        assert await life.end() == 0


async def test_a_fleet_of_which_none_starts_ends_with_its_code(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        life.host.ends = {"i1": [2], "i2": [2]}
        life.fleet.claim()
        await life.fleet.announce()
        assert await life.fleet.run(2) == 2 and life.said[-1].endswith("failed; the fleet stops")


@pytest.mark.parametrize(
    ("code", "lasted_s", "others", "then"),
    [
        (0, 1.0, [], Then.OVER),
        (LOG_REPLACED, 1.0, [60.0], Then.LOG_GONE),
        (-9, 1.0, [], Then.AGAIN),
        (HOST_GOES, 60.0, [60.0], Then.AGAIN),
        (NO_SPACE, 60.0, [0.1], Then.LATER),
        (NO_SPACE, 60.0, [], Then.FAILED),
        (2, 60.0, [60.0], Then.LATER),  # its worker could not be started again
        (3, 60.0, [60.0], Then.LATER),
        (2, 60.0, [1.0], Then.FAILED),
        (3, 60.0, [1.0, 4.0], Then.FAILED),
        (1, 1.0, [1.0, 60.0], Then.LATER),
        (1, 60.0, [60.0], Then.FAILED),  # of the app: its topics are others by now, say
        (3, 1.0, [60.0], Then.LATER),
        (6, 1.0, [60.0], Then.FAILED),  # the log is away for all of them
        (FAILED_APP, 1.0, [60.0], Then.FAILED),  # its processor stops, wherever the record is tried
    ],
)
def test_what_follows_on_an_end(code: int, lasted_s: float, others: list[float], then: Then) -> None:
    assert follows(code, lasted_s, others) is then


async def test_a_host_that_is_gone_ends_the_fleet_with_its_error(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        await life.run(2)
        assert life.running is not None
        life.host.failures["i1"] = [RefusedBySafety("the host is gone")]
        life.host.handles["i1"].kill()
        with pytest.raises(RefusedBySafety, match="the host is gone"):
            async with asyncio.timeout(DEADLINE_S):
                await life.running
        assert await life.host.handles["i2"].wait() == 0
        assert life.notes() == {}


async def test_of_two_that_take_a_name_at_one_moment_the_log_takes_one(tmp_path: Path) -> None:
    """The other is quicker, between the look and the word."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    facts = {**this_process(), "pid": other.pid, "started": started(other.pid), "state_dir": "there", "at_ms": 0}

    async def meanwhile(names: Collection[str]) -> None:
        (name,) = names
        await log.put_metadata("app", NAMED, name, json.dumps(facts).encode())

    spec = InstanceSpec("none:app", "app", "i7", f"sqlite:{tmp_path / 'log.db'}", str(tmp_path))
    try:
        with pytest.raises(RefusedBySafety, match=f"runs already as process {other.pid}, with state in there"):
            await NamedInstance(QuietHost(), log, spec, print, meanwhile).announce()
        assert json.loads(await log.metadata("app", NAMED, "i7") or b"") == facts
    finally:
        other.kill()
        await other.wait()
        await log.close()


@pytest.mark.parametrize("kind", ["fleet", "a fleet that asks it", "named"])
async def test_a_log_that_is_away_does_not_hold_up_an_orderly_end(kind: str, tmp_path: Path) -> None:
    """Whoever asked it to stop is waiting; the note that stays is of a process that is gone."""
    async with life_in(tmp_path) as life:
        patient = PatientLog(life.log, 3_600.0, time.monotonic)
        if kind != "named":
            life.fleet = Fleet(life.host, patient, life.spec, life.said.append, nowhere_else)
            await life.run(2)
        else:
            spec = msgspec.structs.replace(life.spec, instance="a")
            life.fleet = NamedInstance(life.host, patient, spec, life.said.append, nowhere_else)
            await life.fleet.announce()
            life.running = asyncio.create_task(life.fleet.run(1))
            await life.until("it is there", lambda: life.host.started == ["a"])
        with closing(sqlite3.connect(life.path, isolation_level=None)) as other:
            other.execute("begin exclusive")
            if kind == "a fleet that asks it":
                life.host.handles["i2"].bounce()  # which the log is to know
                await life.until("it waits for an answer", lambda: bool(patient.waiting))
            assert await life.end() == 0
        assert life.notes() if kind != "named" else True


@pytest.mark.parametrize("found", ["just begun", "in the group", "gone"])
async def test_a_fleet_beside_one_of_another_machine_is_refused(found: str, tmp_path: Path) -> None:
    """Both had an i1, which took each other's tasks again and again, and the second one to end removed the note of the first. Where
    the group has none of them, that machine has ended."""
    async with life_in(tmp_path) as life:
        at_ms = wall_ms() if found == "just begun" else 0
        there = {**this_process(), "host": "another", "state_dir": "/x", "instances": ["i1", "i2"], "at_ms": at_ms}
        await life.log.put_metadata("app", FLEET, "fleet", json.dumps(there).encode())

        async def asked(names: Collection[str]) -> str | None:
            return "another" if found == "in the group" and "i2" in names else None

        spec = msgspec.structs.replace(life.spec, log="kafka://127.0.0.1:1")
        life.fleet = Fleet(life.host, life.log, spec, life.said.append, asked)
        if found == "gone":
            await life.run(1)
            await life.log.put_metadata("app", FLEET, "fleet", json.dumps(there).encode())
            assert await life.end() == 0
        else:
            with pytest.raises(RefusedBySafety, match="run already by a fleet on another; add instances here with"):
                await life.fleet.announce()
        assert life.notes()["fleet"] == there, "the note of another one stays"


@pytest.mark.parametrize("kind", ["fleet", "named"])
async def test_what_coordinates_on_a_machine_that_is_not_reached_is_there(kind: str, tmp_path: Path) -> None:
    """Two machines, no --listen: the coordinator listens at 127.0.0.1 of the other one, and is not reached. The second fleet was taken: its
    i1 took the lease and the tasks of the first one's, and its note was in the place of that one's."""
    async with life_in(tmp_path) as life:
        name = "a" if kind == "named" else "i1"
        there = {**this_process(), "host": "another", "state_dir": "/x", "instances": [name, "i2"], "at_ms": 0}
        place = (NAMED, "a") if kind == "named" else (FLEET, "fleet")
        await life.log.put_metadata("app", *place, json.dumps(there).encode())
        lease = await life.log.acquire("app", name, "127.0.0.1:1", None)

        is_there = True

        async def beat() -> None:
            nonlocal lease
            while is_there:
                lease = await life.log.renew(lease)
                await asyncio.sleep(0.05)

        spec = msgspec.structs.replace(life.spec, log="kafka://127.0.0.1:1", instance="a" if kind == "named" else "")
        made = NamedInstance if kind == "named" else Fleet
        fleet = made(life.host, life.log, spec, life.said.append, nowhere_else)
        beating = asyncio.create_task(beat())
        try:
            with pytest.raises(RefusedBySafety, match=r"already.* on another.*where that .*has ended, try again"):
                await fleet.announce()
        finally:
            is_there = False  # one that is cancelled may be written later, as one beat more
            await asyncio.wait([beating])
        assert json.loads(await life.log.metadata("app", *place) or b"") == there
        await fleet.announce()  # its beat stands still: that machine has ended


async def test_a_note_by_a_clock_that_is_ahead_does_not_stay_young(tmp_path: Path) -> None:
    """A fleet that was killed there kept others away for as long as its clock was ahead."""
    async with life_in(tmp_path) as life:
        there = {
            **this_process(),
            "host": "another",
            "state_dir": "/x",
            "instances": ["i1"],
            "at_ms": wall_ms() + 3_600_000,
        }
        await life.log.put_metadata("app", FLEET, "fleet", json.dumps(there).encode())
        spec = msgspec.structs.replace(life.spec, log="kafka://127.0.0.1:1")
        await Fleet(life.host, life.log, spec, life.said.append, nowhere_else).announce()


async def test_a_refused_start_by_name_puts_back_the_note_of_another_machine(tmp_path: Path) -> None:
    async with life_in(tmp_path) as life:
        there = {**this_process(), "host": "another", "state_dir": "/x", "instances": ["a"], "at_ms": 0}
        await life.log.put_metadata("app", NAMED, "a", json.dumps(there).encode())
        spec = msgspec.structs.replace(life.spec, instance="a")
        named = NamedInstance(life.host, life.log, spec, life.said.append, nowhere_else)
        await named.announce()
        await named.withdraw()
        assert json.loads(await life.log.metadata("app", NAMED, "a") or b"") == there


async def test_a_fleet_on_another_machine_is_there_for_who_waits(tmp_path: Path) -> None:
    """Its number says nothing here: a process of this machine may have it, or none."""
    log = await open_sqlite(tmp_path / "log.db", create=True)
    note = {**this_process(), "host": "elsewhere", "pid": 1 << 22, "started": "1", "instances": ["i1"]}
    await log.put_metadata("app", FLEET, "fleet", json.dumps(note).encode())
    assert (await fleet_of(log, "app") or {})["instances"] == ["i1"]
    assert await may_be_looked_after(log, "app")
    await log.put_metadata("app", FLEET, "fleet", json.dumps({**note, "host": this_process()["host"]}).encode())
    assert await fleet_of(log, "app") is None and not await may_be_looked_after(log, "app")
    await log.close()


def test_a_process_that_was_killed_is_gone_before_its_parent_asks_how() -> None:
    """The first process of a container may never ask: a command that was killed could not be run again."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE)
    try:
        assert started(process.pid) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
        assert Path(f"/proc/{process.pid}").exists() and started(process.pid) is None
    finally:
        process.communicate()
