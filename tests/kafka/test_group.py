"""A whole group of real processes on a real broker: killed, stopped and bounced, with its outputs checked by id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from state.log.protocol import Partition
from tests import brokers
from tests.cli.console import Console
from tests.kafka.place import Place
from tests.kills.harness import SHAPES, Bank, life, stops
from workers.fleet.presence import NAMED

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
ASKING = (
    *(("status", "bank"), ("explain", "bank", "0_0"), ("query", "bank", "balances", "ann"), ("secret", "bank")),
    *(("scale-up", "bank", "--by", "1"), ("scale-down", "bank", "--by", "1"), ("drain", "bank", "a")),
    *(("resume", "bank", "0_0"), ("wait", "bank", "--timeout", "1s")),
)


def url(place: Place) -> str:
    return f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"


@pytest.mark.parametrize(
    ("kind", "moment"), [pytest.param("both", 0.4, marks=pytest.mark.short), ("stall", 0.6), ("produce", 0.5)]
)
async def test_nothing_is_lost_or_doubled(kind: str, moment: float, place: Place, tmp_path: Path) -> None:
    report = await life(tmp_path, kind, moment, url=url(place))
    assert report.ok, report


@pytest.mark.parametrize(("kind", "moment"), [("both", 0.4), ("stall", 0.6)])
async def test_nothing_is_lost_at_least_once(kind: str, moment: float, place: Place, tmp_path: Path) -> None:
    """A balance counts a payment as often as it was put out: what stands in an output stands in the changelog."""
    report = await life(tmp_path, kind, moment, 6_000, url(place), "repeated")
    assert not report.lost and not report.wrong_balances, report


async def test_orderly_stops_lose_and_double_nothing(place: Place, tmp_path: Path) -> None:
    report = await stops(tmp_path, "batch", [0.2, 0.6], 8_000, url(place))
    assert report.ok, report


async def test_the_guarantee_changes_between_runs_in_both_directions(place: Place, tmp_path: Path) -> None:
    """Exactly once, then at least once with everything killed in it, then exactly once: nothing is lost, and what was put
    out again was so in the middle run, and is in the balances as often."""
    bank = Bank(tmp_path, 12_000, instances=2, url=url(place))
    bank.produce_s = 15
    await bank.start()
    try:
        await bank.until(1_500)
        bank.app = SHAPES["repeated"]
        await bank.bounce(signal.SIGTERM)
        first = await bank.check("at the end of the first run", 0.0)
        assert not first.doubled
        await bank.announced()
        await bank.until(await bank.processed() + 1_000)
        assert "at-least-once" in await bank.told("status", "receipts")
        assert bank.fleet is not None
        everybody = [pid for instance in ("i1", "i2") for pid in bank.signal(instance, signal.SIGKILL)]
        bank.fleet.kill()
        await asyncio.to_thread(bank.fleet.wait)
        assert len(everybody) >= 4
        bank.app = SHAPES["sync"]
        bank.run()
        await bank.finished()
        report = await bank.check("the end", 1.0)
        assert not report.lost and not report.wrong_balances, report
        await bank.shows("exactly-once", "status", "receipts")  # all may be processed before they have joined
    finally:
        await bank.stop()


def test_instances_by_name_form_a_group(console: Console, tmp_path: Path) -> None:
    """Each with its own folder of state, as on machines of their own, and the secret of the first."""
    place = Place()
    log = ("--log", url(place))
    fast = ("--session-timeout", "8s", "--heartbeat", "300ms")
    first = console.start("run", "bank:app", "--name", "a", *log, "--state-dir", "one", *fast, name="run")
    console.until("a secret", lambda: list(console.folder.glob("one/bank/group.secret")))
    secret = ("--secret-file", str(console.folder / "one/bank/group.secret"))
    asked = ("--state-dir", "one")

    def stable(instances: int) -> dict[str, set[str]]:
        done = console("wait", "bank", "--instances", str(instances), "--timeout", "25s", *log, *asked)
        assert done.code == 0, (done, console.said("run"))
        status = console("status", "bank", "--json", *log, *asked).json
        names = [row["id"] for row in status["instances"]]
        return {name: {t["id"] for t in status["tasks"] if t["active"] == name} for name in names}

    stable(1)
    second = console.start("run", "bank:app", "--name", "b", *log, *secret, "--state-dir", "two", *fast, name="run")
    before = stable(2)
    assert [len(tasks) for tasks in before.values()] == [4, 4]
    refused = console("run", "bank:app", "--name", "b", *log, *secret, "--state-dir", "three")
    assert refused.code == 3 and f"runs already as process {second.pid}" in refused.err, refused
    second.terminate()
    assert console.end(second) == 0
    second = console.start("run", "bank:app", "--name", "b", *log, *secret, "--state-dir", "two", *fast, name="run")
    assert stable(2) == before
    for words in ASKING:
        done = console.here(*words, *log, "--state-dir", "nowhere")
        assert done.code == (4 if words[0] == "wait" else 2), (words, done)
        assert "there is no secret at " in done.err and "nowhere/bank/group.secret" in done.err, done
    left = console("scale-down", "bank", "--instances", "b", "--wait", *log, *asked)
    assert left.code == 0, left
    assert console.end(second) == 0
    assert list(stable(1)) == ["a"]
    first.terminate()
    assert console.end(first) == 0, console.said("run")


def test_waiting_for_an_app_that_another_machine_may_be_starting(console: Console) -> None:
    """No file of the log shows that it is: it is waited for to the end, and what is missing is said then."""
    done = console("wait", "bank", "--timeout", "5s", "--log", url(Place()))
    assert done.code == 4 and "not stable after 5 s: the log knows no application 'bank'" in done.err, done


def test_a_name_that_runs_on_another_machine(console: Console) -> None:
    """A host name of its own stands for the machine. Its note is made old, so that the coordinator alone can tell."""
    if subprocess.run(["unshare", "-u", "hostname", "elsewhere"], capture_output=True, check=False).returncode:
        pytest.skip("host names of its own need a right that is not here")
    place = Place()
    log = ("--log", url(place))
    ours = [sys.executable, "-m", "orchestrator", "run", "bank:app", "--name", "i7", *log]
    away = ["unshare", "-u", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", *ours]
    with (console.folder / "run.err").open("ab") as err:
        there = subprocess.Popen(away, cwd=console.folder, env=console._environment(), stdout=err, stderr=err)
    try:
        (console.folder / "run.out").touch()
        done = console("wait", "bank", "--instances", "1", "--timeout", "25s", *log)
        assert done.code == 0, (done, console.said("run"))
        early = console("run", "bank:app", "--name", "i7", *log, "--state-dir", "here", *secret_of(console))
        assert early.code == 3 and "runs already on elsewhere" in early.err, early
        asyncio.run(age(place))
        late = console("run", "bank:app", "--name", "i7", *log, "--state-dir", "here", *secret_of(console))
        assert late.code == 3 and "after the session timeout" in late.err, late
    finally:
        there.terminate()
        assert there.wait(30) == 0, console.said("run")
    again = console.start(
        "run", "bank:app", "--name", "i7", *log, "--state-dir", "here", *secret_of(console), name="run"
    )
    done = console("wait", "bank", "--instances", "1", "--timeout", "25s", *log)
    assert done.code == 0, (done, console.said("run"))
    again.terminate()
    assert console.end(again) == 0, console.said("run")


def secret_of(console: Console) -> tuple[str, str]:
    return "--secret-file", str(console.folder / ".orchestrator/state/bank/group.secret")


async def age(place: Place) -> None:
    """The note of i7 is from long ago."""
    opened = await place.open()
    found = await opened.metadata("bank", NAMED, "i7")
    assert found is not None
    await opened.put_metadata("bank", NAMED, "i7", json.dumps({**json.loads(found), "at_ms": 1}).encode())
    await place.close()


async def test_all_are_killed_within_commits_and_start_again(place: Place, console: Console) -> None:
    """Nothing of the group is left that could end their transactions, and a start waited for the brokers to: by default 30
    seconds and more. Here they take two minutes."""
    names, where = ("ann", "bob", "cid", "dan"), ("--log", url(place))
    lines = "\n".join(json.dumps({"key": name, "value": {"account": name, "amount": 1}}) for name in names)
    assert console("produce", "bank:app", "payments", *where, stdin=lines).code == 0
    running = console.start("run", "bank:app", *where, name="first")

    def paid(amount: int) -> bool:
        answers = [console("query", "bank", "balances", name, *where) for name in names]
        return all(answer.out == f"{amount}\n" for answer in answers)

    console.until("the payments", lambda: paid(1))
    for pid in console.processes():
        os.kill(pid, signal.SIGKILL)
    console.end(running)
    log = await place.open(timeout_s=120)
    [writer] = {record.transactional_id for record in (await log.owners("bank")).values()}
    inputs = [Partition("payments", number) for number in range(8)]
    assert await log.positions("bank", inputs)
    left = log._writers.producer("bank", writer)
    await left.initialise()
    await left._open({}, "bank")
    before = await log.positions("bank", inputs)
    await left._add_positions("bank", {one: at + 1 for one, at in before.items()}, {})
    assert await log.positions("bank", inputs, settled=False) == before
    console.start("run", "bank:app", *where, name="run")
    assert console("produce", "bank:app", "payments", *where, stdin=lines).code == 0
    console.until("the payments behind it", lambda: paid(2))


def test_brokers_that_give_no_answer_are_reported_before_they_are_given_up(console: Console) -> None:
    """A request is made again for half a minute before it fails; until then no process wrote a line."""
    where = ("--log", url(Place()))
    console.start("run", "bank:app", *where, name="run")
    assert console("wait", "bank", "--instances", "1", "--timeout", "25s", *where).code == 0
    broker = brokers.shared()
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        console.until("a line", lambda: "orchestrator.log: waiting for the log to be written" in console.said("run"))
        assert "waiting for the log to be written: no answer for 5 s" in console.said("run")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    console.until("its end", lambda: "orchestrator.log: the log can be used again" in console.said("run"))
