"""The apps of `benchmarks/structured_streaming.py`: a count by key from a topic to a topic, as text. Each run is an application of its
own, named by the environment with its topics. `record` sends a count for each record; `batch` and `columns` one for each key of a batch,
as a micro-batch of Structured Streaming does."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import App, Columns, ColumnTable, Record, Sink, Table

PARTITIONS = 8
RUN, TOPIC, OUT = "BENCH_RUN", "BENCH_TOPIC", "BENCH_OUT"
FORMS = ("record", "batch", "columns")


def name_of(form: str, run: str) -> str:
    return f"{form}-{run}"


def _app(form: str) -> App:
    app = App(name_of(form, os.environ.get(RUN, "0")), partitions=PARTITIONS)
    events = app.topic(os.environ.get(TOPIC, "events"), key=str, value=bytes)
    out = app.topic(os.environ.get(OUT, "out"), key=str, value=str, alias="out")
    counts = app.table("counts", key=str, value=int, default=int)

    if form == "record":

        @app.processor(events, counts, out)
        def count(event: Record[str, bytes], counts: Table[str, int], out: Sink[str, str]) -> None:
            counts[event.key] += 1
            out.send(event.key, str(counts[event.key]))

    elif form == "batch":

        @app.processor(events, counts, out, batch=True)
        def count_all(events: Sequence[Record[str, bytes]], counts: Table[str, int], out: Sink[str, str]) -> None:
            for event in events:
                counts[event.key] += 1
            for key in dict.fromkeys(event.key for event in events):
                out.send(key, str(counts[key]))

    else:

        @app.processor(events, counts, out, columns=True)
        def count_columns(batch: Columns[str, bytes], counts: ColumnTable[str, int], out: Sink[str, str]) -> None:
            found = batch.table["key"].value_counts()
            keys = found.field("values")
            sums = pc.add(counts.get(keys), found.field("counts"))
            counts.put(keys, sums)
            out.send(keys, pc.cast(sums, pa.string()))

    return app


record, batch, columns = (_app(form) for form in FORMS)
