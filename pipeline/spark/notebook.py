"""What a program with a Spark session of its own uses: data sources for SQL, and a backfill from DataFrames.

One rule: the session is the caller's: nothing of it is changed but what is registered, and it is not stopped.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.files.shape import shape_of
from pipeline.spark.backfill import backfill as run_backfill
from pipeline.spark.frame_files import write
from pipeline.spark.history import BadHistory
from pipeline.spark.kept_work import FRAMES
from pipeline.spark.session import failure, is_gone
from state.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADVICE = "; correct the file"
_OPTION = re.compile(r"--(key|value|timestamp|headers|partition)\b")


def register(session: SparkSession) -> None:
    """Makes `orchestrator.state` and `orchestrator.log` formats of this session, for `spark.read` and for SQL."""
    from pipeline.spark.log_source import LogSource
    from pipeline.spark.state_source import StateSource

    for source in (StateSource, LogSource):
        session.dataSource.register(source)


def backfill(
    app: str | App,
    history: Mapping[str, DataFrame],
    *,
    log: str,
    snapshots: str | Path,
    key: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    partition: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Computes the tables and outputs of an app (MODULE:APP, or what a module has) from DataFrames, by topic, and what is in the log; returns the facts of
    `orchestrator backfill --json`. The columns are those of history files: key, value, timestamp_ms, headers, offset, or what
    `key`, `value`, `timestamp`, `headers` and `partition` name. Raises WrongUse, RefusedBySafety, SparkFailed."""
    frames = list(history.values())
    if not frames:
        raise WrongUse("a backfill from DataFrames needs at least one, by the name of its topic")
    for topic, frame in history.items():
        _refuse_other(str(topic), frame)
        _refuse_stopped(str(topic), frame)
    session = frames[0].sparkSession
    name = app if isinstance(app, str) else name_of(app)
    root = Path(snapshots).absolute()
    with scratch(root, FRAMES) as folder:  # where executors write, too
        named = {topic: [str(kept(frame, folder / str(n)))] for n, (topic, frame) in enumerate(history.items())}
        shape = shape_of(key, value, timestamp, headers, partition)
        running = run_backfill(name, log, root, history=named, shape=shape, session=session, **{"say": print, **more})
        try:
            return _run(running)
        except BadHistory as error:
            raise BadHistory(_of_frames(str(error), folder, list(history))) from None


def name_of(app: App) -> str:
    """MODULE:APP, which executors import. Raises WrongUse for one that no module has."""
    for module, found in list(sys.modules.items()):
        if module != "__main__" and isinstance(found, ModuleType):
            for name, value in list(vars(found).items()):
                if value is app:
                    return f"{module}:{name}"
    raise WrongUse(
        f"the app '{app.id}' is of no module that executors could import; save it as a module, and name it as MODULE:APP"
    )


def _refuse_other(topic: str, frame: Any) -> None:
    """Raises WrongUse for what is no DataFrame of Spark, and for one without an end."""
    if not (hasattr(frame, "sparkSession") and hasattr(frame, "isStreaming")):
        raise WrongUse(
            f"the history of '{topic}' is a {type(frame).__module__}.{type(frame).__qualname__}, and no DataFrame of Spark; make one of it with "
            "spark.createDataFrame(...), or of files with spark.read"
        )
    if frame.isStreaming:
        raise WrongUse(
            f"the DataFrame of '{topic}' is a stream, which has no end; read the same source with spark.read"
        )


def _refuse_stopped(topic: str, frame: Any) -> None:
    """Raises WrongUse for a DataFrame of a session that has ended: of what can be read nothing is left."""
    if is_gone(frame.sparkSession):
        raise WrongUse(
            f"the DataFrame of '{topic}' is of a session of Spark that was stopped; make a session, and the DataFrame anew in it"
        )


def _of_frames(text: str, folder: Path, topics: Sequence[str]) -> str:
    """What is wrong with a file that is gone by then, in words about the DataFrame that it was written of, and of a caller in Python."""
    for number, topic in enumerate(topics):
        text = re.sub(rf"{re.escape(str(folder / str(number)))}/\S+?\.parquet", f"the DataFrame of '{topic}'", text)
    return _OPTION.sub(r"\1=", text.partition(ADVICE)[0])


def _run(running: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Runs it to its end. A cell of Jupyter is called on an event loop, which waits meanwhile; so it has a thread of its own there,
    and an interrupt of the cell ends it as it would without."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(running)
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def followed() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await running

    with ThreadPoolExecutor(1, "backfill") as pool:
        ended = pool.submit(asyncio.run, followed())
        try:
            return ended.result()
        except KeyboardInterrupt:
            loop, task = begun.result()
            if not ended.done():
                loop.call_soon_threadsafe(task.cancel)
            raise


def kept(frame: DataFrame, folder: Path) -> Path:
    """The rows in Parquet files, written by the executors; returns the pattern that names them. Raises SparkFailed, WrongUse."""
    try:
        write(frame, folder)
    except WrongUse:
        raise
    except Exception as error:
        raise failure(frame.sparkSession, error) from error
    return folder / "*.parquet"
