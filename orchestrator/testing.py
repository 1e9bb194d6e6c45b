"""For tests of an app: `from orchestrator.testing import Driver`. One rule: importing this loads nothing by itself."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator import refuse_hiding

if TYPE_CHECKING:
    from pipeline.driver import Driver as Driver

__all__ = ["Driver"]


def __getattr__(name: str) -> Any:
    if name != "Driver":
        raise AttributeError(f"module 'orchestrator.testing' has no attribute {name!r}")
    refuse_hiding()
    return import_module("pipeline.driver").Driver
