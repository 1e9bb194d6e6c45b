"""Lives of `produce --file`, and its rules removed one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from state.log.memory import MemoryLog
from tests.process_simulation.producers import broken
from workers.commands.produce import Writing
from workers.log import produced
from workers.log.produced import Begun

LIVES = 200


def test_lives_of_producers_hold() -> None:
    """Each line of a file is in the log once, and those of a key in order, whatever befell its producers."""
    for seed in range(LIVES):
        if (error := broken(seed)) is not None:
            pytest.fail(f"python -m tests.process_simulation.producers --start {seed} --seeds 1: {error}")


def progress_apart_from_its_records() -> Any:
    """What was read is written down after the records, in a call of its own."""
    original = Writing._append

    async def append(self: Writing, batch: Any) -> None:
        begun, self._begun = self._begun, None
        await original(self, batch)
        self._begun = begun
        if batch and begun is not None:
            name, before, after = begun.progress()
            await self._log.replace_metadata(self._app.id, produced.PROGRESS, name, before, after)  # type: ignore[attr-defined]
            begun.written(after)

    return patch.object(Writing, "_append", append)


def nobody_compares_progress() -> Any:
    """The log takes what was read without a look at what it has."""
    original = MemoryLog.append

    async def append(self: MemoryLog, records: Any, metadata: Any = None, seen: Any = None) -> Any:
        if metadata is not None:
            seen = await self.metadata(metadata.application, metadata.kind, metadata.key)
        return await original(self, records, metadata=metadata, seen=seen)

    return patch.object(MemoryLog, "append", append)


def every_run_begins_anew() -> Any:
    """A run goes on at the beginning of its file."""
    original = produced.begin

    async def begin(log: Any, application: str, path: Any, reading: Any, shape: Any) -> Begun:
        return await original(log, "another", path, reading, shape)

    return patch("tests.process_simulation.producers.begin", begin)


RULES: tuple[Callable[[], Any], ...] = (
    progress_apart_from_its_records,
    nobody_compares_progress,
    every_run_begins_anew,
)


@pytest.mark.parametrize("removed", RULES, ids=lambda rule: rule.__name__)
def test_a_removed_rule_is_noticed(removed: Callable[[], Any]) -> None:
    with removed():
        assert any(broken(seed) is not None for seed in range(LIVES))
