"""Executors get the app's source: they import it where neither its folder nor their own is on the path."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from orchestrator.errors import WrongUse
from pipeline.errors import LoadError
from pipeline.loading import load
from pipeline.spark import source
from pipeline.spark.backfill import backfill
from state.log.protocol import NewRecord, Partition
from state.log.sqlite import open_sqlite
from workers.commands.consume import read_all
from workers.prepare import prepare

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
APP = """
from orchestrator import App, Record, Sink

app = App("away", partitions=2)
words = app.topic("words", key=str, value=str)
places = app.topic("places", key=str, value=str)


@app.processor(words, places)
def place(word: Record[str, str], places: Sink[str, str]) -> None:
    import beside_{name}  # not before a record comes
    import pipeline.process

    said = beside_{name}.said(word.value)
    places.send(word.key, " ".join([said, __file__, beside_{name}.__file__, pipeline.process.__file__]))
"""
BESIDE = """
from pathlib import Path


def said(word: str) -> str:
    return (Path(__file__).parent / "data.txt").read_text() + word
"""


def write_app(folder: Path, name: str) -> str:
    """An app in a module of its own, with a package beside it that has data; returns MODULE:APP."""
    (folder / f"beside_{name}").mkdir(parents=True)
    (folder / f"{name}.py").write_text(APP.format(name=name))
    (folder / "stranger.py").write_text("")
    (folder / f"beside_{name}" / "__init__.py").write_text(BESIDE)
    (folder / f"beside_{name}" / "data.txt").write_text("read ")
    return f"{name}:app"


async def words(folder: Path, app_ref: str, name: str = "log.db") -> Any:
    """A log with two words in it."""
    log = await open_sqlite(folder / name, create=True)
    await prepare(log, load(app_ref, folder))
    await log.append({Partition("words", n): [NewRecord(b"k", b"w%d" % n, n)] for n in (0, 1)})
    return log


async def placed(log: Any) -> list[list[str]]:
    return sorted((record.value or b"").decode().split() for _, record in await read_all(log, "places"))


async def test_a_backfill_imports_what_was_sent(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app_ref = write_app(tmp_path, "away_one")
    log = await words(tmp_path, app_ref)
    await backfill(app_ref, f"sqlite:{tmp_path / 'log.db'}", tmp_path / "snapshots", session=spark, say=print)
    found = await placed(log)
    assert [line[:2] for line in found] == [["read", "w0"], ["read", "w1"]]
    assert not any(str(tmp_path) in path for line in found for path in line)
    await log.close()


@pytest.mark.parametrize("form", ["{}:app", "./{}.py:app"])
async def test_what_has_changed_since_a_backfill_before(
    form: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook. Executors' processes that had run an app said that its name was taken; those that had run the file of one
    used what lies beside it as it was, and others as it is now."""
    monkeypatch.chdir(tmp_path)
    name = f"away_{'file' if '/' in form else 'again'}"
    write_app(tmp_path, name)
    app_ref = form.format(name)

    async def said(number: int) -> set[str]:
        log = await words(tmp_path, app_ref, f"{number}.db")
        try:
            url = f"sqlite:{tmp_path / f'{number}.db'}"
            await backfill(app_ref, url, tmp_path / "snapshots", session=spark, say=print)
            return {line[0] for line in await placed(log)}
        finally:
            await log.close()

    assert await said(1) == {"read"}
    (tmp_path / f"beside_{name}" / "data.txt").write_text("heard ")
    assert await said(2) == {"heard"}
    (tmp_path / f"beside_{name}" / "__init__.py").write_text(f"{BESIDE}\n# other code")
    with pytest.raises(WrongUse, match=r"has changed since a job of this process began with it.*restart the kernel"):
        await said(3)


def orchestrator(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator", *more, "--log", f"sqlite:{folder / 'log.db'}"]


@pytest.mark.processes
@pytest.mark.long
async def test_executors_that_are_processes_of_their_own_need_no_folder_of_ours(tmp_path: Path) -> None:
    """`local-cluster`: an executor in another folder, with a path of its own; first a backfill, then an instance."""
    app_ref = write_app(tmp_path / "app", "away_two")
    log = await words(tmp_path / "app", app_ref)
    home = tmp_path / "spark"  # executors get their folders below it
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
        "ORCHESTRATOR_MASTER": "local-cluster[1,2,1024]",
    }
    folder = tmp_path / "app"
    done = await asyncio.to_thread(
        subprocess.run,
        orchestrator(folder, "backfill", app_ref, "--snapshots", str(tmp_path / "snapshots")),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_backfill = await placed(log)
    assert [line[:2] for line in by_backfill] == [["read", "w0"], ["read", "w1"]]
    with (tmp_path / "said").open("w") as said:
        running = await asyncio.create_subprocess_exec(
            *orchestrator(folder, "run", app_ref, "--on", "spark", "--state-dir", str(tmp_path / "state")),
            *("--master", environment.pop("ORCHESTRATOR_MASTER")),
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=said,
        )
    try:
        await log.append({Partition("words", 0): [NewRecord(b"k", b"live", 5)]})
        deadline = time.monotonic() + 120
        while len(found := await placed(log)) < 3:
            assert time.monotonic() < deadline and running.returncode is None, (tmp_path / "said").read_text()
            await asyncio.sleep(0.1)
    finally:
        running.terminate()
        assert await running.wait() == 0, (tmp_path / "said").read_text()
    assert [line[:2] for line in found] == [["read", "live"], ["read", "w0"], ["read", "w1"]]
    for _, _, app_file, beside, ours in found:
        assert str(folder) not in app_file + beside
        assert "/stream-orchestrator-" in ours and ".zip/" in ours
    await log.close()


def test_what_is_sent(tmp_path: Path) -> None:
    app_ref = write_app(tmp_path, "away_three")
    load(app_ref, tmp_path)
    data = source.packed(source.pieces("away_three"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sorted(archive.namelist()) == [
            "away_three.py",
            "beside_away_three/__init__.py",
            "beside_away_three/data.txt",
        ]
    assert source.packed(source.pieces("away_three")) == data


def test_data_beside_a_module_is_sent_where_its_source_names_it(tmp_path: Path) -> None:
    (tmp_path / "rated.py").write_text(
        'import pathlib\nRATES = pathlib.Path(__file__).with_name("rates.csv")\nMORE = "data/more.txt", "linked.csv"\n'
    )
    (tmp_path / "data").mkdir()
    for name in ("rates.csv", "other.csv", "data/more.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "linked.csv").symlink_to(tmp_path / "other.csv")
    load_module(tmp_path, "rated")
    assert [str(path.relative_to(root)) for root, path in source.pieces("rated")] == [
        "rated.py",
        "data/more.txt",
        "linked.csv",
        "rates.csv",
    ]


def load_module(folder: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(write_app(tmp_path, "away_four"), tmp_path)
    monkeypatch.setattr(source, "BYTES_MAX", 100)
    with pytest.raises(WrongUse, match=r"too much to send to every executor; keep data outside"):
        source.packed(source.pieces("away_four"))


async def test_an_app_in_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"'__main__:app': an app in a script or a notebook .*save it as a module"):
        await backfill("__main__:app", f"sqlite:{tmp_path / 'log.db'}", tmp_path, say=print)
