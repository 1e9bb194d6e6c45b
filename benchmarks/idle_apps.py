"""The app of `benchmarks/idle.py`: a count by key that answers with the time at which a record was processed."""

from __future__ import annotations

import time

from orchestrator import App, Record, Sink, Table

PARTITIONS = 256
QUESTIONS, ANSWERS = "questions", "answers"

idle = App("idle", partitions=PARTITIONS)
idle_questions = idle.topic(QUESTIONS, key=str, value=bytes)
idle_answers = idle.topic(ANSWERS, key=str, value=int)
idle_counts = idle.table("counts", key=str, value=int, default=int)


@idle.processor(idle_questions, idle_counts, idle_answers)
def answer(event: Record[str, bytes], counts: Table[str, int], answers: Sink[str, int]) -> None:
    counts[event.key] += 1
    answers.send(event.key, time.monotonic_ns())
