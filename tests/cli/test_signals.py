"""Interrupts at any moment, deaths and stops: no process is left behind, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.cli import main
from tests.cli.console import WAIT, Console
from tests.often import often
from workers.commands import wait

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")

OF_PYTHON = (
    "init_import_site",
    "Could not import runpy",
    "Error calling __set_name__ on 'cached_property' instance 'hostmask'",  # before 3.12, within what pathlib imports
)  # the interpreter is interrupted before it runs anything of ours


def instance_pid(console: Console, name: str) -> int:
    rows = (console.folder / f".orchestrator/state/bank/{name}/journal.jsonl").read_text().splitlines()
    return int([row for row in map(json.loads, rows) if row["what"] == "instance"][-1]["pid"])


INTERRUPTED_AT = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("orchestrator", run_name="__main__")
"""


HALF_MADE = """
import asyncio.selector_events, os, runpy, signal

def begin(loop, selector=None):
    os.kill(os.getpid(), signal.{})

asyncio.selector_events.BaseSelectorEventLoop.__init__ = begin
runpy.run_module("orchestrator", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["typing", "pathlib", "difflib", "orchestrator.cli.commands"])
def test_an_interrupt_while_the_command_line_is_imported(console: Console, module: str) -> None:
    """A traceback, of the standard library or of the import of another module."""
    console.write("interrupted.py", INTERRUPTED_AT)
    child = console.script("interrupted.py", module, name="interrupted")
    assert console.end(child) == 130 and console.said("interrupted") == ""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_an_event_loop_is_made(console: Console, name: str, code: int) -> None:
    """What is half made complains when it is freed."""
    console.write("halfway.py", HALF_MADE.format(name))
    child = console.script("halfway.py", "run", "bank:app", name="halfway")
    assert console.end(child) == code and console.said("halfway") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_is_interrupted_at_any_moment(console: Console, number: int) -> None:
    choice = random.Random(number)
    for pause in (0.05, choice.uniform(0.1, 0.5), choice.uniform(0.5, 2.0)):
        fleet = console.start("run", "bank:app", "--instances", "2", name="run")
        time.sleep(pause)
        fleet.send_signal(number)
        code = console.end(fleet)
        # Before anything was started the interpreter itself is interrupted; after that it is an orderly end.
        ours = (130, -signal.SIGINT) if number == signal.SIGINT else (0, 143, -signal.SIGTERM)
        assert code in ours or any(part in console.said("run") for part in OF_PYTHON), (code, console.said("run"))
        console.nothing_left()
    assert "defect" not in console.said("run")
    console.pay(("ann", 1))
    console.run(*FAST)
    assert console.balance("ann") == "1\n"


IN_A_CLASS = """
class Named:
    def __set_name__(self, owner, name):
        {}


class Owner:
    named = Named()
"""


IN_A_CALLBACK = """
class Gone:
    def __del__(self):
        {}


Gone()
"""


@pytest.mark.parametrize("around", ["{}", IN_A_CLASS, IN_A_CALLBACK], ids=["module", "class", "callback"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_app_is_imported_is_not_its_mistake(
    console: Console, number: int, code: int, around: str
) -> None:
    """While a class is made, Python before 3.12 makes another error of it; in a callback of its own it shows and drops it."""
    kill = around.format(f"os.kill(os.getpid(), {number})")
    console.write("slow.py", f"import os\n{kill}\nfrom bank import app")
    done = console("run", "slow:app")
    assert (done.code, done.err) == (code, ""), done


WITHIN_THE_HOOK = """
import _thread, os, signal, time

start = _thread.start_new_thread

def slow(*arguments):
    start(*arguments)
    time.sleep(0.05)  # as where the machine has much to do: what was started runs first

_thread.start_new_thread = slow
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_lost_signal_is_not_sent_again_where_it_is_lost_again(console: Console, number: int, code: int) -> None:
    kill = IN_A_CALLBACK.format(f"os.kill(os.getpid(), {number})")
    console.write("slow.py", f"{WITHIN_THE_HOOK}\n{kill}\nfrom bank import app")
    done = console("run", "slow:app")
    assert (done.code, done.err) == (code, ""), done


@pytest.mark.parametrize("code", ["0", "3", '"no"', ""])
def test_an_app_that_ends_the_program_is_an_error(console: Console, code: str) -> None:
    """Its own code is none of ours: with 0 a supervisor would take the fleet for one that ended in order."""
    console.write("quits.py", f"import sys\nsys.exit({code})")
    done = console("run", "quits:app")
    assert done.code == 2 and "ends the program when it is imported" in done.err, done


def test_sigterm_while_asyncio_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a module is there then: it was an internal error."""
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
    with pytest.raises(SystemExit) as ended:
        main.exit_at_once(signal.SIGTERM, None)
    assert ended.value.code == 143


BETWEEN_TWO_TASKS = """
class Queue(collections.deque):
    def popleft(self):
        handle = super().popleft()
        if waiting and waiting[0].done():  # taken, and not called yet: what wakes the task that waits
            waiting.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        return handle

async def work():
    loop = asyncio.get_running_loop()
    loop._ready = Queue(loop._ready)
    future = loop.create_future()
    loop.call_later(0.01, lambda: (waiting.append(future), future.set_result(None)))
    await future
    await asyncio.sleep(60)
"""
IN_A_TASK = """
async def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    os.read(os.pipe()[0], 1)  # nothing of the loop goes on meanwhile
"""
BESIDE_ALL_TASKS = """
async def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    await asyncio.sleep(60)
"""


@pytest.mark.parametrize("program", [BETWEEN_TWO_TASKS, IN_A_TASK, BESIDE_ALL_TASKS])
def test_a_command_ends_wherever_its_loop_is(program: str) -> None:
    """With what it does at the end; a wakeup that got lost would hold it for ever."""
    head = "import asyncio, collections, os, signal, sys, threading\nfrom orchestrator.cli.main import exit_at_once\nwaiting = []\n"
    body = """
async def main():
    try:
        await work()
    finally:
        await asyncio.sleep(0)
        print("in order", flush=True)

signal.signal(signal.SIGTERM, exit_at_once)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", head + program + body], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (143, "in order\n", "")


def test_a_second_run_is_refused(console: Console) -> None:
    console.run(*FAST)
    for words in ([], ["--state-dir", "elsewhere"]):
        second = console("run", "bank:app", *words)
        assert (second.code, second.out) == (3, ""), second
        assert second.err.count("\n") == 1 and "is run already by process" in second.err and "scale-up" in second.err
    assert console.here("wait", "bank").code == 0


def test_of_two_runs_that_start_together_one_is_refused(console: Console) -> None:
    """Their state lies apart: nothing but the log can tell."""
    for turn in range(3):
        names = [f"{side}{turn}" for side in ("left", "right")]
        runs = [console.start("run", "bank:app", "--state-dir", name, *FAST, name=name) for name in names]
        console.until("one to be refused", lambda runs=runs: any(run.poll() is not None for run in runs))
        over = [run for run in runs if run.poll() is not None]
        assert [run.returncode for run in over] == [3], [console.said(name) for name in names]
        assert console.here("wait", "bank", *WAIT).code == 0  # a signal before its instance is started ends it with 143
        for run in set(runs) - set(over):
            run.terminate()
            assert console.end(run) == 0
        console.nothing_left()


def test_waiting_for_an_application_that_the_log_does_not_know_ends(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "MAKING_S", 0.5)
    console.run(*FAST)
    unknown = console.here("wait", "nobody", "--log", f"sqlite:{console.folder}/.orchestrator/bank.db")
    assert unknown.code == 2 and "knows no application 'nobody'" in unknown.err


def test_the_fleet_is_killed(console: Console) -> None:
    """kill -9 of what started the instances: they end too, and a new run goes on where they ended."""
    fleet = console.run(*FAST, instances=2)
    console.pay(("ann", 1))
    assert console.balance("ann") == "1\n"
    before = console.here("status", "bank", "--json").json["generation"]
    fleet.kill()
    fleet.wait()
    console.nothing_left()
    gone = console.here("status", "bank")
    assert gone.code == 3 and "has no coordinator" in gone.err and "orchestrator run" in gone.err
    console.run(*FAST, instances=2)
    console.pay(("ann", 1))
    assert console.balance("ann") == "2\n"
    assert console.here("status", "bank", "--json").json["generation"] > before


DEADLY = """
import os
import signal
import sys

from orchestrator import App, Record, Table

if "worker_main" in sys.argv[0]:
    with open("starts", "a") as file:
        file.write("x")

app = App("bank", partitions=1)
payments = app.topic("payments", key=str, value=int)
balances = app.table("balances", key=str, value=int, default=int)


@app.processor(payments, balances)
def settle(payment: Record[str, int], balances: Table[str, int]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stop_during_the_pause_before_a_restart_starts_nothing(console: Console) -> None:
    """A worker that dies on each start is started again after longer and longer pauses; a stop ends the pause."""
    console.write("bank.py", DEADLY)
    fleet = console.run(*FAST)
    assert console.here("produce", "bank:app", "payments", stdin='{"key": "ann", "value": 1}').code == 0
    console.until("the fourth death", lambda: console.said("run").count("it is started again") == 4)
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()
    assert (console.folder / "starts").read_text() == "xxxx"


def test_sigterm_to_an_instance_that_is_to_leave(console: Console) -> None:
    """--on-stop leave: it hands over, ends with 0, and is not started again; the whole fleet ends at once."""
    fleet = console.run(*FAST, "--on-stop", "leave", instances=2)
    console.pay(("ann", 1), ("bob", 2))
    os.kill(instance_pid(console, "i2"), signal.SIGTERM)
    console.until("one instance", lambda: len(console.here("status", "bank", "--json").json["instances"]) == 1)
    console.until("its end", lambda: len(console.processes()) == 3)
    assert console.balance("bob") == "2\n"
    assert "started again" not in console.said("run")
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


NOTED = """

@app.processor(payments)
def note(payment: Record[str, Payment]) -> None:
    with open("calls", "a") as file:
        file.write("x")
"""


@pytest.mark.parametrize("on_stop", ["bounce", "leave"])
def test_sigterm_to_the_process_that_status_names(console: Console, on_stop: str) -> None:
    """That is a worker: its instance ends with it, in order. Nothing else of the group is touched."""
    fleet = console.run("--session-timeout", "1m", "--on-stop", on_stop, instances=2)
    console.pay(("ann", 1), ("bob", 2))
    status = console.here("status", "bank", "--json").json
    host = status["coordinator"]["instance"]
    [other] = [row for row in status["instances"] if row["id"] != host]
    os.kill(other["pid"], signal.SIGTERM)
    console.until("its end", lambda: len(console.processes()) == 3)
    rows = (console.folder / f".orchestrator/state/bank/{other['id']}/journal.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["what"] == "instance ended" and fleet.poll() is None
    owners = {task["active"] for task in console.here("status", "bank", "--json").json["tasks"]}
    assert owners == ({host, other["id"]} if on_stop == "bounce" else {host}), "kept for it, or handed over"
    assert "ended with" not in console.said("run")
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


STUCK = """
import time

@app.processor(payments)
def stick(payment: Record[str, Payment]) -> None:
    open("calls", "a").write("x")
    while True:
        time.sleep(0.1)
"""


def test_a_second_sigterm_to_that_process_ends_a_call_that_does_not_return(console: Console) -> None:
    console.write("bank.py", (console.folder / "bank.py").read_text() + STUCK)
    seen = console.write("calls", "")
    fleet = console.run(*FAST, instances=1)
    [row] = console.here("status", "bank", "--json").json["instances"]
    console.pay(("ann", 1))
    console.until("the call", lambda: seen.read_text() != "")

    def ended() -> bool:
        """Each look sends another one: two that come at once are one."""
        try:
            os.kill(row["pid"], signal.SIGTERM)
        except ProcessLookupError:
            return True
        return False

    console.until("its end", ended)
    assert console.end(fleet) == 0
    console.nothing_left()


def test_sigterm_to_every_process_of_a_fleet(console: Console) -> None:
    """As a supervisor does that ends a whole service: each commits and stops, also who is asked by its parent too."""
    console.write("bank.py", (console.folder / "bank.py").read_text() + NOTED)
    fleet = console.run(*FAST, "--commit-interval", "1m", instances=2)
    seen = console.write("calls", "")
    for count in (1, 2):  # what a task does first is committed at once
        console.pay(("ann", 1))
        console.until("the call", lambda count=count: len(seen.read_text()) == count)
    for pid in console.processes():
        os.kill(pid, signal.SIGTERM)
    assert console.end(fleet) == 0
    console.nothing_left()
    written = console.here("consume", "bank", "bank-balances-changelog").out.splitlines()
    assert [json.loads(line)["value"] for line in written] == [1, 2]
    assert console.said("run").count("\n") == 1, "nothing but the line of its start"


def test_an_instance_that_left_is_parked(console: Console) -> None:
    fleet = console.run(*FAST, "--after-leave", "park", instances=2)
    left = console.here("scale-down", "bank", "--to", "50%", "--wait", "--json")
    assert (left.code, left.json["outcome"]) == (0, "done")
    [name] = left.json["leaving"]
    parked = instance_pid(console, name)
    console.until("the end of its worker", lambda: len(console.processes()) == 4)
    assert (Path("/proc") / str(parked)).exists()
    assert len(console.here("status", "bank", "--json").json["instances"]) == 1
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


def test_produce_is_interrupted_and_run_again(console: Console) -> None:
    rows = [json.dumps({"key": "ann", "value": {"account": "ann", "amount": 1}}) for _ in range(3_000)]
    console.write("payments.jsonl", "\n".join(rows) + "\n")
    words = ("produce", "bank:app", "payments", "--file", "payments.jsonl")

    def written() -> int:
        return console.here("consume", "bank", "payments").out.count("\n")

    before = 0
    for attempt, number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)):
        writing = console.start(*words, "--rate", "500", name=f"produce{attempt}")
        console.until("some records of its own", lambda before=before: written() > before)
        writing.send_signal(number)
        assert console.end(writing) in (130, 143, -signal.SIGKILL)
        assert "Traceback" not in console.said(f"produce{attempt}")
        before = written()
    assert console(*words).code == 0
    assert written() == 3_000
    console.run(*FAST)
    assert console.balance("ann") == "3000\n"


def test_an_instance_is_stopped_and_goes_on(console: Console) -> None:
    """SIGSTOP of a whole instance past its session: others take over; after SIGCONT nothing is counted twice."""
    console.run(*FAST, instances=2)
    host = console.here("status", "bank", "--json").json["coordinator"]["instance"]
    other = "i1" if host == "i2" else "i2"
    parent = instance_pid(console, other)
    children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    people = [f"p{number}" for number in range(20)]
    console.pay(*((name, 1) for name in people))

    def all_are_paid() -> bool:  # a process that is stopped in the middle of a commit keeps the log locked
        answers = [console.here("query", "bank", "balances", name) for name in people]
        return all(answer.out == "1\n" for answer in answers)

    console.until("the payments", all_are_paid)
    for pid in (parent, *children):
        os.kill(pid, signal.SIGSTOP)
    console.pay(*((name, 1) for name in people))

    def all_are_here() -> bool:
        tasks = console.here("status", "bank", "--json").json["tasks"]
        return all(task["active"] == host for task in tasks)

    console.until("the others to take over", all_are_here)
    for pid in (parent, *children):
        os.kill(pid, signal.SIGCONT)
    console.pay(*((name, 1) for name in people))
    assert console.here("wait", "bank", "--instances", "2").code == 0
    assert [console.balance(name) for name in people] == ["3\n"] * len(people)
    last: dict[str, int] = {}
    for row in map(json.loads, console.here("consume", "bank", "bank-balances-changelog").out.splitlines()):
        last[row["key"]] = row["value"]
    assert last == dict.fromkeys(people, 3)


@pytest.mark.long
def test_a_leaver_that_stands_still_while_its_scale_down_ends_leaves_when_it_goes_on(console: Console) -> None:
    """Also the one that coordinates: the next coordinator has the scale-down from the log. It was a running instance again."""
    console.run(*FAST, instances=3)
    people = [f"p{number}" for number in range(20)]
    console.pay(*((name, 1) for name in people))
    assert console.here("wait", "bank", "--instances", "3", *WAIT).code == 0
    host = console.here("status", "bank", "--json").json["coordinator"]["instance"]
    other = next(name for name in ("i1", "i2", "i3") if name != host)
    halted = [pid for name in (other, host) for pid in with_workers(console, name)]
    for pid in halted[: len(halted) // 2]:
        os.kill(pid, signal.SIGSTOP)
    assert console.here("scale-down", "bank", "--instances", f"{other},{host}").code == 0
    for pid in halted[len(halted) // 2 :]:
        os.kill(pid, signal.SIGSTOP)

    def is_done() -> bool:
        found = console.here("status", "bank", "--json")
        return found.code == 0 and len(found.json["instances"]) == 1 and not found.json["scale"]

    console.until("the scale-down", is_done)
    for pid in halted:
        os.kill(pid, signal.SIGCONT)
    console.until("them to end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in halted))
    assert console.here("wait", "bank", "--instances", "1", *WAIT).code == 0
    console.pay(*((name, 1) for name in people))
    assert [console.balance(name) for name in people] == ["2\n"] * len(people)


def term(console: Console) -> int:
    found = console.here("status", "bank", "--json")
    return int(found.json["coordinator"]["term"]) if found.code == 0 else 0


@pytest.mark.long
@pytest.mark.parametrize("coordinator_goes", often((False, True), False))
def test_a_leaver_that_is_killed_after_its_scale_down_ended_leaves(console: Console, coordinator_goes: bool) -> None:
    """It stands still, and its user ends it by force. Its fleet starts it again, as any that crashed: it stayed. Meanwhile a scale-up
    counted it as one that runs. The next coordinator has it from the log."""
    console.run(*FAST, instances=2)
    assert console.here("wait", "bank", "--instances", "2", *WAIT).code == 0
    host = console.here("status", "bank", "--json").json["coordinator"]["instance"]
    other = "i1" if host == "i2" else "i2"
    halted = with_workers(console, other)
    for pid in halted:
        os.kill(pid, signal.SIGSTOP)
    assert console.here("scale-down", "bank", "--instances", other, "--wait").code == 0
    added = console.here("scale-up", "bank", "--to", "2", "--wait", "--json")
    assert (added.code, added.json["from"], added.json["added"]) == (0, 1, ["i3"])
    if coordinator_goes:
        before = term(console)
        os.kill(instance_pid(console, host), signal.SIGKILL)
        console.until("another coordinator", lambda: term(console) > before)
    for pid in halted:
        os.kill(pid, signal.SIGKILL)
    console.until("it to be started again", lambda: instance_pid(console, other) != halted[0])
    again = instance_pid(console, other)
    console.until("it to end", lambda: not Path(f"/proc/{again}").exists())
    names = {row["id"] for row in console.here("status", "bank", "--json").json["instances"]}
    assert names == {host, "i3"}


def with_workers(console: Console, name: str) -> list[int]:
    parent = instance_pid(console, name)
    return [parent, *(int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]


def test_the_collector_of_a_worker_leaves_out_what_was_there_before_its_tasks(console: Console) -> None:
    """A walk over all modules takes longer than a task that moves may be away."""
    console.write(
        "frozen.py",
        "import gc\nfrom orchestrator import App\n"
        'app = App("frozen")\nbeats = app.topic("beats", key=str, value=int)\nseen = app.table("seen", key=str, value=int)\n'
        "@app.processor(beats, seen)\ndef beat(one, seen):\n    seen[one.key] = gc.get_freeze_count()\n",
    )
    assert console.here("produce", "frozen:app", "beats", stdin='{"key": "a", "value": 1}').code == 0
    console.start("run", "frozen:app", *FAST, name="run")
    console.until("the record", lambda: console.here("query", "frozen", "seen", "a").code == 0)
    assert int(console.here("query", "frozen", "seen", "a").out) > 10_000
