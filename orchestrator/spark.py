"""For programs and notebooks with a Spark session: `orchestrator.spark.register(spark)`, `backfill(app, {topic: df}, ...)`.

One rule: importing this loads nothing by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator import refuse_hiding

if TYPE_CHECKING:
    from pipeline.spark.notebook import backfill as backfill
    from pipeline.spark.notebook import register as register

__all__ = ["backfill", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'orchestrator.spark' has no attribute {name!r}")
    refuse_hiding()
    return getattr(import_module("pipeline.spark.notebook"), name)
