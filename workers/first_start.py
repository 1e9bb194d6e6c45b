"""A first start that is refused leaves nothing in the log.

One rule: whatever refuses it is looked at before anything is made. A fleet notes itself before it makes the app's topics, and on
brokers that note lies in a topic of the app, which is made for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import RefusedBySafety
from state.log.protocol import GroupLog
from workers import topic_identities
from workers.log.logs import log_path
from workers.missing_inputs import what_is_made
from workers.prepare import found, refuse_half_done

if TYPE_CHECKING:
    from pipeline.app import App


def refuse_cut_off(url: str, application: str, state_dir: str) -> None:
    """Raises RefusedBySafety where the file of the log is empty and there is state: it would be of another log, and be wiped."""
    path, state = log_path(url), Path(state_dir) / application
    if path is not None and path.exists() and path.stat().st_size == 0 and any(state.glob("*/*/*/CURRENT")):
        raise RefusedBySafety(
            f"the log {path} is empty, and {state} has state of '{application}', which a new log would have wiped: the file was cut off; "
            "restore a backup of it, or remove it to begin anew"
        )


async def refuse_first_start(log: GroupLog, app: App, url: str) -> None:
    """Raises what `topic_identities.check` and `prepare_and_say` raise. Where the app has been here before, only what did not end is
    looked at: it is why the app is refused, also where a log is full and takes no note."""
    await refuse_half_done(log, app.id)
    if await log.lease(app.id) is None:
        await topic_identities.check(log, app)
        await what_is_made(log, app, url)
        await found(log, app)
