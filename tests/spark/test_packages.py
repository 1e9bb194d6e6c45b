"""History in a format whose jar Spark fetches: `--packages`, as docs/spark.md names it for this version of Spark."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from state.log.sqlite import open_sqlite
from tests.cli.console import ROOT, Console
from workers.commands.consume import read_all

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.processes]
DEADLINE_S = 300
WRITE = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.jars.packages", sys.argv[1]).getOrCreate()
rows = [(f"a{n % 7}", n, n * 1_000) for n in range(1_000)]
session.createDataFrame(rows, "account string, amount bigint, at bigint").repartition(3).write.format("avro").save(sys.argv[2])
"""


NOTES = """
from typing import Any
from orchestrator import App, Record, Table
app = App("notes", partitions=2)
notes = app.topic("notes", key=str, value=dict)
last = app.table("last", key=str, value=dict)

@app.processor(notes, last)
def keep(note: Record[str, dict[str, Any]], last: Table[str, dict[str, Any]]) -> None:
    last[note.key] = note.value
"""
SEVERAL = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.jars.packages", sys.argv[1]).getOrCreate()
for columns in ("'plain' as text", "'more' as text, 7L as count", "named_struct('a', 1) as inner"):
    name = columns.split("'")[1]
    session.sql(f"select '{name}' as key, 5L as at, {columns}").write.mode("append").format("avro").save(sys.argv[2])
session.sql("select 'x' as key, 5L as at, 'text' as count").write.format("avro").save(sys.argv[2] + "-two")
"""


def jar_of(history: str) -> str:
    """The jar that docs/spark.md names for it, in the first column of versions."""
    text = (ROOT / "docs/spark.md").read_text()
    found = re.search(rf"^\| {history}[^|]*\| `([^`]+)` \|", text, re.MULTILINE)
    assert found is not None, f"docs/spark.md names no jar for {history}"
    return found.group(1)


async def written_by(script: str, jar: str, files: Path) -> None:
    words = [sys.executable, "-c", script, jar, str(files)]
    made = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if "unresolved dependency" in made.stderr + made.stdout:
        pytest.skip(f"{jar} cannot be fetched here")
    assert made.returncode == 0, made.stderr[-2_000:]


async def test_avro_files_of_several_schemas_have_the_columns_of_all(console: Console) -> None:
    """Spark takes the schema of one file: what others had besides was lost without a word."""
    jar, files = jar_of("Avro"), console.folder / "my [old] notes.avro"
    await written_by(SEVERAL, jar, files)
    console.write("notes.py", NOTES)
    at = ("--key", "key", "--timestamp", "at", "--packages", jar)
    done = console("backfill", "notes:app", "--from", f"notes=avro:{console.folder}/my*notes.avro", *at)
    assert done.code == 0, done
    log = await open_sqlite(console.folder / ".orchestrator/notes.db", create=False)
    written = await read_all(log, "notes-last-changelog")
    await log.close()
    found = {(r.key or b"").decode(): json.loads(r.value or b"") for _, r in written}
    assert found == {
        "plain": {"count": None, "inner": None, "text": "plain"},
        "more": {"count": 7, "inner": None, "text": "more"},
        "a": {"count": None, "inner": {"a": 1}, "text": None},
    }
    done = console(
        "backfill",
        "notes:app",
        "--from",
        f"notes=avro:{console.folder}/my*notes.avro*",
        *at,
        "--log",
        "sqlite:other.db",
    )
    assert done.code == 2 and "its files have a column of two types" in done.err and done.err.count("\n") == 1, done


async def test_avro_files_are_history(console: Console) -> None:
    jar, files = jar_of("Avro"), console.folder / "payments.avro"
    await written_by(WRITE, jar, files)
    at = ("--key", "account", "--timestamp", "at")
    done = console("backfill", "bank:app", "--from", f"payments=avro:{files}", "--packages", jar, *at)
    assert done.code == 0, done
    log = await open_sqlite(console.folder / ".orchestrator/bank.db", create=False)
    written = await read_all(log, "bank-balances-changelog")
    await log.close()
    sums = {r.key.decode(): int.from_bytes(r.value or b"", "big", signed=True) for _, r in written if r.key}
    assert sums == {f"a{k}": sum(n for n in range(1_000) if n % 7 == k) for k in range(7)}

    done = console("backfill", "bank:app", "--from", f"payments=avro:{files}", *at, "--log", "sqlite:other.db")
    assert done.code == 2 and "avro" in done.err and done.err.count("\n") == 1, done
