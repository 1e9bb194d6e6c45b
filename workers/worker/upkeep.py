"""What a worker does now and then: stale folders go, re-key records that are consumed go, old positions are committed again.

One rule: nothing waits for it. One round a minute, or as often as a log that forgets positions needs it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from state.errors import DirectoryUnusable
from workers.tasks import inputs
from workers.worker import held_positions
from workers.worker.ports import UpkeepPort

CLEAN_UP_S, CLEAN_UP_DELAY_MS = 60.0, 600_000
LIFETIME_PARTS = 8  # how often positions are committed again while a log keeps them, and whoever commits them


async def _clean(worker: UpkeepPort) -> None:
    keep, now_ms = [str(task) for task in worker.held()], worker.surroundings.wall_ms()
    with suppress(DirectoryUnusable):  # it keeps what is stale; a task that is placed here says what is wrong
        await asyncio.to_thread(worker.directory.clean, keep, delay_ms=CLEAN_UP_DELAY_MS, now_ms=now_ms)
    with suppress(DirectoryUnusable):
        await worker.scan_disk()


async def run(worker: UpkeepPort) -> None:
    """Until cancelled."""
    lifetimes = (worker.log.position_lifetime_ms, worker.log.writer_lifetime_ms)
    lifetime_ms = min((one for one in lifetimes if one is not None), default=None)
    committed_again, again_s = (clock := worker.surroundings.clock)(), (lifetime_ms or 0) / LIFETIME_PARTS / 1_000
    while True:
        await asyncio.sleep(min(CLEAN_UP_S, again_s or CLEAN_UP_S))
        if lifetime_ms is not None and clock() - committed_again >= again_s:
            committed_again = clock()
            for one in worker.active():
                worker.commit_again(one)
            held_positions.commit_again(worker)
        await _clean(worker)
        await inputs.trim(worker.log, worker.prepared.topics, worker.active())
