"""A topic of ints that a new version reads as floats, or the other way round: no record fails, and each is another number."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import App, Record
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition
from workers.errors import AppRefused
from workers.prepare import prepare


def app_of(key: Any, value: Any, read: Any = str) -> App:
    app = App("num", partitions=2)
    numbers = app.topic("numbers", key=key, value=value)
    sent = app.topic("sent", key=str, value=read)

    @app.processor(numbers, sent)
    def pass_on(record: Record[Any, Any], sent: Any) -> None:
        sent.send("k", record.value)

    return app


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (app_of(str, int), app_of(str, float), "'numbers': its values were int and are float now"),
        (app_of(str, float), app_of(str, int), "'numbers': its values were float and are int now"),
        (app_of(int, str), app_of(float, str), "'numbers': its keys were int and are float now"),
        (app_of(str, str, int), app_of(str, str, float), "'sent': its values were int and are float now"),
    ],
)
async def test_it_is_refused_where_there_are_records(old: App, new: App, what: str) -> None:
    log = MemoryLog(markers=False)
    await prepare(log, old)
    await prepare(log, new)  # nothing is there yet that would be read wrongly
    await prepare(log, old)
    topic = what.split("'")[1]
    await log.append({Partition(topic, 1): [NewRecord(b"12345678", b"12345678", 1)]})
    with pytest.raises(AppRefused, match=what):
        await prepare(log, new)
    await prepare(log, old)


@pytest.mark.parametrize("new", [str, bytes, dict[str, int]])
async def test_what_shows_in_the_first_record_is_taken(new: Any) -> None:
    """It may be the correction of what was declared, which the line of that record asks for."""
    log = MemoryLog(markers=False)
    await prepare(log, app_of(str, int))
    await log.append({Partition("numbers", 0): [NewRecord(b"k", b"{}", 1)]})
    await prepare(log, app_of(str, new))
