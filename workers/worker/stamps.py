"""The stamps of a worker's stores: which entry of the log's history each was written under.

One rule: a store that is open is stamped with each entry, also where nothing is written to it: a stamp that is none of the last
`history.KEPT` costs a restore. What a stamp means stands in `state.history`. Asked by worker.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from state import history
from state.errors import StateError
from state.store.protocol import Store
from workers.tasks.stores import Opened
from workers.worker.ports import StampPort


class Stamps:
    """Those of one worker."""

    def __init__(self, worker: StampPort) -> None:
        self._worker = worker
        self._term = self._written_term = 0  # that is known; the last one whose stamps were written to the disk
        self._waiting = WeakKeyDictionary[Store, int]()  # stores whose mark waits for a write, and where they stood

    async def renew(self, term: int) -> None:
        """A coordinator of this term has come, and with it another entry."""
        if term <= self._term:
            return
        self._term = term
        try:
            stamp = await self._worker.opener.learn(term)
        except StateError as error:
            self._worker.crashed(error)
            return
        runs = list(self._worker.runs.values())
        stores = [opened.store for run in runs for opened in run.stores.values()]
        sure = [(run, opened.store) for run in runs for opened in run.stores.values() if self._mark(opened, stamp)]
        for run, store in sure:
            try:
                store.write({}, store.offset, is_whole=False)
            except StateError as error:
                self._worker.failed(run, error)
        if term >= self._written_term + history.OLD:
            self._written_term = term
            await asyncio.to_thread(_flush, stores)

    def _mark(self, opened: Opened, stamp: str) -> bool:
        """For what is written next; returns whether it is also of what the store has, which else may be of another history."""
        store = opened.store
        is_waiting = self._waiting.get(store) == store.offset  # a mark that was not written says nothing of what it has
        is_sure = not is_waiting and self._worker.opener.is_of_this_history(opened)
        store.mark(history.STAMP, stamp)
        if not is_sure:
            self._waiting[store] = store.offset
        return is_sure and store.offset > 0


def _flush(stores: Sequence[Store]) -> None:
    for store in stores:
        with suppress(StateError):  # closed by now, and so flushed; or its next write meets the same error
            store.flush()
