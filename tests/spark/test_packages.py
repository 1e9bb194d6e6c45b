"""History in a format whose jar Spark fetches: `--packages`, as docs/spark.md names it for this version of Spark."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

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


def jar_of(history: str) -> str:
    """The jar that docs/spark.md names for it, in the first column of versions."""
    text = (ROOT / "docs/spark.md").read_text()
    found = re.search(rf"^\| {history}[^|]*\| `([^`]+)` \|", text, re.MULTILINE)
    assert found is not None, f"docs/spark.md names no jar for {history}"
    return found.group(1)


async def test_avro_files_are_history(console: Console) -> None:
    jar, files = jar_of("Avro"), console.folder / "payments.avro"
    words = [sys.executable, "-c", WRITE, jar, str(files)]
    made = await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if "unresolved dependency" in made.stderr + made.stdout:
        pytest.skip(f"{jar} cannot be fetched here")
    assert made.returncode == 0, made.stderr[-2_000:]
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
