"""One Spark session a process, quiet, with everything set that a pip-installed Spark needs.

One rule: nothing is printed on the user's terminal by the JVM or its bridge; it goes to a log file, which an error names.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.spark.java import find_java_home
from pipeline.spark.kept_classes import is_writing, options
from pipeline.spark.own_words import own_words
from pipeline.spark.pods import is_kubernetes, refusal, refuse_without_image
from pipeline.spark.properties import JAVA, LOG4J, environment, properties
from pipeline.spark.warming import Warming
from state.disk_full import writing_to
from state.errors import StateError
from state.scratch import Scratch, sweep
from workers.commands.cluster import Cluster
from workers.log.logs import log_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

OURS = re.compile(r"(orchestrator|pipeline|state|workers)(\.\w+)+")
GIVEN_UP = "Application has been killed. Reason: "
LOST = "Spark has no cluster at --master {master} ({reason}): see that it runs and can be reached from here"
JAVA_ENDED = "Spark's Java process has ended: it was killed, or had not enough memory"
PREFIX, LOG = "stream-orchestrator-spark-", "spark.log"
_SCRATCH: dict[Any, Scratch] = {}  # by session
_NAMED: set[Any] = set()  # sessions whose log an error has named
_ENDING = threading.Event()  # this command was asked to end
_WARMING: dict[Any, Warming] = {}  # by session


class SparkFailed(OrchestratorError):
    """Spark did not start, or a job of it failed."""


def spark_session(
    name: str, cluster: Cluster, *, settings: Mapping[str, str] | None = None, is_for_tasks: bool = False
) -> SparkSession:
    """Start Spark. Executors import our packages as this process does; an app is sent to them (`source`). `is_for_tasks`: jobs
    with our own functions follow at once.

    Raises SparkFailed, WrongUse."""
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise WrongUse(f"Spark is not installed ({error.name}); pip install 'stream-orchestrator[spark]'") from None
    refuse_without_image(cluster)
    home = find_java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    ours = str(Path(__file__).resolve().parent.parent.parent)
    python_path = os.pathsep.join(dict.fromkeys([ours, *filter(None, [os.environ.get("PYTHONPATH")])]))
    temporary = Path(tempfile.gettempdir())
    sweep(temporary, f"{PREFIX}*")
    scratch = Scratch(temporary / f"{PREFIX}{token_hex(6)}")
    atexit.register(scratch.remove)  # of a command that is asked to end before it has a session
    folder, log = scratch.path, scratch.path / LOG
    with writing_to(folder, "Spark's settings and log are there; free some, or name another folder with TMPDIR"):
        (folder / "log4j2.properties").write_text(LOG4J.format(log=log))
    chosen = {**properties(cluster, folder, python_path), **(settings or {})}
    if cluster.is_here:
        chosen[JAVA] = f"{options(home, chosen, may_write=is_for_tasks)} {chosen[JAVA]}".strip()
    os.environ.update(environment(cluster, python_path))
    conf = SparkConf().setAppName(name).setMaster(cluster.master).setAll(list(chosen.items()))
    with _quiet(log):
        try:
            context = SparkContext.getOrCreate(conf)
        except Exception as error:
            _keep(scratch)
            raise SparkFailed(
                f"Spark did not start with --master {cluster.master} ({_reason(log, error, cluster.master)}); its logs are in {folder}"
            ) from error
    session = cast("SparkSession", OwnSession(context, conf))
    _sums_end_quietly(context)
    _SCRATCH[session] = scratch
    if is_for_tasks and cluster.is_in_driver:
        _WARMING[session] = Warming(context)
    logging.getLogger().addFilter(_is_not_py4j)  # added once, however often
    _no_pages()
    return session


class OwnSession:
    """A SparkSession, but its SQL is got ready when it is used for the first time: Java takes a second for that, and jobs of
    RDDs do not need it."""

    def __init__(self, context: SparkContext, conf: SparkConf) -> None:
        self.sparkContext = context  # as Spark calls it
        self._conf = conf
        self._lock = threading.Lock()
        self._made: SparkSession | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql(), name)

    def stop(self) -> None:
        (self._made or self.sparkContext).stop()

    def _sql(self) -> SparkSession:
        """Raises SparkFailed."""
        from pyspark.sql import SparkSession

        with self._lock:
            if self._made is None:
                try:
                    self._made = SparkSession.builder.config(conf=self._conf).getOrCreate()
                except Exception as error:  # whatever Spark raises, for settings of the user's above all
                    raise failure(self, error) from error
            return self._made


def _no_pages() -> None:
    """PySpark logs an error in a query as a page of Java, on standard error, and raises it as well."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """py4j writes a stack trace to the root logger of each call that Java did not answer, and raises its error as well:
    whoever called says in a line what that means."""
    return Path(record.pathname).parent.name != "py4j"


def _reason(log: Path, error: Exception, master: str) -> str:
    """Why Spark did not start: what Kubernetes refused, or the last line that Java wrote before it ended, or why a cluster was
    given up, or what was raised here."""
    lines = _start_log(log).read_text(errors="replace").splitlines()
    kept = log.read_text(errors="replace").splitlines() if log.exists() else []
    refused = refusal([*str(error).splitlines(), *lines, *kept], master) if is_kubernetes(master) else ""
    if refused:
        return refused
    reasons = [line.rpartition("Exception: ")[2] for line in lines if "Exception: " in line]
    if not reasons:
        return _given_up(kept) or own_words(str(error))
    return reasons[-1].strip()


def _given_up(lines: Sequence[str]) -> str:
    """Why a cluster was given up, by Spark's log; "" where it was not."""
    return next((line.partition(GIVEN_UP)[2].strip() for line in reversed(lines) if GIVEN_UP in line), "")


def why_gone(log: Path, master: str) -> str:
    """What to say of a session that has ended by itself: its cluster was given up, which stops it a minute after it seemed to have
    begun, or Java has ended."""
    reason = _given_up(log.read_text(errors="replace").splitlines()) if log.exists() else ""
    return (
        LOST.format(master=master, reason=reason) if reason else JAVA_ENDED
    ) + f"; Spark's log is {log}; run the command again"


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
    text = own_words(str(error))
    name, _, message = text.partition(": ")
    if OURS.fullmatch(name):
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind)
        if issubclass(found, OrchestratorError | StateError):
            if "__init__" not in vars(found):
                return found(message)  # type: ignore[no-any-return]
            text = message
    log = log_of(session)
    return SparkFailed(f"a Spark job failed: {text}" + (f"; its log is {log}" if log.exists() else ""))


def folder_of(session: Any) -> Path:
    """For what a session needs while it lasts. One that others have made gets a folder at its first use, until the end of
    the process."""
    found = _SCRATCH.get(session)
    if found is None:
        found = _SCRATCH[session] = Scratch(Path(tempfile.gettempdir()) / f"{PREFIX}{token_hex(6)}")
        atexit.register(found.remove)
    return found.path


def log_of(session: Any) -> Path:
    """Spark's log, for an error that names it: from then on it is kept. There is none of a session that others have made."""
    path = folder_of(session) / LOG
    _NAMED.add(session)
    return path


def no_log_is_needed() -> None:
    """This command was asked to end, and what fails from now on is not shown: Java may have been sent the same signal."""
    _ENDING.set()


def is_gone(session: Any) -> bool:
    """Whether Spark ended by itself: its Java process is not there any more, or its context was stopped from outside."""
    from py4j.protocol import Py4JError

    try:
        context = session.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())  # None: its owner has stopped it
    except (Py4JError, OSError):
        return True


def stop(session: Any) -> None:
    """Stop Spark and remove its folder, unless an error has named the log in it."""
    if not is_gone(session):
        _without_sums(session.sparkContext)
        _stop(session)
    warming = _WARMING.pop(session, None)
    if warming is not None:
        warming.over()
    scratch = _SCRATCH.pop(session, None)
    if scratch is not None and session in _NAMED and not _ENDING.is_set():
        _keep(scratch)
    elif scratch is not None:
        scratch.remove()


def load_sql(session: Any) -> None:
    """Behind what a command wanted: Java keeps the classes that it has loaded for later jobs, and these may need SQL where this
    one did not."""
    if is_writing():
        with suppress(Exception):  # it is a faster start of others, and nothing else
            session.range(0, 1, 1, 1).repartition(1).mapInArrow(iter, "id bigint").collect()


def _keep(scratch: Scratch) -> None:
    atexit.unregister(scratch.remove)
    scratch.keep()


def _stop(session: Any) -> None:
    """Java may end meanwhile: the signal that ends us may have been sent to it, too."""
    from py4j.protocol import Py4JError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it could not be stopped in order
        try:
            session.stop()
        except (Py4JError, OSError):
            if not is_gone(session):
                raise


def _without_sums(context: Any) -> None:
    """Sums that tasks send to the driver (we use none) are received by a thread which looks up once a second: Spark would wait for
    that, where it can end beside whatever comes now."""
    listening = getattr(context, "_accumulatorServer", None)
    if listening is not None:
        context._accumulatorServer = None
        threading.Thread(target=listening.shutdown, name="end of sums", daemon=True).start()


def _sums_end_quietly(context: Any) -> None:
    """Where Java is gone, its connection for sums ends, and Python's server would print where that was met."""
    listening = getattr(context, "_accumulatorServer", None)
    if listening is not None:
        listening.handle_error = lambda *given: logging.getLogger("orchestrator.spark").debug(
            "sums: %r", sys.exc_info()[1]
        )


def forget_failure(session: Any) -> None:
    """The failure was wanted (a cancelled job): its log is not needed."""
    _NAMED.discard(session)
