"""`orchestrator query` of a table of windows or sessions: which windows a key has, read from the instance that runs its task.

One rule: what is asked for costs the windows of the key, not what the table holds: windows that lie by time are found by
seeking from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.coordinator.requests import ScanRequest, StoreRequest
from orchestrator.errors import WrongUse
from pipeline.tables.expiry import STREAM_TIME_KEY
from pipeline.tables.table import after_prefix
from pipeline.time import position
from pipeline.time.stored_form import BY_TIME, StoredForm, StoredRow
from pipeline.values.json_values import shown
from workers.commands.query_place import ask_where_it_is
from workers.fleet.client import Client

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Range:
    """Which windows: that a time lies in (`at_ms`), or that begin from `first_ms` on and before `until_ms`; without any of
    them the newest."""

    at_ms: int | None = None
    first_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_newest(self) -> bool:
        return self.at_ms is None and self.first_ms is None and self.until_ms is None

    def has(self, form: StoredForm, row: StoredRow) -> bool:
        if self.at_ms is not None:
            return form.holds(row, self.at_ms)
        start_ms = row.start_ms or 0
        return (self.first_ms is None or start_ms >= self.first_ms) and (
            self.until_ms is None or start_ms < self.until_ms
        )


def checked_range(form: StoredForm, table: str, wanted: Range) -> Range:
    """Raises WrongUse for a table without windows, or bounds that exclude each other."""
    if not form.is_windowed and not wanted.is_newest:
        raise WrongUse(f"'{table}' has no windows; leave --at, --from and --until out")
    if wanted.at_ms is not None and (wanted.first_ms is not None or wanted.until_ms is not None):
        raise WrongUse("--at is one time, --from and --until are a range; give one of them")
    if wanted.first_ms is not None and wanted.until_ms is not None and wanted.until_ms <= wanted.first_ms:
        raise WrongUse("--until is not after --from; no window begins between them")
    return wanted


async def windows(
    client: Client, form: StoredForm, task: str, table: str, key: bytes, wanted: Range
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The windows of a key, the earliest first, and the answer that says where they are read from; of several one of a task that was
    still being restored then, if there is one."""
    find = _by_time if form.kind in BY_TIME else _by_key
    rows, answer = await find(client, form, task, table, key, wanted)
    rows = [row for row in rows if wanted.has(form, row)]
    if wanted.is_newest:
        rows = sorted(rows, key=lambda row: row.end_ms or 0)[-1:]
    kept = await ask_where_it_is(client, StoreRequest(task, table, STREAM_TIME_KEY))
    stream_ms = position.read(kept["value"])[0]
    return [
        {
            "start_ms": row.start_ms,
            "end_ms": row.end_ms,
            "open": form.is_open(row, stream_ms),
            "value": shown(form.value_codec, row.value),
        }
        for row in rows
    ], answer


async def _by_key(
    client: Client, form: StoredForm, task: str, table: str, key: bytes, wanted: Range
) -> tuple[list[StoredRow], dict[str, Any]]:
    head = form.of_key(key)
    start, stop, rows = head, after_prefix(head), list[StoredRow]()
    answer: dict[str, Any] = {}
    while True:
        page = await ask_where_it_is(client, ScanRequest(task, table, start, stop, PAGE))
        answer = answer if answer.get("restore_lag") else page
        found = [form.row(entry, value) for entry, value in page["pairs"]]
        rows += [row for row in found if row is not None]
        if not page["more"]:
            return rows, answer
        start = page["pairs"][-1][0] + b"\0"


async def _by_time(
    client: Client, form: StoredForm, task: str, table: str, key: bytes, wanted: Range
) -> tuple[list[StoredRow], dict[str, Any]]:
    """Seeks the key in one window after the other."""
    start_ms = max(0, wanted.first_ms or 0)  # no window begins before 1970
    if wanted.at_ms is not None:
        start_ms = form.earliest_start(wanted.at_ms)
    last_ms = wanted.at_ms if wanted.at_ms is not None else None if wanted.until_ms is None else wanted.until_ms - 1
    _, stop = form.bounds(b"", None)
    rows: list[StoredRow] = []
    answer: dict[str, Any] = {}
    while True:
        page = await ask_where_it_is(client, ScanRequest(task, table, form.of_window(start_ms, key), stop, 1))
        answer = answer if answer.get("restore_lag") else page
        row = form.row(*page["pairs"][0]) if page["pairs"] else None
        if row is None or row.start_ms is None or (last_ms is not None and row.start_ms > last_ms):
            return rows, answer
        if row.key == key:
            rows.append(row)
        # In a later window the key may be behind the first one there.
        start_ms = row.start_ms if row.key < key and row.start_ms > start_ms else row.start_ms + 1
