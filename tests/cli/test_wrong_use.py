"""Wrong use ends with 2 and one line that says what to do; nothing is created by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.commands import COMMANDS
from orchestrator.cli.main import main
from tests.cli.console import ROOT, WAIT, Console

HERE = {"demo", "backfill", "verify", "audit", "repartition", "assign"}  # in other hands, or they start for real


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    found = Console(tmp_path_factory.mktemp("wrong") / "place")
    yield found
    found.close()


def one_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err and "defect" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale-down", "bank", "--to", "0"], "one instance always stays"),
        (["scale-down", "bank", "--to", "0%"], "above 0%"),
        (["scale-down", "bank", "--to", "101%"], "up to 100%"),
        (["scale-down", "bank", "--to", "0.8"], "write 80%"),
        (["scale-down", "bank", "--by", "0.125"], "write 12.5%"),
        (["scale-down", "bank", "--to", "-1"], "not a count"),
        (["scale-down", "bank", "--to", "80 %%"], "not a count"),
        (["scale-down", "bank", "--to", "1e3"], "not a count"),
        (["scale-down", "bank", "--to", "9" * 5000], "not a count"),
        (["scale-down", "bank", "--to", "1", "--by", "1"], "exclude each other"),
        (["scale-down", "bank", "--to", "1", "--instances", "a"], "exclude each other"),
        (["scale-down", "bank", "--instances", "i1,,i2"], "commas between"),
        (["scale-down", "bank"], "how many"),
        (["scale-down", "bank", "--to", "1", "--force"], "--timeout"),
        (["scale-down", "bank", "--to", "1", "--plan", "--apply", "x"], "excludes"),
        (["scale-down", "bank", "--to", "1", "--undo"], "leave the other options out"),
        (["scale-down", "bank", "--undo", "--wait"], "leave the other options out"),
        (["scale-down", "bank", "--follow", "--current", "2"], "leave the other options out"),
        (["scale-down", "bank", "--to", "1", "--plan", "--timeout", "1s"], "excludes --timeout"),
        (["scale-down", "bank", "--to", "1", "--plan", "--timeout", "1s", "--force"], "excludes --timeout"),
        (["broker", "stop", "--port", "1"], "--port and --kafka are of a new broker"),
        (["settings", "unset", "bank", "standbys=1"], "'standbys=1'; write"),
        (["scale-down", "bank", "--to", "1", "--timeout", "10"], "not a duration"),
        (["scale-down", "bank", "--to", "1", "--timeout", "9" * 400 + "s"], "too much"),
        (["scale-down", "bank", "--to", "1", "--current", "four"], "whole number"),
        (["scale-down", "bank", "--wai", "--to", "1"], "unrecognized arguments: --wai"),
        (["scale-up", "bank"], "how many"),
        (["scale-up", "bank", "--to", "5", "--by", "1"], "exclude each other"),
        (["scale-up", "bank", "--by", "0"], "--by 0: that changes nothing; write a count of 1 or more"),
        (["scale-up", "bank", "--to", "0"], "always stays"),
        (["scale-down", "bank", "--to", "1.0e9999999999"], "not a count or a share"),
        (["settings", "set", "bank", "standbys=1", "standbys=2"], "standbys is given twice"),
        (["scale-up", "bank", "--by", "0.5"], "write 50%"),
        (["run", "bank:app", "--listen", "10.0.0.5:7000"], "needs TLS; give --tls-cert and --tls-key"),
        (["run", "bank:app", "--listen", "0.0.0.0:7000"], "name the address that other machines reach"),
        (["run", "bank:app", "--listen", "10.0.0.5:x"], "'x' is no port"),
        (["run", "bank:app", "--tls-cert", "a.pem"], "go together"),
        (["run", "bank:app", "--tls-cert", "a.pem", "--tls-key", "a.key"], "cannot be used"),
        (["run", "bank:app", "--secret-file", "none"], "there is no secret at none"),
        (["secret", "nobody"], "no log of application 'nobody'"),
        (["secret", "nobody", "--right", "write", "--out", "x"], "'write' is no right"),
        (["secret", "nobody", "--right", "read"], "--out goes with --right or --new"),
        (["secret", "nobody", "--new"], "--out goes with --right or --new"),
        (["secret", "nobody", "--out", "x"], "--out goes with --right or --new"),
        (["secret", "nobody", "--new", "--right", "read", "--out", "x"], "exclude each other"),
        (["status"], "required: APP"),
        (["status", "nobody"], "no log of application 'nobody'"),
        (["status", "nobody", "--log", "sqlite:none.db"], "no log at"),
        (["status", "nobody", "--log", "sqlite:"], "no path"),
        (["reset", "bank", "--log", ""], "--log has an empty text; write a value, or leave it out"),
        (["run", "bank:app", "--state-dir="], "--state-dir has an empty text"),
        (["run", "bank:app", "--task-weights", ""], "--task-weights has an empty text"),
        (["run", "bank:app", "--task-weights", " ,"], "' ,' gives no weight; write 0_3=4"),
        (["run", "bank:app", "--standbys", "1", "--zone", " "], "' ' is no zone; write up to 200 characters"),
        (["run", "bank:app", "--standbys", "1", "--zone", "z" * 201], "zzz' is no zone; write up to 200 characters"),
        (["run", "bank:app", "--standbys", "1", "--zone", "a\x1b[31m"], "'a\\x1b[31m' is no zone"),
        (["run", "bank:app", "--packages="], "--packages: an empty text names no jar"),
        (["snapshot", "list", "--snapshots", ""], "--snapshots has an empty text"),
        (["bench", "rebalance", "--svg", "none/x.svg"], "--svg none/x.svg: a file cannot be written there"),
        (["status", "nobody", "--log", "postgres:x"], "unknown kind of log"),
        (["query", "nobody", "t", "k"], "no log of application"),
        (["consume", "nobody", "t"], "no log of application"),
        (["explain", "nobody", "0_0"], "no log of application"),
        (["drain", "nobody", "i1"], "no log of application"),
        (["topics", "grow", "nobody", "t", "--partitions", "2"], "no log of application"),
        (["topics", "grow", "bank", "t", "--partitions", "0"], "whole number"),
        (["topics", "grow", "bank", "t", "--partitions", "100001"], "at most 100000"),
        (["topics", "grow", "bank", "t"], "required: --partitions"),
        (["topics", "shrink", "bank", "t", "--partitions", "2"], "invalid choice: 'shrink'"),
        (["statsu", "bank"], "did you mean status?"),
        (["simulate", "missing.txt"], "cannot read missing.txt"),
        (["topics", "--log", "sqlite:x.db", "list", "bank"], "topics: write the verb first, and options behind it"),
        (["log", "--log", "sqlite:x.db", "check", "bank"], "log: write the verb first, and options behind it"),
        (["wait", "bank", "--instances", "0"], "whole number"),
        (["run", "bank:app", "--instances", "0"], "whole number"),
        (["run", "bank:app", "--instances", "1000000"], "at most 1000"),
        (["run", "bank:app", "--standbys", "-1"], "whole number"),
        (["run", "bank:app", "--heartbeat", "0s"], "no time at all"),
        (["run", "bank:app", "--session-timeout", "1s"], "--heartbeat"),
        (["run", "bank:app", "--on", "spark", "--master", "moon[2]"], "'moon[2]' is no master of Spark"),
        (["run", "bank:app", "--failpoint", "x"], "'x' is no failpoint"),
        (["run", "bank:app", "--task-memory", "1GiB"], "unrecognized arguments: --task-memory"),
        (["run", "bank:app", "--capacity", "0"], "--capacity 0: '0' is not a whole number of 1 or more"),
        (["run", "bank:app", "--release-timeout", "0s"], "--release-timeout 0s: '0s' is no time at all"),
        (["run", "bank:app", "--rejoin-grace", "5"], "--rejoin-grace 5: '5' is not a duration"),
        (["run", "bank:app", "--protocol", "magic"], "not one of"),
        (["run", "bank"], "names no app"),
        (["run", "bank.py"], "names no app"),
        (["run", "nowhere:app"], "no module 'nowhere'"),
        (["produce", "bank", "t"], "names no app"),
        (["scale-down", "bank", "--apply", "x", "--to", "1"], "excludes --to"),
        (["explain", "bank", "\udcff"], r"\xff is not UTF-8"),
        (["query", "bank", "t", "a\udcff"], r"a\xff is not UTF-8"),
        (["scale-down", "bank", "--instances", "\udcff"], r"\xff is not UTF-8"),
        (["run", "bank:app", "--log", "sqlite:\udcff"], r"sqlite:\xff is not UTF-8"),
        (["produce", "bank:app", "t", "--file", "\ud800"], r"\ud800 is not UTF-8"),
        (["\udcff"], r"\xff is not UTF-8"),
    ],
)
def test_wrong_use(place: Console, words: list[str], said: str) -> None:
    done = place.here(*words)
    assert done.code == 2, done
    assert one_line(done.err), done.err
    assert said in done.err
    assert done.out == ""
    assert not list(place.folder.iterdir()), "a command that went wrong left something behind"


@pytest.mark.parametrize("words", [["run", "bank:app"], ["produce", "bank:app", "payments"]])
def test_a_folder_whose_name_is_not_utf_8_is_named(tmp_path: Path, words: list[str]) -> None:
    """It was an internal error: paths in it go to SQLite and to other processes as text."""
    folder = Path(f"{tmp_path}/caf\udce9")
    try:
        found = Console(folder).bank()
    except OSError:
        pytest.skip("this file system takes no such name")
    done = found.here(*words)
    assert (done.code, done.out) == (2, "") and one_line(done.err), done
    assert r"caf\xe9 is not UTF-8; rename it, or run the command in another folder" in done.err


@pytest.mark.parametrize("words", [["status", "bank"], ["run", "bank:app"], ["config", "show"], ["demo"]])
def test_a_folder_that_was_deleted_is_named(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was an internal error."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(words) == 2
    found = capsys.readouterr()
    assert found.out == "" and one_line(found.err) and "the current folder was deleted" in found.err


def test_a_file_that_is_missing_makes_no_log(console: Console) -> None:
    done = console.here("produce", "bank:app", "payments", "--file", "missing")
    assert (done.code, done.err) == (2, "error: cannot read missing: No such file or directory; name a readable file\n")
    assert not Path(console.folder, ".orchestrator").exists()


def test_a_file_is_no_folder_of_snapshots_and_one_that_is_missing_is_told(console: Console) -> None:
    console.bank()
    done = console.here("run", "bank:app", "--snapshots", "bank.py")
    assert (done.code, done.out) == (2, "") and one_line(done.err), done
    assert "--snapshots bank.py: it is no folder" in done.err and not Path(console.folder, ".orchestrator").exists()
    console.run("--snapshots", "later")  # the first snapshot may come while it runs
    assert "warning: --snapshots later: there is no such folder; tasks are restored from their" in console.said("run")


def test_a_setting_that_is_not_utf_8(place: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(place.environment, "ORCHESTRATOR_LOG", "sqlite:\udcff")
    done = place.here("status", "bank")
    assert (done.code, done.out) == (2, "") and one_line(done.err) and "it is not UTF-8" in done.err, done


def test_a_share_is_written_with_one_sign(place: Console) -> None:
    for command in ("scale-up", "scale-down"):
        said = place.here(command, "--help").out
        assert "--to N|P%" in said and "%%" not in said


def test_drain_warns_once(place: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(place.environment, "ORCHESTRATOR_HEARTBEET", "1s")
    done = place.here("drain", "bank", "i1")
    assert done.code == 2 and done.err.count("ORCHESTRATOR_HEARTBEET is no setting") == 1, done


WORDS = st.one_of(
    st.sampled_from(
        [
            *("bank", "bank:app", "--to", "--by", "50%", "2", "--wait", "--plan", "--json", "--log", "sqlite:x", "-"),
            *("--timeout", "1s", "--undo", "--follow", "--force", "--current", "--", "0_0", "=", "--to=", "--log="),
        ]
    ),
    st.text(max_size=8).filter(lambda text: "\x00" not in text),
)


@settings(max_examples=150, deadline=None)
@given(command=st.sampled_from(sorted(set(COMMANDS) - HERE)), words=st.lists(WORDS, max_size=6))
def test_no_words_are_a_defect(place: Console, command: str, words: list[str]) -> None:
    """Whatever is typed: an exit code of the table, and nothing is created in the folder."""
    if command == "wait":
        words = [*words, "--timeout", "1ms"]
    if command == "simulate":
        words = [word for word in words if word != "-"]
    done = place.here(command, *words)
    assert done.code in (0, 2, 4), done
    assert "defect" not in done.err, done.err
    assert "Traceback" not in done.err, done.err
    assert not list(place.folder.iterdir())


def test_help_and_version_need_nothing(place: Console) -> None:
    for command in COMMANDS:
        assert f"  {command}" in place.here("--help").out
    assert place.here("status", "--help").code == 0
    assert (place.here().code, place.here().out) == (2, "")  # no answer
    assert place.here().err == place.here("--help").out
    assert "ORCHESTRATOR_LOG" in place.here("status", "--help").out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"group T1\n\xff\xfe\n", "standard input is not a text file"),
        (b"join S1\n----\nok\n----\n", "a second '----'"),
    ],
)
def test_what_is_no_scenario(place: Console, text: bytes, said: str) -> None:
    done = place.here("simulate", "-", stdin=text)
    assert (done.code, done.out) == (2, "")
    assert one_line(done.err) and said in done.err


@pytest.mark.parametrize("room", ["state", "workers", "pipeline"])
def test_a_module_that_hides_ours_from_the_command_itself(tmp_path: Path, room: str) -> None:
    """`python -m` looks into the current folder before anything of ours is imported."""
    console = Console(tmp_path / "place").bank()
    console.write(f"{room}.py", "")
    command = [sys.executable, "-m", "orchestrator.cli.main", "run", "bank:app"]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=console.folder, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr) and f"{room}.py hides the package '{room}' of stream-orchestrator" in done.stderr


@pytest.mark.parametrize("room", ["state", "pipeline", "numbers"])
def test_a_file_of_that_name_runs(tmp_path: Path, room: str) -> None:
    """Named as a file, in the command, in instances and in workers; `python -m orchestrator` looks elsewhere first."""
    console = Console(tmp_path / "place").bank()
    (console.folder / "bank.py").rename(console.folder / f"{room}.py")
    (console.folder / "workers").mkdir()
    console.write("workers/__init__.py", "raise ImportError('not this one')")
    running = console.script("-m", "orchestrator", "run", f"./{room}.py:app", name="run")
    payment = json.dumps({"key": "ann", "value": {"account": "ann", "amount": 5}})
    console.until("the fleet", lambda: console.here("wait", "bank", "--instances", "1").code == 0)
    assert console.here("produce", f"./{room}.py:app", "payments", stdin=payment).out == "1 record\n"
    assert console.here("query", f"{room}.py:app", "balances", "ann").out == "5\n"
    running.terminate()
    assert console.end(running) == 0, console.said("run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["config", "show"], ["config", "show", "--json"]])
def test_an_answer_that_cannot_be_written(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "orchestrator", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert one_line(done.stderr) and "No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "code", "said"),
    [
        ("status nope", "2>&-", 2, ""),  # not what comes of an error that cannot be written
        ("produce bank:app payments", "<&-", 0, "0 records\n"),
        ("config show", ">&-", 0, ""),
        ("nosuch", "2>/dev/full", 2, ""),
        ("status nope", "2>/dev/full", 2, ""),
    ],
)
def test_a_standard_stream_that_is_closed_or_takes_nothing(
    tmp_path: Path, words: str, closed: str, code: int, said: str
) -> None:
    Console(tmp_path).bank()
    command = f'exec "$0" -m orchestrator {words} {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_a_fleet_without_standard_streams_has_workers(tmp_path: Path) -> None:
    """As some daemons are started: what the command opens for them, the processes that it starts have as well."""
    console = Console(tmp_path).bank()
    words = "'-m', 'orchestrator', 'run', 'bank:app'"
    closing = f"import os, sys; os.closerange(0, 3); os.execl(sys.executable, sys.executable, {words})"
    try:
        console.script("-c", closing, name="run")
        assert console.here("wait", "bank", "--instances", "1", *WAIT).code == 0
    finally:
        console.close()


def test_a_log_that_is_something_else(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.write("text.db", "hello" * 200)
    console.write("empty.db", "")
    for name, said in (("text.db", "not a log"), ("empty.db", "never started")):
        done = console.here("status", "x", "--log", f"sqlite:{name}")
        assert done.code == 1
        assert one_line(done.err) and said in done.err


def test_an_error_that_names_itself_as_its_cause(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.write("odd.py", "try:\n    import nosuch\nexcept Exception as error:\n    raise error from error\n")
    done = console("produce", "odd:app", "payments")
    assert done.code == 2 and "No module named 'nosuch'" in done.err, done
