"""One Spark session a process, quiet, with everything set that a pip-installed Spark needs.

One rule: nothing is printed on the user's terminal by the JVM; it goes to a log file, which an error names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.spark.java import find_java_home
from state.errors import StateError
from workers.log.logs import log_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n
"""


OURS = re.compile(r"(orchestrator|pipeline|state|workers)(\.\w+)+")
# On one machine jobs are short: the second compiler and parallel collectors cost more than they give (session 12 s -> 6 s
# on two busy cores).
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


KEEP = "keep"


class SparkFailed(OrchestratorError):
    """Spark did not start, or a job of it failed."""


def spark_session(name: str, master: str, *, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark. Executors import our packages as this process does; an app is sent to them (`source`).

    Raises SparkFailed."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise WrongUse(f"Spark is not installed ({error.name}); pip install 'stream-orchestrator[spark]'") from None
    home = find_java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    folder = Path(tempfile.mkdtemp(prefix="stream-orchestrator-spark-"))
    log = folder / "spark.log"
    (folder / "log4j2.properties").write_text(LOG4J.format(log=log))
    ours = str(Path(__file__).resolve().parent.parent.parent)
    python_path = os.pathsep.join(dict.fromkeys([ours, *filter(None, [os.environ.get("PYTHONPATH")])]))
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_CONF_DIR=str(folder),
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=python_path,
        PYTHONWARNINGS="ignore::FutureWarning",
    )
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": python_path,
        "spark.speculation": "false",
        **(SHORT_LIVED if master.startswith("local") else {}),
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _quiet(log):
        try:
            session = builder.getOrCreate()
            _folder(session)
            return session
        except Exception as error:
            raise SparkFailed(
                f"Spark did not start with --master {master} ({_reason(log, error)}); its logs are in {folder}"
            ) from error


def _reason(log: Path, error: Exception) -> str:
    """Why Spark did not start: the last line that Java wrote before it ended, or what was raised here."""
    lines = _start_log(log).read_text(errors="replace").splitlines()
    reasons = [line.rpartition("Exception: ")[2] for line in lines if "Exception: " in line]
    return reasons[-1].strip() if reasons else type(error).__name__


def _start_log(log: Path) -> Path:
    return log.with_suffix(".start.log")


def absolute_log(url: str) -> str:
    """A log URL that means the same in the folder of an executor."""
    path = log_path(url)
    return url if path is None else f"sqlite:{path.absolute()}"


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """The JVM inherits standard error: point it at the log while it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(_start_log(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def failure(session: Any, error: BaseException) -> Exception:
    """What to raise for a failed job: our own errors as an executor raised them, or SparkFailed in one line."""
    text = _own_words(str(error))
    name, _, message = text.partition(": ")
    if OURS.fullmatch(name):
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind)
        if issubclass(found, OrchestratorError | StateError) and "__init__" not in vars(found):
            return found(message)  # type: ignore[no-any-return]
    return SparkFailed(f"a Spark job failed: {text}; its log is {log_of(session)}")


def log_of(session: Any) -> Path:
    """Spark's log, for an error that names it: from then on it is kept."""
    folder = _folder(session)
    (folder / KEEP).touch()
    return folder / "spark.log"


def is_gone(session: Any) -> bool:
    """Whether Spark ended by itself: its Java process is not there any more, or its context was stopped from outside."""
    from py4j.protocol import Py4JError

    try:
        return bool(session.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


def _own_words(text: str) -> str:
    """The line of a Spark failure that says what went wrong: the last line of the Python worker's own traceback, else
    the innermost cause that Java names."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    java = ("at ", "Caused by", "org.", "java.", "scala.")
    for line in reversed(lines):
        name, colon, _ = line.partition(": ")
        if colon and not line.startswith(java) and " " not in name and name.rpartition(".")[2][:1].isupper():
            return line
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1]
    return lines[0] if lines else "without a word"


def stop(session: Any) -> None:
    """Stop Spark and remove its folder, unless an error has named the log in it."""
    folder = _folder(session)
    if not is_gone(session):
        session.stop()
    if not (folder / KEEP).exists():
        shutil.rmtree(folder, ignore_errors=True)


def forget_failure(session: Any) -> None:
    """The failure was wanted (a cancelled job): its log is not needed."""
    (_folder(session) / KEEP).unlink(missing_ok=True)


@cache
def _folder(session: Any) -> Path:
    """Known from the start on: without its Java process Spark cannot be asked."""
    return Path(session.sparkContext.getConf().get("spark.local.dir"))
