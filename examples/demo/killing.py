"""Step 5 of the tour: kill -9 of an instance in the middle of a commit, and what becomes of its tasks.

One rule: the moment is exact (a failpoint inside the transaction), and what the dead had written is tried once more.
"""

from __future__ import annotations

from typing import Any

from examples.demo.stage import Stage
from examples.flights import app
from orchestrator.errors import TimedOut
from state.errors import Fenced, Refused
from workers.journal import read_journals
from workers.worker.failpoint import read_late


async def kill(stage: Stage) -> None:
    """Step 5."""
    wait = stage.random.randrange(500, 4000)
    stage.show.step(5, f"kill -9 of one instance between writing and committing, after {wait} more records")
    await stage.processed_more(wait)
    before = await stage.status()
    victim = await _victim(stage, before)
    draft = stage.failpoint.with_suffix(".name")
    draft.write_text(victim)
    draft.rename(stage.failpoint)
    late_path = stage.failpoint.with_suffix(".late")

    async def died() -> bool:
        return late_path.exists()

    await stage.until("an instance to die in a commit", died, 30)
    late, parts = read_late(late_path)
    killed = next(i for i in before["instances"] if late.instance == i["id"])
    had = sorted(t["id"] for t in before["tasks"] if t["active"] == killed["id"])
    stage.show.note(f"{killed['id']} died with an open transaction of tasks {', '.join(p.scope for p in parts)}")

    async def fenced() -> bool:
        return not any(o.transactional_id == late.writer for o in (await stage.log.owners(app.id)).values())

    await stage.until("the killed writer to be fenced", fenced, 30)
    await _late_write(stage, late, parts)

    async def taken_over() -> bool:
        status = await stage.status()
        return all(t["active"] is not None for t in status["tasks"])

    await stage.until("its tasks to run elsewhere", taken_over, 30)
    after = await stage.status()
    rows = await _killed_rows(stage, before, after, had, late.at_ms)
    moved = [row for row in rows if row["to"] != killed["id"]]
    stage.show.note(
        f"{len(moved)} of its {len(had)} tasks went to the best copies on {', '.join(sorted({r['to'] for r in moved}))}"
    )
    stage.check("tasks of the killed went to their copies", len(had), len(moved), len(moved) == len(had))

    async def back() -> bool:
        status = await stage.status()
        found = [r for r in read_journals(stage.options.state / app.id) if r["what"] == "instance"]
        again = [r for r in found if r["instance"] == killed["id"] and r["attempt"] > 0]
        return bool(again) and killed["id"] in {i["id"] for i in status["instances"]} and status["stable"]

    await stage.until(f"{killed['id']} to come back as a new incarnation", back, 90)
    stage.show.note(f"{killed['id']} is back as a new incarnation; every task runs")
    stage.check("the killed instance came back", killed["id"], killed["id"], True)
    stage.moved |= set(had)
    settled = await stage.status()
    stage.moved |= {
        t["id"] for t in settled["tasks"] if {x["id"]: x["active"] for x in before["tasks"]}[t["id"]] != t["active"]
    }


async def _victim(stage: Stage, status: dict[str, Any]) -> str:
    """An instance that runs tasks and does not host the coordinator (that one dies in `make kill`)."""
    lease = await stage.log.lease(app.id)
    host = lease.holder if lease is not None else ""
    names: list[str] = [i["id"] for i in status["instances"] if i["load"] and i["id"] != host]
    return stage.random.choice(names)


async def _late_write(stage: Stage, late: Any, parts: Any) -> None:
    """Try what the killed had written, as a zombie would."""
    try:
        await stage.log.open_writer(late.application, late.writer)
        await stage.log.commit(late.application, late.writer, parts)
        refused = "accepted"
    except (Refused, Fenced) as error:
        refused = "refused"
        stage.show.note(f"its late write is refused: {error}")
    stage.check("a late write of the killed instance", "refused", refused, refused == "refused")


async def _killed_rows(
    stage: Stage, before: dict[str, Any], after: dict[str, Any], had: list[str], died_ms: int
) -> list[dict[str, Any]]:
    """The gap after a kill: from its last moment to the first record of the new owner, from the journals."""

    def firsts() -> dict[str, int]:
        rows = read_journals(stage.options.state / app.id)
        found: dict[str, int] = {}
        for row in rows:
            if row["what"] == "first" and row["at_ms"] >= died_ms and row["task"] in had:
                found.setdefault(row["task"], row["first_ms"])
        return found

    async def all_timed() -> bool:
        return len(firsts()) == len(had) or stage.producer.returncode is not None

    try:
        await stage.until("the new owners to process a record", all_timed, 15)
    except TimedOut:
        stage.show.note("a new owner saw no record yet")
    first = firsts()
    now = {t["id"]: t["active"] for t in after["tasks"]}
    old = {t["id"]: t["active"] for t in before["tasks"]}
    rows = [
        {
            "step": "kill",
            "task": task,
            "from": old[task],
            "to": now[task],
            "gap_ms": first[task] - died_ms if task in first else None,
            "pause_ms": None,
        }
        for task in had
    ]
    stage.hand_overs += rows
    return rows
