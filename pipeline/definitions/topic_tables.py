"""Tables that are a topic: `app.table_of(topic)`, of the task's own partition, and `app.global_table(topic)`, of all.

One rule: processors read them, and they change only by records sent to the topic. The records of a table of a topic are
records of the task, in their order; those of a global table belong to no task and move no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from pipeline.definitions.definition import Declared, Empty, Owner, Stored, Topic
from pipeline.errors import DefinitionError
from pipeline.records import RawRecord, SourceRecord
from pipeline.tables.table import StoreView, TableSpec
from pipeline.tables.view import TableView
from pipeline.time.durations import duration_ms
from pipeline.time.position import Position
from pipeline.time.topic_view import GlobalView, TopicTable, TopicTableView

K = TypeVar("K")
V = TypeVar("V")


def _checked_topic(app: Owner, topic: Any, what: str) -> Topic[Any, Any]:
    if not isinstance(topic, Topic):
        raise DefinitionError(f"app {app.id!r}: {topic!r} is no topic; {what}(...) takes one")
    if topic.app is not app:
        raise DefinitionError(f"topic {topic.name!r} belongs to app {topic.app.id!r}, not to {app.id!r}")
    return topic


def _spec(topic: Topic[Any, Any]) -> TableSpec:
    return TableSpec(topic.name, topic.key_codec, topic.value_codec)


class TopicTableDef(Stored[TopicTable[K, V]]):
    """The last record of each key of a topic, in the task that reads its partition."""

    kind = "table of topic"
    in_order: ClassVar[bool] = True

    def __init__(self, app: Owner, topic: Any, *, versions: timedelta | None = None, alias: str | None = None) -> None:
        of = _checked_topic(app, topic, "app.table_of")
        super().__init__(app, of.name, alias)
        self.of = of
        self.key_codec, self.value_codec = of.key_codec, of.value_codec
        what = f"table of topic {of.name!r}"
        self.versions_ms = None if versions is None else duration_ms(what, "versions", versions, least_ms=1)
        self.spec = _spec(of)

    @property
    def source(self) -> Topic[Any, Any]:
        return self.of

    def view(
        self, store: StoreView, check_owner: Callable[[Any, bytes], None] | None, position: Position, *, announces: bool
    ) -> TopicTableView[Any, Any]:
        found: TopicTableView[Any, Any] = TopicTableView(self.spec, store, self.versions_ms)
        found.is_observed = self.is_joined
        return found

    def pairs(self, store: StoreView) -> Iterator[tuple[Any, Any]]:
        return TopicTableView[Any, Any](self.spec, store, None).range()

    def fake(self, content: Mapping[K, V] | None = None, *, timestamp_ms: int = 0) -> TopicTable[K, V]:
        """The table with this content, all written at one time, for a test of a function alone."""
        return _fake(self.spec, self.versions_ms, content, timestamp_ms)

    def described(self) -> dict[str, Any]:
        return {"kind": "topic", "versions_ms": self.versions_ms}


def _fake(
    spec: TableSpec, versions_ms: int | None, content: Mapping[Any, Any] | None, timestamp_ms: int
) -> TopicTableView[Any, Any]:
    view = TopicTableView[Any, Any](spec, Empty(), versions_ms)
    for key, value in (content or {}).items():
        view.take(SourceRecord(0, timestamp_ms, spec.encode_key(key), spec.encode_value(value)), timestamp_ms)
    return view


class GlobalTableDef(Declared[TopicTable[K, V]]):
    """The last record of each key of a topic, of all its partitions, on every instance."""

    kind = "global table"

    def __init__(self, app: Owner, topic: Any, *, alias: str | None = None) -> None:
        of = _checked_topic(app, topic, "app.global_table")
        super().__init__(app, of.name, alias)
        self.of = of
        self.spec = _spec(of)

    def view(self, store: StoreView) -> TableView[Any, Any]:
        """The table as a task sees it; `store` is that of the instance."""
        return GlobalView[Any, Any](self.spec, store, None)

    def fake(self, content: Mapping[K, V] | None = None, *, timestamp_ms: int = 0) -> TopicTable[K, V]:
        """The table with this content, for a test of a function alone."""
        return _fake(self.spec, None, content, timestamp_ms)

    def entries(self, raw: RawRecord) -> dict[bytes, bytes | None]:
        """What a record of the topic changes in the instance's store, at the record's own time."""
        if raw.key is None:
            return {}
        (own,) = self.of.event_time.stamped([raw])
        return TopicTableView[Any, Any](self.spec, Empty(), None).entries(own, 0)

    def pairs(self, store: StoreView) -> Iterator[tuple[Any, Any]]:
        """What the instance's store holds."""
        return GlobalView[Any, Any](self.spec, store, None).range()
