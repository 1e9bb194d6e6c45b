"""What an app declares, as the topology and the description read it, which are made from all of it.

One rule: it reads and declares nothing. App is the one implementation; who asks for this knows no more of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pipeline.definitions.definition import Stored, Topic
from pipeline.definitions.error_policy import ErrorPolicy
from pipeline.definitions.processor import Processor
from pipeline.definitions.topic_tables import GlobalTableDef


class Declarations(Protocol):
    """The definitions and processors of an app by name; `partitions` is the count of topics that name none."""

    @property
    def id(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def guarantee(self) -> str: ...
    @property
    def topics(self) -> Mapping[str, Topic[Any, Any]]: ...
    @property
    def tables(self) -> Mapping[str, Stored[Any]]: ...
    @property
    def globals(self) -> Mapping[str, GlobalTableDef[Any, Any]]: ...
    @property
    def processors(self) -> Mapping[str, Processor]: ...

    def error_policy(self, processor: Processor) -> ErrorPolicy:
        """What becomes of a record whose call in `processor` failed."""
