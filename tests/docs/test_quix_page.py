"""docs/from-quix.md on a real broker: Quix' program and ours read the same topic, and send the same alerts.

One rule: both programs are run as the page shows them, but for the broker's address. Needs quixstreams, which the project
does not install: `pip install quixstreams`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import brokers
from tests.cli.console import Console
from tests.docs.snippets import ROOT, blocks

PAGE = ROOT / "docs" / "from-quix.md"
MINUTE = 60_000
BEGIN_MS = 1_795_305_600_000  # a whole hour, so of ten minutes too
READINGS = [("s1", 30.0, 0), ("s2", 20.0, 1), ("s1", 34.0, 9), ("s1", None, 9), ("s2", 35.0, 11), ("s1", 20.0, 25)]
LATER = [("s1", 1.0, 60), ("s2", 1.0, 60)]  # closes the windows before


@pytest.mark.long
@pytest.mark.kafka
def test_both_programs_send_the_same_alerts(tmp_path: Path) -> None:
    pytest.importorskip("quixstreams")
    address = brokers.shared().address
    console = Console(tmp_path / "place", app="heat")
    try:
        for block in blocks(PAGE):
            if block.name in ("with_quix.py", "heat.py"):
                text = block.text.replace("localhost:9092", address).replace("app.run()", "app.run(timeout=20)")
                console.write(block.name, text.replace('App("heat", partitions=8)', 'App("heat", partitions=1)'))
        log = ("--log", f"kafka://{address}")
        console.run(*log, wait=False)
        lines = [
            json.dumps({"key": key, "value": {"celsius": celsius}, "timestamp_ms": BEGIN_MS + minute * MINUTE})
            for key, celsius, minute in READINGS + LATER
        ]
        done = console("produce", "heat:app", "readings", *log, stdin="\n".join(lines))
        assert done.code == 0, done

        def alerts() -> list[object]:
            shown = console("consume", "heat:app", "alerts", *log).out.splitlines()
            return [(json.loads(line)["key"], json.loads(line)["value"]) for line in shown]

        console.until("our alerts", lambda: len(alerts()) == 2)
        ours = alerts()
        assert ours == [
            ("s1", {"start_ms": BEGIN_MS, "mean": 32.0}),
            ("s2", {"start_ms": BEGIN_MS + 10 * MINUTE, "mean": 35.0}),
        ]
        ran = subprocess.run(
            [sys.executable, "with_quix.py"], cwd=console.folder, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert sorted(map(str, alerts()[len(ours) :])) == sorted(map(str, ours)), (alerts(), ran.stdout, ran.stderr)
    finally:
        console.close()
