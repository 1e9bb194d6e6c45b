"""Java's classes of Spark are kept for the next start: written once, taken when whole, and never in anybody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.spark import kept_classes
from pipeline.spark.kept_classes import DRAFT, KEPT, UNUSED_MS, WRITTEN_MS, options
from pipeline.spark.properties import JAVA
from tests.spark.machines import until

ROOT = Path(__file__).resolve().parent.parent.parent
WHOLE, NOT_WHOLE = b"\xa8\xab\x0b\xf0 classes", b"\0\0\0\0 classes"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Java 17 and a Spark that are folders alone; a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    for name in ("SPARK_CONF_DIR", *kept_classes.FOLDERS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    made = tmp_path / "jdk"
    (made / "bin").mkdir(parents=True)
    has_version(made, "17.0.12")
    yield made
    has_ended()


def has_ended() -> None:
    """As if the process that has an archive written were gone."""
    for lock in kept_classes._locks:
        os.close(lock)
    kept_classes._locks.clear()


def has_version(home: Path, version: str) -> None:
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')


def cache(home: Path) -> Path:
    return home.parent / "the cache" / "stream-orchestrator" / "java"


def file_of(text: str) -> Path:
    """The archive in what Java is given."""
    quoted, _, rest = text.removeprefix('"').partition('"')
    assert rest == f" {kept_classes.QUIET}"
    return Path(quoted.partition("=")[2])


def written(home: Path, content: bytes = WHOLE) -> Path:
    """What a first start has Java write."""
    draft = file_of(options(home, {}, may_write=True))
    draft.write_bytes(content)
    return draft


def test_a_first_start_has_it_written_and_the_next_one_takes_it(home: Path) -> None:
    first = options(home, {}, may_write=True)
    assert first.startswith('"-XX:ArchiveClassesAtExit=') and file_of(first).parent == cache(home)
    file_of(first).write_bytes(WHOLE)
    second = options(home, {}, may_write=False)
    assert second.startswith('"-XX:SharedArchiveFile=') and file_of(second).read_bytes() == WHOLE
    assert options(home, {}, may_write=True) == second
    assert stat_names(home) == [file_of(second).name, kept_classes.LOCK]


def stat_names(home: Path) -> list[str]:
    return sorted(path.name for path in cache(home).iterdir())


def test_a_java_that_came_without_an_archive_is_told_in_other_words(home: Path) -> None:
    has_version(home, "25.0.2")
    assert options(home, {}, may_write=True).startswith('"-XX:AOTCacheOutput=')
    for draft in cache(home).glob(f"*{DRAFT}"):
        draft.write_bytes(WHOLE)
    assert options(home, {}, may_write=True).startswith('"-XX:AOTCache=')


def test_what_is_not_whole_is_not_taken(home: Path) -> None:
    written(home, NOT_WHOLE)
    assert options(home, {}, may_write=False) == ""


def test_another_version_has_another(home: Path) -> None:
    written(home)
    first = file_of(options(home, {}, may_write=False))
    has_version(home, "17.0.13")
    assert options(home, {}, may_write=False) == ""
    has_version(home, "17.0.12")
    assert file_of(options(home, {}, may_write=False)) == first
    os.utime(home.parent / "spark" / "jars", (1, 1))
    assert options(home, {}, may_write=False) == "", "Spark's jars are others"


def test_one_at_a_time_has_it_written(home: Path) -> None:
    draft = written(home, NOT_WHOLE)
    draft.unlink()
    assert options(home, {}, may_write=True) == "", "one that runs, and has the lock"
    has_ended()
    written(home, NOT_WHOLE)
    has_ended()
    assert options(home, {}, may_write=True) == "", "one that has just ended: Java may still be at it"


def test_what_a_killed_java_left_goes_and_what_nobody_uses(home: Path) -> None:
    draft = written(home, NOT_WHOLE)
    other = cache(home) / f"17-other{KEPT}"
    other.write_bytes(WHOLE)
    aged(draft, WRITTEN_MS)
    aged(other, UNUSED_MS)
    assert options(home, {}, may_write=False) == "" and stat_names(home) == [kept_classes.LOCK]


def aged(path: Path, age_ms: int) -> None:
    at = path.stat().st_mtime - age_ms / 1000 - 60
    os.utime(path, (at, at))


def test_what_is_used_stays(home: Path) -> None:
    written(home)
    kept = file_of(options(home, {}, may_write=False))
    aged(kept, UNUSED_MS)
    assert file_of(options(home, {}, may_write=False)) == kept, "after a month without a job"
    has_version(home, "17.0.13")
    assert options(home, {}, may_write=False) == "" and kept.exists(), "another Java looks, a moment later"


@pytest.mark.parametrize(
    "theirs",
    [
        {JAVA: "-Xshare:off"},
        {JAVA: "-Dx=1 -XX:SharedArchiveFile=/var/tmp/spark.jsa"},
        {JAVA: "-XX:AOTCache=x"},
        {kept_classes.CLASS_PATH: "/opt/more.jar"},
    ],
)
def test_whoever_says_how_classes_are_shared_is_heard(home: Path, theirs: dict[str, str]) -> None:
    assert options(home, theirs, may_write=True) == ""


def test_none_is_written_where_java_could_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert options(home, {}, may_write=True) == ""
    monkeypatch.delenv("HADOOP_CONF_DIR")
    conf = home.parent / "spark" / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("")
    assert options(home, {}, may_write=True) == ""


@pytest.mark.parametrize("version", ["11.0.2", ""])
def test_an_old_java_and_one_that_tells_no_version_are_left_alone(home: Path, version: str) -> None:
    has_version(home, version)
    assert options(home, {}, may_write=True) == "" and not cache(home).exists()


def test_a_cache_that_cannot_be_made_is_no_reason_to_fail(home: Path) -> None:
    (home.parent / "the cache").write_text("a file")
    assert options(home, {}, may_write=True) == ""


@pytest.mark.long
@pytest.mark.spark
def test_the_second_java_reads_what_the_first_one_wrote(tmp_path: Path) -> None:
    first = begun(tmp_path)
    assert not first["kept"], first
    folder = tmp_path / "stream-orchestrator" / "java"
    until("an archive", lambda: any(kept_classes._is_whole(draft) for draft in folder.glob(f"*{DRAFT}")))
    second = begun(tmp_path)
    assert second["kept"] and second["printed"] == "", second
    (kept,) = tmp_path.glob("stream-orchestrator/java/*.classes")
    assert b"org/apache/spark/sql/classic/SparkSession" in kept.read_bytes(), (
        "the first job needed no SQL, a later one may"
    )


def begun(cache: Path) -> dict[str, object]:
    """A process that starts Spark: whether its Java has an archive of ours before it, and what it printed besides."""
    command = [sys.executable, "-m", "tests.spark.kept"]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    printed, _, answer = ended.stdout.strip().rpartition("\n")
    return {**json.loads(answer), "printed": printed + ended.stderr}
