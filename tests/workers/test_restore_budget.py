"""The restore budget with real processes: copies keep to it, a task that nobody runs does not wait for it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "20s", "--heartbeat", "200ms", "--acceptable-recovery-lag", "0")
SLOW = ("--acceptable-recovery-time", "1ms", "--restore-rate-limit")


def learners(console: Console) -> list[dict[str, Any]]:
    done = console.here("status", "bank", "--json")
    return [learner for task in done.json["tasks"] for learner in task["learners"]] if done.code == 0 else []


@pytest.mark.long
def test_copies_keep_to_the_budget_and_actives_do_not(console: Console) -> None:
    """About 4 MB of state and a budget of 20 KiB/s: the learners of a second instance tell a time left and are far from
    it while nothing moves. With the disks wiped and 1 KiB/s, the whole state is there again at once: nobody runs it."""
    lines = "\n".join(
        json.dumps({"key": key, "value": {"account": key, "amount": 1}})
        for key in (f"{n:05d}{'x' * 200}" for n in range(16_000))
    )
    fleet = console.run(*FAST, *SLOW, "20KiB")
    assert console.here("produce", "bank:app", "payments", stdin=lines).code == 0
    console.until(
        "the processing of all payments",
        lambda: sum(t["records"] or 0 for t in console.here("status", "bank", "--json").json["tasks"]) == 16_000,
    )
    assert console.here("scale-up", "bank", "--to", "2").code == 0
    console.until("a time left", lambda: any(row["eta_s"] for row in learners(console)))
    found = [row for row in learners(console) if row["eta_s"]]
    assert all(row["restore_lag"] > 1_000 for row in found), found
    assert {t["active"] for t in console.here("status", "bank", "--json").json["tasks"]} == {"i1"}

    fleet.terminate()
    console.end(fleet)
    shutil.rmtree(console.folder / ".orchestrator" / "state")
    console.run(*FAST, *SLOW, "1KiB")
    key = f"{77:05d}{'x' * 200}"
    console.until("the state", lambda: console.here("query", "bank", "balances", key).out == "1\n")
