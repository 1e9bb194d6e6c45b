"""The records of an app's global tables, as an instance and the Driver take them in.

One rule: what cannot be read, or gives no time, is not in the table. `on_error` of who looks at it decides whether that stops them; there is no
dead letter, because the record belongs to no task: each instance would send one, and again after each start.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pipeline.calls.effects import LeftOut
from pipeline.definitions.error_policy import SKIP
from pipeline.errors import DecodingFailed, shown_place, text_of
from pipeline.records import RawRecord
from pipeline.tables.dict_store import DictStore

if TYPE_CHECKING:
    from pipeline.app import App


class GlobalRecords:
    """See the module text. `stores` are by table."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.stores = {name: DictStore() for name in app.globals}
        self._tables = {table.of.topic: table for table in app.globals.values()}
        self._failures: deque[DecodingFailed] = deque()

    def take(self, topic: str, partition: int, raw: RawRecord) -> LeftOut | None:
        """A record has come; what was left out, where it was. Raises DecodingFailed, with nothing changed."""
        table = self._tables.get(topic)
        if table is None or raw.key is None:
            return None
        try:
            table.of.key_codec.decode(raw.key)
            if raw.value is not None:
                table.of.event_time.codec().decode(raw.value)
        except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything; on_error decides
            return self._left_out(table.name, topic, partition, raw, error)
        self.stores[table.name].write(table.entries(raw))
        return None

    def put(self, topic: str, partition: int, raw: RawRecord) -> None:
        """The same for the Driver: what stops a reader is raised by `check`."""
        try:
            self.take(topic, partition, raw)
        except DecodingFailed as error:
            self._failures.append(error)

    def check(self) -> None:
        """Raises DecodingFailed."""
        if self._failures:
            raise self._failures.popleft()

    def _left_out(self, name: str, topic: str, partition: int, raw: RawRecord, error: Exception) -> LeftOut:
        """Where none of its readers stops. Raises DecodingFailed."""
        what = f"{shown_place(topic, partition, raw.offset)}, a record of a global table"
        readers = [one for one in self._app.processors.values() if self._app.globals[name] in one.others]
        for reader in readers:
            chosen = self._app.error_policy(reader).of(error)
            if isinstance(chosen, str) and chosen != SKIP:
                raise DecodingFailed(
                    f'{reader.name} cannot read {what}: {text_of(error)}; correct the type, or give it on_error="skip"',
                    processor=reader.name,
                    task="",
                    topic=topic,
                    partition=partition,
                    offset=raw.offset,
                ) from error
        names = ", ".join(reader.name for reader in readers) or "nobody"
        return LeftOut(topic, False, f"{what} that {names} reads: {text_of(error)}")
