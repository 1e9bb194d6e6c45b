"""Stream Orchestrator: the public names. One rule: importing this loads nothing but the standard library.

Definitions live in other rooms; this is a lazy table of them (text), so that the package at the bottom imports none
of the rooms above it. Users import from one distinctive place: `from orchestrator import App, Record, Table, Sink`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.app import App as App
    from pipeline.codecs import Codec as Codec
    from pipeline.records import Record as Record
    from pipeline.sinks import Sink as Sink
    from pipeline.tables import Table as Table

PUBLIC = {
    "App": "pipeline.app",
    "Codec": "pipeline.codecs",
    "Record": "pipeline.records",
    "Sink": "pipeline.sinks",
    "Table": "pipeline.tables",
}

__all__ = ["App", "Codec", "Record", "Sink", "Table"]


def __getattr__(name: str) -> Any:
    module = PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
