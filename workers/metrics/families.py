"""Every metric: its name, kind, labels and meaning. One rule: what is not in this table is not measured, and docs/metrics.md
has a row for each. Names and kinds follow Prometheus: base units, `_total` for counters. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
RECORDS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric. `buckets`: upper bounds of a histogram, the last one (+Inf) left out."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(f"orchestrator_{name}_total", COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(f"orchestrator_{name}", GAUGE, help, labels)


def _histogram(name: str, buckets: Sequence[float], help: str, *labels: str) -> Family:
    return Family(f"orchestrator_{name}", HISTOGRAM, help, labels, buckets)


# of a worker: each has the label `worker` as well
PROCESSED = _counter("records_processed", "Records whose calls are committed.", "task", "topic")
SKIPPED = _counter("records_skipped", 'Calls that left their record out (on_error="skip").', "task", "topic")
DEAD_LETTERED = _counter(
    "records_dead_lettered", "Calls whose record went to a topic of dead letters.", "task", "topic"
)
LATE = _counter("records_late", "Records that came when all was closed for them, by table or join.", "task", "name")
PROCESSING = _counter("processing_seconds", "Time in the calls of processors.", "task")
COMMIT_SECONDS = _histogram("commit_seconds", SHORT_S, "Time of a commit, waits for the log included.")
COMMIT_RECORDS = _histogram("commit_records", RECORDS, "Records in a commit.")
INPUT_LAG = _gauge("input_lag_records", "Records that wait in the inputs of an active task.", "task")
STATE_BYTES = _gauge("state_bytes", "Bytes of the state of an active task.", "task")
RESTORE_LAG = _gauge(
    "restore_lag_records", "Records to restore before a task runs, or its learner is level.", "task", "role"
)
STANDBY_LAG = _gauge("standby_lag_records", "Records that a standby is behind.", "task")
RESTORES = _counter("restores", "Restores that have ended: the state of a task was level with its changelogs.", "task")
RESTORE_SECONDS = _histogram("restore_seconds", LONG_S, "Time from the opening of a task's state until it was level.")
TASKS = _gauge("tasks", "Tasks that are held, by role; halted ones are active.", "role")
HALTED = _gauge("tasks_halted", "Active tasks whose processor stopped, and that wait for `orchestrator resume`.")
LOG_WAITS = _counter("log_waits", "Times that the log could not be used, and was waited for.")
LOG_WAIT_SECONDS = _counter("log_wait_seconds", "Time in such waits that are over.")
LOG_WAITING = _gauge("log_waiting", "1 while the log is waited for.")
ERRORS = _counter("errors", "Errors by kind: processor, state, refused, fenced (see docs/metrics.md).", "kind")

# of an instance
WORKER_CRASHES = _counter("worker_crashes", "Worker processes that ended without a report, and were started again.")
REPORT_AGE = _gauge("worker_report_age_seconds", "Age of what a worker last reported; it reports every second.")
INSTANCE_INFO = _gauge("instance_info", "Always 1; the labels say who this is.", "name", "host", "version")
WORKERS = _gauge("workers", "Workers that report to this instance.")
TERM = _gauge("coordinator_term", "The latest term of the coordinator that this instance knows.")
IS_COORDINATOR = _gauge("is_coordinator", "1 where this instance hosts the coordinator.")
HAND_OVERS = _counter("hand_overs", "Tasks that changed hands, counted by the coordinator.")
HAND_OVER_GAP = _histogram(
    "hand_over_gap_seconds", SHORT_S, "From the last commit of the old owner to the first of the new one."
)
HAND_OVER_PAUSE = _histogram("hand_over_pause_seconds", SHORT_S, "The part of that in which records waited.")

OF_WORKER = (
    *(PROCESSED, SKIPPED, DEAD_LETTERED, LATE, PROCESSING, COMMIT_SECONDS, COMMIT_RECORDS, INPUT_LAG, STATE_BYTES),
    *(RESTORE_LAG, STANDBY_LAG, RESTORES, RESTORE_SECONDS, TASKS, HALTED),
    *(LOG_WAITS, LOG_WAIT_SECONDS, LOG_WAITING, ERRORS),
)
OF_INSTANCE = (
    *(INSTANCE_INFO, WORKERS, WORKER_CRASHES, REPORT_AGE, TERM, IS_COORDINATOR),
    *(HAND_OVERS, HAND_OVER_GAP, HAND_OVER_PAUSE),
)
FAMILIES = (*OF_WORKER, *OF_INSTANCE)
