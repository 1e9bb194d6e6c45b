"""The tables of docs/structured-streaming.md come from what was seen: the program that writes them, given what a run kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.snippets import ROOT

STEADY: dict[str, Any] = {
    "label": "a job",
    "guarantee": "at least once",
    "rate": 1_000,
    "one": {"began": 100.0, "ended": 110.0, "share": 0.25},
    "change": {"began": 110.0, "ended": 120.0, "share": None},
    "two": {"began": 120.0, "ended": 130.0, "share": None},
    "how": "another driver",
    "took_s": 4.25,
    "driver_s": 3.5,
    "seen": {
        # 100 records of the first window wait 1 to 100 ms, the one of the change 5 s; none was written in the second.
        "answers": [(101.0 + n / 100, 101.0 + n / 100 + (n + 1) / 1e3) for n in range(100)] + [(111.0, 116.0)],
        # A gap of 0.4 s in the first window, one of 5 s that began before the change and ends within it.
        "outputs": [[99.0, 99.1, *(100 + n * 0.4 for n in range(25)), 114.6, 115.0], *([] for _ in range(7))],
        "repeated": 12,
    },
    "wrong": 3,
}
DRAIN: dict[str, Any] = {
    "label": "a job",
    "guarantee": "exactly once",
    "input": "hot",
    "records": 1_000_000,
    "rate": 100_000.0,
    "cpu_s": 0.0000123,
    "outputs": 20_000,
    "wrong": 0,
}


def shown(tmp_path: Path, **measured: Any) -> str:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"steady": [], "drains": [], "loads": [], "version": "", **measured}))
    command = [sys.executable, "-m", "benchmarks.structured_streaming", "--parts", "", "--into", str(kept), "--dry"]
    around = {name: value for name, value in os.environ.items() if name != "STREAMING_PYTHON"}
    return subprocess.run(command, cwd=ROOT, env=around, check=True, capture_output=True, text=True).stdout


def test_latencies_gaps_and_costs_are_those_that_were_seen(tmp_path: Path) -> None:
    text = shown(tmp_path, steady=[STEADY], drains=[DRAIN], loads=[0.5, 2.0], version="4.2.0")
    assert "| a job | at least once | 50 | 99 | 100 | 25% | - | - | - | - |" in text
    assert "| a job | another driver | 4.2 (3.5) | 5,000 | 5,000 | 5,000 | 12 | 3 |" in text
    assert "| hot | a job | exactly once | 100,000 | 12.3 | 20,000 | 0 |" in text
    assert "Spark 4.2.0; load average 0.5 to 2.0" in text and "not measured" not in text


def test_what_was_not_measured_is_said_and_has_no_row(tmp_path: Path) -> None:
    text = shown(tmp_path, drains=[DRAIN], loads=[1.0])
    assert "Structured Streaming was not measured: STREAMING_PYTHON names no Python" in text
    assert "Latency" not in text and text.count("| hot |") == 1
