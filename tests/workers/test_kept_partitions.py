"""The line about partitions that a new version declares and topics do not get. Law: once, and only where a number has no effect."""

from __future__ import annotations

from orchestrator import App, Record, Sink
from state.log.memory import MemoryLog
from workers.missing_inputs import prepare_and_say


def version(partitions: int) -> App:
    app = App("bank", partitions=partitions)
    source, target = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int, partitions=3)

    @app.processor(source, target)
    def pass_on(record: Record[str, int], out: Sink[str, int]) -> None: ...

    return app


async def said(log: MemoryLog, app: App) -> list[str]:
    lines: list[str] = []
    await prepare_and_say(log, app, "sqlite:x", lines.append)
    return lines


async def test_a_number_that_has_no_effect_is_said_once() -> None:
    log = MemoryLog()
    assert await said(log, version(2)) == await said(log, version(2)) == []
    assert await said(log, version(4)) == [
        "partitions of topics that are there stay: in keeps its 2 (this version has 4); `orchestrator repartition` moves an app to more, "
        "`orchestrator topics grow` gives a topic more"
    ]
    assert await said(log, version(4)) == []
    assert "in keeps its 2 (this version has 8)" in (await said(log, version(8)))[0]
    assert await said(log, version(2)) == [], "the way back finds its own"


async def test_a_topic_that_another_made_is_not() -> None:
    """Its number is the producer's: the app has never had another."""
    log = MemoryLog()
    await said(log, version(2))
    other = App("shop", partitions=7)
    source = other.topic("in", key=str, value=int)

    @other.processor(source)
    def read(record: Record[str, int]) -> None: ...

    assert await said(log, other) == await said(log, other) == []
