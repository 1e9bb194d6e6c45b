"""Stream Orchestrator: the public names. One rule: importing this loads nothing but the standard library.

Definitions live in other rooms; this is a lazy table of them (text), so that the package at the bottom imports none
of the rooms above it. Users import from one distinctive place: `from orchestrator import App, Record, Table, Sink`.
Its rooms are imported by workers and pipeline/spark. Start at `model.py`, then `group/`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it: what `typing` imports takes longer than all else here

if TYPE_CHECKING:
    from typing import Any

    from pipeline.app import App as App
    from pipeline.columns.public import Columns as Columns
    from pipeline.columns.public import ColumnTable as ColumnTable
    from pipeline.errors import PipelineError as PipelineError
    from pipeline.errors import ProcessorFailed as ProcessorFailed
    from pipeline.errors import WindowClosed as WindowClosed
    from pipeline.records import Record as Record
    from pipeline.sinks import Sink as Sink
    from pipeline.tables.table import Table as Table
    from pipeline.time.tables import ClosedWindow as ClosedWindow
    from pipeline.time.tables import Due as Due
    from pipeline.time.tables import HoppingTable as HoppingTable
    from pipeline.time.tables import SessionTable as SessionTable
    from pipeline.time.tables import Timers as Timers
    from pipeline.time.tables import TumblingTable as TumblingTable
    from pipeline.time.tables import WindowTable as WindowTable
    from pipeline.time.topic_view import TopicTable as TopicTable
    from pipeline.time.windows import Hopping as Hopping
    from pipeline.time.windows import Session as Session
    from pipeline.time.windows import Sliding as Sliding
    from pipeline.time.windows import Tumbling as Tumbling
    from pipeline.time.windows import Window as Window
    from pipeline.values.codecs import Codec as Codec

PUBLIC = {
    "App": "pipeline.app",
    "ClosedWindow": "pipeline.time.tables",
    "Codec": "pipeline.values.codecs",
    "ColumnTable": "pipeline.columns.public",
    "Columns": "pipeline.columns.public",
    "Due": "pipeline.time.tables",
    "Hopping": "pipeline.time.windows",
    "HoppingTable": "pipeline.time.tables",
    "PipelineError": "pipeline.errors",
    "ProcessorFailed": "pipeline.errors",
    "Record": "pipeline.records",
    "Session": "pipeline.time.windows",
    "SessionTable": "pipeline.time.tables",
    "Sink": "pipeline.sinks",
    "Sliding": "pipeline.time.windows",
    "Table": "pipeline.tables.table",
    "Timers": "pipeline.time.tables",
    "TopicTable": "pipeline.time.topic_view",
    "Tumbling": "pipeline.time.windows",
    "TumblingTable": "pipeline.time.tables",
    "Window": "pipeline.time.windows",
    "WindowClosed": "pipeline.errors",
    "WindowTable": "pipeline.time.tables",
}
ROOMS = ("pipeline", "state", "workers")

__all__ = [
    "App",
    "ClosedWindow",
    "Codec",
    "ColumnTable",
    "Columns",
    "Due",
    "Hopping",
    "HoppingTable",
    "PipelineError",
    "ProcessorFailed",
    "Record",
    "Session",
    "SessionTable",
    "Sink",
    "Sliding",
    "Table",
    "Timers",
    "TopicTable",
    "Tumbling",
    "TumblingTable",
    "Window",
    "WindowClosed",
    "WindowTable",
]


def __getattr__(name: str) -> Any:
    module = PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    from importlib import import_module

    refuse_hiding()
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def refuse_hiding() -> None:
    """Raise ImportError where a module of the user's would be imported in the place of one of our rooms."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parent.parent
    for room in ROOMS:
        spec = find_spec(room)
        if spec is None or spec.origin is None:
            raise ImportError(f"the package {room!r} of stream-orchestrator is missing; install it again")
        if Path(spec.origin).resolve() != home / room / "__init__.py":
            raise ImportError(f"{spec.origin} hides the package {room!r} of stream-orchestrator; rename it")
