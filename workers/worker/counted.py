"""What a worker counts of its commits, and how its tasks are when a page is made. One rule: it reads, and changes nothing
but measures.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.model import Role
from workers.metrics import families as fam
from workers.metrics.measures import Measures
from workers.tasks.commit import Outcome
from workers.tasks.task import TaskRun
from workers.worker.ports import CountedPort


def turn_ended(measures: Measures, run: TaskRun, took_s: float) -> None:
    """A turn of calls has ended."""
    measures.add(fam.PROCESSING, took_s, run.scope)


def restored(measures: Measures, run: TaskRun, took_s: float) -> None:
    """A restore has ended."""
    measures.add(fam.RESTORES, 1, run.scope)
    measures.observe(fam.RESTORE_SECONDS, took_s)


def commit_ended(measures: Measures, outcome: Outcome, took_s: float) -> None:
    """The outcome of a commit is known."""
    records = 0
    for one in outcome.done:
        for topic, count in one.changes.processed.items():
            records += count
            measures.add(fam.PROCESSED, count, one.run.scope, topic)
        for name, count in one.changes.late.items():
            measures.add(fam.LATE, count, one.run.scope, name)
        left_out = Counter((left.topic, left.is_dead_letter) for left in one.changes.left_out)
        for (topic, is_dead_letter), count in left_out.items():
            measures.add(fam.DEAD_LETTERED if is_dead_letter else fam.SKIPPED, count, one.run.scope, topic)
    if outcome.done:
        measures.observe(fam.COMMIT_SECONDS, took_s)
        measures.observe(fam.COMMIT_RECORDS, records)
    if outcome.lost:
        measures.add(fam.ERRORS, len(outcome.lost), "fenced" if outcome.fenced else "refused")


def put_gauges(measures: Measures, worker: CountedPort) -> None:
    """How the tasks are now. What is not held any more is not there any more."""
    status = worker.status()
    facts = {task: known for task in status.active if (known := status.facts_of(task)) is not None}
    measures.put_all(fam.INPUT_LAG, {(str(task),): known.input_lag for task, known in facts.items()})
    measures.put_all(fam.STATE_BYTES, {(str(task),): known.state_bytes for task, known in facts.items()})
    lags: dict[tuple[str, ...], float] = {
        (run.scope, "active"): max(0, sum(run.ends.values()) - run.position())
        for run in worker.runs.values()
        if run.catching_up
    }
    lags |= {(str(t), "learner"): copy.lag for t, copy in status.copies.items() if copy.role is Role.LEARNER}
    measures.put_all(fam.RESTORE_LAG, lags)
    standbys: dict[tuple[str, ...], float] = {
        (str(t),): copy.lag for t, copy in status.copies.items() if copy.role is Role.STANDBY
    }
    measures.put_all(fam.STANDBY_LAG, standbys)
    roles = Counter(copy.role for copy in status.copies.values())
    roles[Role.ACTIVE] = len(status.active)
    for role in Role:
        measures.put(fam.TASKS, roles[role], role.value)
    halted = sum(run.halt is not None and run.process is None for run in worker.runs.values())
    measures.put(fam.HALTED, halted)
    waits, waited_s = worker.log_waits_so_far()
    measures.put(fam.LOG_WAITS, waits)
    measures.put(fam.LOG_WAIT_SECONDS, waited_s)
    measures.put(fam.LOG_WAITING, 1 if worker.log_waits() else 0)
