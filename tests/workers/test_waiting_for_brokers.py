"""`wait` and `status --watch` where the log cannot be used for a moment."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator import App
from orchestrator.model import TaskId
from state.errors import LogUnavailable
from state.log.memory import MemoryLog
from tests.cli.console import Console
from tests.workers.test_direct_queries import Answering, client_of
from workers.commands import status, wait
from workers.fleet import client
from workers.log.logs import open_log
from workers.prepare import prepare


class Away(MemoryLog):
    """A log of which a question is answered but the next one, once that is wanted."""

    is_away = False

    async def topics(self, names: Any) -> Any:
        if self.is_away:
            self.is_away = False
            raise LogUnavailable("no Kafka broker answers: start it")
        return await super().topics(names)


def test_brokers_that_are_not_there_yet_are_waited_for(tmp_path: Path) -> None:
    """A script starts brokers, an app, and waits: it ended with 1 before any of them could answer."""
    ended = Console(tmp_path).here("wait", "bank", "--log", "kafka://127.0.0.1:1", "--timeout", "100ms")
    assert ended.code == 4 and "'bank' is not stable after 0.1 s: no Kafka broker answers (127.0.0.1:1" in ended.err


def test_a_log_that_goes_away_as_it_is_asked_for_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, real, failed = f"sqlite:{tmp_path}/a.db", wait.log_of, list[str]()

    async def made() -> None:
        await (await open_log(url, create=True)).close()

    @asynccontextmanager
    async def once_away(args: Any) -> AsyncIterator[Any]:
        if not failed:
            failed.append("once")
            raise LogUnavailable("no Kafka broker answers: start it")
        async with real(args) as found:
            yield found

    asyncio.run(made())
    monkeypatch.setattr(wait, "log_of", once_away)
    monkeypatch.setattr(wait, "MAKING_S", 0.0)
    monkeypatch.setattr(client, "ALONE_S", 0.0)
    ended = Console(tmp_path).here("wait", "bank", "--log", url)
    assert failed and ended.code == 2 and "the log knows no application 'bank'" in ended.err


async def test_a_watch_goes_on_when_brokers_are_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, log = App("bank", partitions=1), Away(markers=False)
    app.processor(app.topic("payments", key=str, value=int))(lambda payment: None)
    await prepare(log, app)
    lines, errors = list[str](), list[str]()

    async def seen(where: list[str], count: int) -> None:
        while len(where) < count:
            await asyncio.sleep(0.01)
            shown = capsys.readouterr()
            lines.extend(shown.out.splitlines())
            errors.extend(shown.err.splitlines())
            assert not watching.done() or watching.result()

    async with client_of(log, Answering("S1", None), [TaskId(0, 0)]) as asking:

        @asynccontextmanager
        async def here(args: Any) -> AsyncIterator[Any]:
            yield "bank", log, asking

        monkeypatch.setattr(status, "client_of", here)
        monkeypatch.setattr(status, "WATCH_S", 0.01)
        async with asyncio.timeout(30):
            watching = asyncio.create_task(status.watch(argparse.Namespace(json=False)))
            await seen(lines, 1)
            log.is_away = True
            await seen(errors, 1)
            await seen(lines, len(lines) + 1)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert errors[0] == "warning: no Kafka broker answers: start it; it is looked for again"
