"""`orchestrator reset`: an application begins anew on both logs; one that ended half way is refused and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from state.log.protocol import Partition
from tests.cli.console import Console
from tests.often import often
from workers.log.logs import open_log

pytestmark = pytest.mark.processes
SOON = ("--heartbeat", "200ms")
PAID = [(f"k{number % 7}", number - 3) for number in range(60)]
TOTALS = {key: sum(amount for one, amount in PAID if one == key) for key, _ in PAID}
READER = """
from orchestrator import App
app = App("reader", partitions=8)
balances = app.topic("bank-balances-changelog", key=str, value=int)
@app.processor(balances)
def see(record): ...
"""
# What ends the process at the write that is named: a method of the log, and for metadata its kind.
DYING = """
import os, sys
import state.log.sqlite as sqlite
from orchestrator.cli.main import main
from tests.often import often

method, kind, value = sys.argv[1:4]
real = getattr(sqlite.SqliteLog, method)

async def dying(self, *args, **named):
    if not kind or (args[1].name == kind and (value != "gone" or args[3] is None)):
        os._exit(9)
    return await real(self, *args, **named)

setattr(sqlite.SqliteLog, method, dying)
sys.exit(main(["reset", "bank"]))
"""
STEPS = {
    "the lease": ("acquire", "", ""),
    "the note": ("put_metadata", "reset", ""),
    "the fence": ("fence", "", ""),
    "positions": ("forget_positions", "", ""),
    "topics": ("delete_topic", "", ""),
    "history": ("put_metadata", "history", ""),
    "topic ids": ("put_metadata", "topic-ids", ""),
    "description": ("put_metadata", "description", ""),
    "the note is gone": ("put_metadata", "reset", "gone"),
}
BEFORE_THE_NOTE = ("the lease", "the note")
QUICK = ("topics",)


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Console]:
    made = Console(tmp_path / "place").bank()
    if request.param == "kafka":
        from tests.kafka.place import Place

        place = Place()
        made.write("orchestrator.toml", f'log = "kafka://127.0.0.1:{place.port}?prefix={place.prefix}"\n')
    yield made
    made.close()


def balances(console: Console) -> dict[str, int]:
    lines = console.here("table", "dump", "bank", "balances").out.splitlines()
    return {row["key"]: row["value"] for row in map(json.loads, lines)}


def alerts(console: Console) -> int:
    return len(console.here("consume", "bank", "alerts").out.splitlines())


def lived(console: Console) -> None:
    """The app has processed all payments, and was stopped in order."""
    run = console.run(*SOON, instances=2)
    console.until("all payments", lambda: balances(console) == TOTALS)
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0


def test_an_app_begins_anew(anywhere: Console) -> None:
    console = anywhere
    console.pay(*PAID)
    run = console.run(*SOON, instances=2)
    console.until("all payments", lambda: balances(console) == TOTALS)
    before = alerts(console)
    assert before > 0
    refused = console.here("reset", "bank")
    assert refused.code == 3 and "stop all its instances" in refused.err
    plan = console.here("reset", "bank", "--plan", "--json").json
    assert plan["deleted"] == ["bank-balances-changelog"] and plan["kept"] == ["alerts", "payments"]
    assert plan["positions"]["payments"] > 0
    assert (
        len({task for tasks in plan["state"].values() for task in tasks}) == 8
    )  # where two have started apart, some twice
    assert balances(console) == TOTALS, "a plan changes nothing"
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0

    done = console.here("reset", "bank")
    assert done.code == 0 and "topic bank-balances-changelog" in done.out, done
    assert not list((console.folder / ".orchestrator/state/bank").glob("*/0_*")), "state is left"
    again = console.here("reset", "bank")
    assert again.code == 2 and "nothing to reset" in again.err
    for words in (("consume", "{}", "alerts"), ("topics", "list", "{}"), ("topics", "describe", "{}", "alerts")):
        by_id, by_code = (console.here(*(word.format(app) for word in words)) for app in ("bank", "bank:app"))
        assert by_id.code == 2 and "give MODULE:APP in place of the id" in by_id.err, by_id
        assert by_code.code == 0 and by_code.out, by_code
    kept = console.here("consume", "bank:app", "alerts").out.splitlines()
    assert len(kept) == before, "what stays can be read before it is written again"
    console.pay(("k0", 1_000))
    run = console.run(*SOON, instances=3)
    console.until("all payments again", lambda: balances(console) == {**TOTALS, "k0": TOTALS["k0"] + 1_000})
    assert alerts(console) == 2 * before, "outputs stay, and what is processed again writes its own again"


@pytest.mark.parametrize("step", often(STEPS, *QUICK))
def test_one_that_ended_half_way_goes_on(tmp_path: Path, step: str) -> None:
    console = Console(tmp_path / "place").bank()
    console.pay(*PAID)
    lived(console)
    console.write("dying.py", DYING)
    assert console.end(console.script("dying.py", *STEPS[step], name="dying")) == 9, console.said("dying")
    if step in BEFORE_THE_NOTE:
        lived(console)
    else:
        refused = console("run", "bank:app")
        assert refused.code == 3 and "run `orchestrator reset bank` again" in refused.err, refused
    done = console.here("reset", "bank")
    assert done.code == 0, done
    assert not list((console.folder / ".orchestrator/state/bank").glob("*/0_*"))
    lived(console)
    console.close()


def test_records_that_retention_has_removed_are_named_as_they_do_not_come_again(console: Console) -> None:
    console.bank().pay(*PAID)
    lived(console)

    async def trim() -> int:
        """What a coordinator does now and then."""
        log = await open_log(f"sqlite:{console.folder}/.orchestrator/bank.db", create=False)
        parts = [Partition("payments", number) for number in range(8)]
        removed = await log.trim(await log.ends(parts))
        await log.close()
        return removed

    assert asyncio.run(trim()) == len(PAID)
    plan = console.here("reset", "bank", "--plan")
    assert plan.code == 0 and "what the tables had of them is not computed again" in plan.out, plan
    gone = console.here("reset", "bank", "--plan", "--json").json["gone"]["payments"]
    assert gone == len(PAID) and f"payments has lost its first {gone} positions to its retention" in plan.out
    done = console.here("reset", "bank")
    assert done.code == 0 and "is gone for good" in done.out


def test_what_another_app_reads_is_not_deleted(console: Console) -> None:
    console.bank().pay(("a", 1))
    assert console.here("topics", "create", "bank:app").code == 0
    run = console.run(*SOON)
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0
    console.app = "reader"
    console.write("reader.py", READER)
    console.environment["ORCHESTRATOR_LOG"] = "sqlite:.orchestrator/bank.db"
    reader = console.run(*SOON)
    reader.send_signal(signal.SIGTERM)
    assert console.end(reader) == 0
    refused = console.here("reset", "bank")
    assert refused.code == 3 and "'reader' reads bank-balances-changelog" in refused.err, refused
    assert console.here("reset", "bank", "--plan").code == 3
    assert console.here("reset", "reader").code == 0
    assert console.here("reset", "bank").code == 0


def test_a_worker_that_wakes_up_later_commits_nothing(console: Console) -> None:
    """The fleet is stopped by the kernel, as by a pause of the machine, and its parent killed: nobody looks after it."""
    console.bank()
    run = console.run(*SOON)
    console.pay(*PAID)
    console.until("all payments", lambda: balances(console) == TOTALS)
    rest = [pid for pid in console.processes() if pid != run.pid]
    for pid in rest:
        os.kill(pid, signal.SIGSTOP)
    run.kill()
    run.wait()
    refused = console.here("reset", "bank")
    assert refused.code == 3 and "is in use by process" in refused.err, refused
    for pid in rest:
        os.kill(pid, signal.SIGCONT)
    console.until("the end of the instance", lambda: not console.processes())
    assert console.here("reset", "bank").code == 0


def test_state_that_was_named_goes(console: Console) -> None:
    console.bank().pay(*PAID)
    run = console.run("--state-dir", "elsewhere", *SOON)
    console.until("all payments", lambda: balances(console) == TOTALS)
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0
    state = console.folder / "elsewhere/bank"
    assert len(list(state.glob("i1/0_*"))) == 8
    assert console.here("reset", "bank", "--state-dir", "elsewhere").code == 0
    assert not list(state.glob("i1/0_*"))


def test_wrong_use(console: Console) -> None:
    console.bank().pay(("a", 1))
    for words, why in ((("nothing",), "knows no application 'nothing'"), (("bank", "--apply"), "--apply")):
        done = console.here("reset", *words, "--log", "sqlite:.orchestrator/bank.db")
        assert done.code == 2 and why in done.err, done
