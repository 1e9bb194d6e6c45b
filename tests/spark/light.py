"""An app that keeps what its worker has imported, and a backfill of it: see one_java.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from orchestrator import App, Record, Table

HEAVY = ("pandas", "workers.fleet.client")
app = App("light", partitions=2)
marks = app.topic("marks", key=str, value=int)
imported = app.table("imported", key=str, value=str)


@app.processor(marks, imported)
def note(record: Record[str, int], imported: Table[str, str]) -> None:
    imported[record.key] = " ".join(name for name in HEAVY if name in sys.modules)


async def stored(path: Path) -> list[str]:
    from state.log.sqlite import open_sqlite  # workers import this module: no more than an app has
    from workers.commands.consume import read_all

    log = await open_sqlite(path, create=False)
    try:
        return [
            str(imported.value_codec.decode(record.value or b""))
            for _, record in await read_all(log, imported.changelog)
        ]
    finally:
        await log.close()


def facts(folder: Path) -> dict[str, object]:
    """What a backfill of it counted, and what it had to have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline.spark.backfill import backfill
    from pipeline.spark.session import spark_session, stop
    from workers.commands.cluster import Cluster

    history = folder / "marks.parquet"
    pq.write_table(
        pa.table({"key": [f"k{n}" for n in range(20)], "value": range(20), "timestamp_ms": range(20)}), history
    )
    session = spark_session("light", Cluster("local[2]"), is_for_tasks=True)
    try:
        log = f"sqlite:{folder / 'log.db'}"
        running = backfill(
            "tests.spark.light:app",
            log,
            folder / "s",
            history={"marks": [str(history)]},
            say=lambda _: None,
            session=session,
        )
        done = asyncio.run(running)
        has_sql = session._made is not None
    finally:
        stop(session)
    return {"records": done["records_in"], "sql": has_sql, "imported": asyncio.run(stored(folder / "log.db"))}
