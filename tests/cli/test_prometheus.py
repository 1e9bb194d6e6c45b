"""Metrics, board and alerts, read by Prometheus itself: `promtool` checks them, and a server scrapes a fleet.

One rule: skipped where Prometheus is not installed (Debian has a package `prometheus`); test_metrics.py reads the same with
Prometheus' parser for Python.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.console import Console
from tests.cli.test_metrics import free_ports
from tests.docs.snippets import ROOT, blocks

DEADLINE_S = 60.0
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus here")
VARIABLES = {"$application": "bank", "$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}


def alert_rules() -> str:
    """The example of the page."""
    return next(block.text for block in blocks(ROOT / "docs/metrics.md") if block.text.startswith("groups:"))


def expressions() -> list[str]:
    """What the panels of the board ask."""
    board = json.loads((ROOT / "workers/metrics/board.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$\w+", lambda name: VARIABLES[name[0]], text) for text in found]


def promtool(*words: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        ["promtool", *map(str, words)], input=stdin, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_takes_the_alerts_and_the_boards_expressions(tmp_path: Path) -> None:
    alerts = tmp_path / "alerts.yaml"
    alerts.write_text(alert_rules())
    assert "3 rules found" in promtool("check", "rules", alerts)
    records = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    board = tmp_path / "board.yaml"
    board.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": records}]}))
    assert f"{len(records)} rules found" in promtool("check", "rules", board) and len(records) > 10


class Prometheus:
    """A server that scrapes the two instances of a fleet every 200 ms."""

    def __init__(self, folder: Path, ports: list[int], own_port: int) -> None:
        self.address = f"127.0.0.1:{own_port}"
        (folder / "alerts.yaml").write_text(alert_rules())
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": "bank", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        promtool("check", "config", folder / "prometheus.yaml")
        self._process = subprocess.Popen(
            [
                *("prometheus", "--config.file", "prometheus.yaml", "--storage.tsdb.path", "data"),
                *("--web.listen-address", self.address),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str) -> Any:
        """The data of an answer; None while there is none."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def value(self, query: str) -> float | None:
        """The value of a query that has one."""
        found = self.get(f"query?query={urllib.parse.quote(query)}")
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def scraped(console: Console, tmp_path: Path) -> Iterator[tuple[Console, Prometheus]]:
    base = free_ports(3)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    console.run("--metrics-port", str(base), "--heartbeat", "200ms", instances=2)
    server = Prometheus(folder, [base, base + 1], base + 2)
    try:
        yield console, server
    finally:
        server.close()


@needs_promtool
@needs_prometheus
@pytest.mark.processes
def test_a_server_scrapes_a_fleet(scraped: tuple[Console, Prometheus]) -> None:
    console, server = scraped
    console.pay(*((f"k{n}", n) for n in range(40)))
    console.until("all are scraped", lambda: server.value("sum(orchestrator_records_processed_total)") == 40)
    # A scrape that takes longer than 200 ms is left out, and with it what that instance shows.
    console.until("both are up", lambda: server.value('count(up{job="bank"} == 1)') == 2)
    console.until("all tasks", lambda: server.value('sum(orchestrator_tasks{role="active"})') == 8)
    console.until("one coordinator", lambda: server.value("sum(orchestrator_is_coordinator)") == 1)
    console.until("a histogram", lambda: server.value("count(orchestrator_commit_seconds_bucket)"))
    console.until("lag", lambda: server.value("sum(orchestrator_input_lag_records)") == 0)
    for text in expressions():
        found = server.get(f"query?query={urllib.parse.quote(text)}")
        assert found is not None, f"Prometheus refuses {text}"
    rules = server.get("rules")["groups"][0]["rules"]
    console.until(
        "rules were tried", lambda: all(r["health"] == "ok" for r in server.get("rules")["groups"][0]["rules"])
    )
    assert [rule["name"] for rule in rules] == ["TaskHalted", "FallsBehind", "NoCoordinator"]
    console.until("nothing is wrong, and no alert stays", lambda: server.get("alerts") == {"alerts": []})
    metadata = server.get("metadata")
    assert metadata["orchestrator_commit_seconds"][0]["type"] == "histogram"
    assert metadata["orchestrator_records_processed_total"][0]["help"]
    with urllib.request.urlopen(f"http://127.0.0.1:{page_port(server)}/metrics", timeout=10) as answer:
        promtool("check", "metrics", stdin=answer.read().decode())


def page_port(server: Prometheus) -> int:
    """The port of one of the instances that are scraped."""
    targets = server.get("targets")["activeTargets"]
    return int(targets[0]["labels"]["instance"].rpartition(":")[2])
