"""What a Spark session begins with, who wins where two say it, and what a failed job says. No Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.spark.own_words import DISK, own_words
from pipeline.spark.properties import DAEMON, environment, parsed, properties
from pipeline.spark.running import no_slot
from pipeline.spark.session import _reason, why_gone
from tests.cli.console import Console
from workers.commands.cluster import Cluster

DEFAULTS = """
# comment
spark.driver.memory   3g
spark.ui.enabled=true
spark.executor.cores: 2
spark.sql.session.timeZone America/Lima
spark.driver.extraJavaOptions -Dkey=a b
"""


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    return tmp_path


def test_the_users_defaults_win_over_ours_and_conf_over_them(defaults: Path) -> None:
    chosen = properties(Cluster("local[2]", {"spark.executor.cores": "3"}), defaults, "/here")
    assert chosen["spark.driver.memory"] == "3g" and chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.executor.cores"] == "3"
    assert chosen["spark.sql.session.timeZone"] == "UTC", "answers depend on it"
    assert chosen["spark.driver.extraJavaOptions"].endswith("log4j2.properties -Dkey=a b -Duser.timezone=UTC")
    assert chosen["spark.executor.extraJavaOptions"] == "-Duser.timezone=UTC", "times of ORC without a zone"


def test_only_a_master_here_is_bound_to_the_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    here, there = Cluster("local[2]"), Cluster("spark://head:7077")
    assert properties(here, tmp_path, "")["spark.driver.bindAddress"] == "127.0.0.1"
    assert environment(here, "")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert not {"spark.driver.bindAddress", "spark.local.dir"} & set(properties(there, tmp_path, ""))
    assert "SPARK_LOCAL_IP" not in environment(there, "")
    assert environment(there, "")["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "./packed/bin/python")
    assert "PYSPARK_PYTHON" not in environment(there, ""), "executors may have another one"
    assert environment(here, "")["PYSPARK_PYTHON"] == sys.executable


def test_properties_are_read_as_java_reads_them() -> None:
    assert parsed("a=b=c\nd e = f\n g : h\n!x\n\ni\n") == {"a": "b=c", "d": "e = f", "g": "h", "i": ""}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--conf", "memory=1g"), "'memory=1g' is no property of Spark; write spark.NAME=VALUE"),
        (("--conf", "spark.app.name=x"), "spark.app.name cannot be set: it is the command"),
        (("--conf", "spark.jars.packages=a:b:1", "--packages", "c:d:1"), "name the same; keep one of them"),
    ],
)
def test_what_cannot_be_set_is_refused(words: tuple[str, ...], problem: str, console: Console) -> None:
    console.pay(("ann", 1))
    done = console("backfill", "bank:app", *words)
    assert done.code == 2 and problem in done.err and done.err.count("\n") == 1, done


@pytest.mark.parametrize("words", [("--conf", "spark.a=1"), ("--packages", "a:b:1"), ("--ui",)])
def test_a_fleet_of_processes_has_no_use_for_them(words: tuple[str, ...], console: Console) -> None:
    done = console("run", "bank:app", *words)
    assert done.code == 2 and f"{words[0]} has no effect here: it is for instances on Spark" in done.err, done


@pytest.mark.parametrize(
    ("master", "is_own"), [("local", True), ("local[2]", True), ("local-cluster[1,2,1024]", False)]
)
def test_executors_of_their_own_have_the_workers_of_others(master: str, is_own: bool, tmp_path: Path) -> None:
    """A parent of ours has imported our packages from here before the ones that were sent are there."""
    assert (DAEMON in properties(Cluster(master), tmp_path, "")) is is_own


PYTHON = """An error occurred while calling o282.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure:
Lost task 0.3 in stage 1.0 (TID 7) (localhost executor driver): org.apache.spark.api.python.PythonException: Traceback:
  File "x.py", line 3, in f
ValueError: no such thing
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
"""
CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling o282.collectToPython.\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PYTHON, "ValueError: no such thing"),
        (PYTHON.replace("no such thing\n", "no such thing\n SQLSTATE: 38000\n\n"), "ValueError: no such thing"),
        (f"{CALL}: java.io.IOException: x\nCaused by: java.io.IOException: No space left on device", DISK),
        (PYTHON.replace("ValueError: no such thing", "OSError: [Errno 28] No space left on device"), DISK),
        (PYTHON.replace("ValueError: no such thing", "state.errors.LogFull: No space left on device"), "state.errors.LogFull: No space left on device"),
        (f"{CALL}: org.apache.spark.SparkException: Job 3 cancelled\n\tat org.a", "Job 3 cancelled"),
        (f"{CALL}: java.io.EOFException\n", "a Python worker on an executor ended by itself: it was killed, or had not enough memory"),
        (f"{CALL}Caused by: java.lang.OutOfMemoryError: Java heap space\n", "Java has not enough memory (Java heap space); give more, as in --conf spark.driver.memory=4g"),
        (PYTHON.replace("ValueError: no such thing", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (f"{CALL}: java.lang.X: first\nCaused by: java.lang.ClassNotFoundException: delta.DefaultSource\n", "first"),
        (f"{CALL}: java.io.FileNotFoundException: /jobs/env.tar.gz\n\tat org.a", "there is no file /jobs/env.tar.gz"),
        (f"{CALL}: java.io.IOException: Cannot run program \"/no/python\": error=2, No such file or directory\n\tat java.b\nCaused by: java.io.IOException: error=2, No such file or directory", "an executor cannot run /no/python (No such file or directory); name what each machine has with --conf spark.pyspark.python=PATH"),
        (PYTHON.replace("ValueError: no such thing", "ModuleNotFoundError: No module named 'numpy'"), "ModuleNotFoundError: No module named 'numpy'; where executors have not what is installed here, `orchestrator spark pack` makes an archive of it for them"),
        (f"{CALL}: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat org.a\nCaused by: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "Spark has not what reads this file system (org.apache.hadoop.fs.s3a.S3AFileSystem); name its jar with --packages GROUP:NAME:VERSION, one for this version of Spark"),
        (f'{CALL}: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"\n\tat org.a', "Spark has not what reads this file system (gs); name its jar with --packages GROUP:NAME:VERSION, one for this version of Spark"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. SQLSTATE: 42K02", "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. SQLSTATE: 42K02; name its jar with --packages GROUP:NAME:VERSION, one for this version of Spark"),
        ("", "without a word"),
    ],
)  # fmt: skip
def test_a_failed_job_says_what_went_wrong(text: str, line: str) -> None:
    assert own_words(text) == line


def test_no_slot_is_one_line() -> None:
    assert "\n" not in no_slot("spark://head:7077") and "spark://head:7077 has no free slot" in no_slot(
        "spark://head:7077"
    )


def test_why_spark_did_not_start(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    (tmp_path / "spark.start.log").write_text("WARNING: Using incubator modules\n")
    error = Exception("An error occurred while calling None.JavaSparkContext.\n: java.lang.NullPointerException: x")
    assert _reason(log, error, "yarn") == "x"
    log.write_text(
        "04:00 ERROR Backend: Application has been killed. Reason: All masters are unresponsive! Giving up.\n"
    )
    assert _reason(log, error, "yarn") == "All masters are unresponsive! Giving up."
    ended = why_gone(log, "spark://head:7077")  # it may be given up when a job has begun
    assert ended.startswith(
        "Spark has no cluster at --master spark://head:7077 (All masters are unresponsive! Giving up.): "
    )
    assert "not enough memory" in why_gone(tmp_path / "none.log", "local[2]")
    (tmp_path / "spark.start.log").write_text("Exception in thread: SparkException: HADOOP_CONF_DIR must be set\n")
    assert _reason(log, error, "yarn") == "HADOOP_CONF_DIR must be set"
