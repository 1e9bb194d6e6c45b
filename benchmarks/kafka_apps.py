"""The apps of `benchmarks/kafka.py`: the count of benchmarks/stream.py. Each run is an application of its own, named by the
environment, so that it finds no positions of the one before."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow.compute as pc

from orchestrator import App, Columns, ColumnTable, Record, Table
from state.log.protocol import Guarantee

PARTITIONS = 8
RUN, TOPIC = "BENCH_RUN", "BENCH_TOPIC"
FORMS = ("record", "batch", "columns", "least", "least-batch")


def _app(form: str) -> App:
    guarantee: Guarantee = "at-least-once" if form.startswith("least") else "exactly-once"
    app = App(f"{form}-{os.environ.get(RUN, '0')}", partitions=PARTITIONS, guarantee=guarantee)
    events = app.topic(os.environ.get(TOPIC, "hot"), key=str, value=bytes)
    counts = app.table("counts", key=str, value=int, default=int)

    if form == "columns":

        @app.processor(events, counts, columns=True)
        def count_columns(batch: Columns[str, bytes], counts: ColumnTable[str, int]) -> None:
            found = batch.table["key"].value_counts()
            keys = found.field("values")
            counts.put(keys, pc.add(counts.get(keys), found.field("counts")))

    elif form.endswith("batch"):

        @app.processor(events, counts, batch=True)
        def count_all(events: Sequence[Record[str, bytes]], counts: Table[str, int]) -> None:
            for event in events:
                counts[event.key] += 1

    else:

        @app.processor(events, counts)
        def count(event: Record[str, bytes], counts: Table[str, int]) -> None:
            counts[event.key] += 1

    return app


record, batch, columns, least, least_batch = (_app(form) for form in FORMS)
