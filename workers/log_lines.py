"""What the processes of `run` write on standard error: lines for people, or an object a line for programs.

One rule: each line says which instance and worker it is of, and which task where it is about one. Set up by the entry of a
process, once; an app that is embedded is never touched.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from orchestrator import error_report
from orchestrator.clocks import wall_ms
from orchestrator.instance_settings import FOREIGN_PARTS
from orchestrator.model import TaskId

TASK: ContextVar[str] = ContextVar("task", default="")  # that the code which runs now works for
JSON = "json"


def set_up(level: str, form: str, instance: str = "", worker: int | None = None) -> None:
    """Logging of this process. `level`: for everything, and for parts behind commas. `form`: "text" or "json"."""
    everything, *parts = level.split(",")
    logging.basicConfig(level=everything, stream=sys.stderr)
    for part, _, wanted in (one.partition("=") for one in parts):
        logging.getLogger(part if part in FOREIGN_PARTS else f"orchestrator.{part}").setLevel(wanted)
    shape: logging.Formatter = AsJson(instance, worker) if form == JSON else AsText(instance, worker)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(shape)
    if form == JSON:
        error_report.shape = lambda text, code, frames: json.dumps(
            {**_line(wall_ms() / 1000, "ERROR", "orchestrator", text, instance, worker), "exit_code": code}
            | ({"frames": frames} if frames else {})
        )


def announce(form: str, text: str, level: str = "WARNING") -> None:
    """A line of a process that says what it does with others, which goes on where nobody reads it any more (the other end of a
    pipe is gone, a disk is full)."""
    row = json.dumps(_line(wall_ms() / 1000, level, "orchestrator.fleet", text, "", None)) if form == JSON else text
    with suppress(OSError):
        print(row, file=sys.stderr, flush=True)


def _task(record: logging.LogRecord) -> str:
    """The task that a line is about: the one that it names, else the one that its code works for."""
    args = record.args if isinstance(record.args, tuple) else ()
    return next((str(arg) for arg in args if isinstance(arg, TaskId)), "") or TASK.get()


def _line(
    at_s: float, level: str, logger: str, text: str, instance: str, worker: int | None, task: str = ""
) -> dict[str, Any]:
    return {
        "at_ms": int(at_s * 1000),
        "level": level,
        "logger": logger,
        "instance": instance or None,
        "worker": worker,
        "task": task or None,
        "message": text,
    }


class AsJson(logging.Formatter):
    """An object a line: at_ms, level, logger, instance, worker, task, message, and frames of an error."""

    def __init__(self, instance: str, worker: int | None) -> None:
        super().__init__()
        self._who = instance, worker

    def format(self, record: logging.LogRecord) -> str:
        row = _line(record.created, record.levelname, record.name, record.getMessage(), *self._who, task=_task(record))
        if record.exc_info:
            row["frames"] = self.formatException(record.exc_info)
        return json.dumps(row)


class AsText(logging.Formatter):
    """Time, instance and worker, task, level, logger and message."""

    def __init__(self, instance: str, worker: int | None) -> None:
        super().__init__("%(asctime)s %(who)s%(levelname)s %(name)s: %(message)s")
        self._who = "" if not instance else f"{instance} " if worker is None else f"{instance}.{worker} "

    def format(self, record: logging.LogRecord) -> str:
        task = _task(record)
        record.who = self._who + (f"{task} " if task else "")
        return super().format(record)
