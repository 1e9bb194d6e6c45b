"""What topics are for, asked by several calls of one process at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from state.log.kafka.layouts import Layout
from state.log.kafka.topics import Names, Topics

SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "1",
    "retention.bytes": "-1",
    "segment.bytes": "1",
    "max.message.bytes": "1000",
    "delete.retention.ms": "1",
    "message.timestamp.type": "CreateTime",
}


class Answers:
    """Connections to brokers that answer what is asked of settings, once they may."""

    made_anew = 0

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.came, self.may_answer = asyncio.Event(), asyncio.Event()

    async def retried(self, what: str, attempt: Callable[[], Awaitable[Any]], *, within_s: float = 0) -> Any:
        return await attempt()

    async def ask_any(self, request: Any) -> Any:
        self.asked.append({name for _, name, _ in request.resources})
        self.came.set()
        await self.may_answer.wait()
        return SimpleNamespace(resources=[(0, None, 2, name, [*SETTINGS.items()]) for _, name, _ in request.resources])


async def test_one_that_another_call_forgets_meanwhile_is_asked_for_again() -> None:
    """A commit to a topic that is known and to one that is not; and one of another task that finds the first one's settings changed.
    It was a KeyError."""
    answers = Answers()
    topics = Topics(answers, Names(), {})  # type: ignore[arg-type]
    for name in "xy":
        topics._layouts[name] = Layout(name.encode(), (0,), (0,), frozenset(), 0)
    answers.may_answer.set()
    await topics.purposes(["x"])
    answers.came.clear()
    answers.may_answer.clear()
    asking = asyncio.create_task(topics.purposes(["x", "y"]))
    await answers.came.wait()
    topics.forget_purpose("x")
    answers.may_answer.set()
    assert (await asking).keys() == {"x", "y"}
    assert answers.asked == [{"x"}, {"y"}, {"x"}]
