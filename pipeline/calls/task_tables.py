"""The tables of one task: which keys belong to it. One rule: a key is written where its record comes to.

Used by `pipeline.process`; a table for several calls at once is in `pipeline.calls.overlap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.definitions.definition import Stored, TableDef
from pipeline.definitions.describe import routing_codec
from pipeline.definitions.topic_tables import GlobalTableDef
from pipeline.errors import PipelineError, WrongTask
from pipeline.tables.expiry import BEFORE_ALL_MS
from pipeline.tables.table import StoreView
from pipeline.tables.view import TableView
from pipeline.time.position import Position
from pipeline.time.session_view import SessionsView
from pipeline.time.window_tables import HoppingView, TumblingView
from pipeline.values.codecs import Codec
from pipeline.values.partitioner import partition_of

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.definitions.topology import Subtopology

Routed = Callable[[Any, bytes], bytes]


def tables_of(
    app: App, subtopology: Subtopology, partition: int, stores: Mapping[str, StoreView], position: Position
) -> dict[str, TableView[Any, Any]]:
    """The tables of a task by name; those that keep time go by its `position`, which is at the time that one with `expire=` has kept
    at least. Raises PipelineError where a store is missing."""
    task = f"{subtopology.number}_{partition}"
    result: dict[str, TableView[Any, Any]] = {}
    announced = {processor.due.name for processor in app.processors.values() if processor.due is not None}
    for name in subtopology.tables:
        definition, store = app.tables[name], stores.get(name)
        if store is None:
            raise PipelineError(f"task {task} has no store for table {name!r}; give it in stores=")
        check: Callable[[Any, bytes], None] | None = None
        if not definition.local and subtopology.partitions > 1:
            check = _owner_check(definition, routed(app, subtopology, definition), subtopology, partition)
        result[name] = definition.view(store, check, position, announces=name in announced)
        result[name].closed = True  # between calls
        is_fixed = isinstance(
            result[name], TumblingView | HoppingView | SessionsView
        )  # by the keys of records, in windows
        if (type(definition) is TableDef or is_fixed) and check is not None:
            result[name].is_by_record_key = definition.route is None and not routing_codec(
                app, subtopology.sources, name
            )
    position.come_to(max((table.stream_ms for table in result.values()), default=BEFORE_ALL_MS))
    return result


def global_views(app: App, stores: Mapping[str, StoreView]) -> dict[GlobalTableDef[Any, Any], TableView[Any, Any]]:
    """The global tables of an app as a task sees them. Raises PipelineError where a store is missing."""
    for name in app.globals:
        if name not in stores:
            raise PipelineError(f"there is no store for global table {name!r}; give it in shared=")
    views = {table: table.view(stores[name]) for name, table in app.globals.items()}
    for view in views.values():
        view.closed = True  # between calls
    return views


def routed(app: App, subtopology: Subtopology, definition: Stored[Any]) -> Routed:
    """What says, of a key of a table and its bytes, to the records of which key it belongs (their bytes)."""
    codec: Codec[Any] | None = routing_codec(app, subtopology.sources, definition.name)
    if definition.route is None and codec is None:
        return lambda key, key_bytes: key_bytes
    return lambda key, key_bytes: definition.partition_key(key, codec)


def _owner_check(
    definition: Stored[Any], routed: Routed, subtopology: Subtopology, partition: int
) -> Callable[[Any, bytes], None]:
    count, number = subtopology.partitions, subtopology.number

    def check(key: Any, key_bytes: bytes) -> None:
        owner = partition_of(routed(key, key_bytes), count)
        if owner != partition:
            problem = f"key {key!r} belongs to {number}_{owner}, this is {number}_{partition}; rekey first"
            raise WrongTask(f"{definition.kind} {definition.name!r}: {problem}")

    return check
