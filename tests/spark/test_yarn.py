"""A backfill and its audit on YARN, in containers that have nothing but the packed environment: right to the last balance."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.spark.packing import needed, pack
from state.log.kafka import broker
from tests.spark.machines import ROOT, until
from tests.spark.paid import balances, driven, lines, paid
from tests.spark.yarn import RESOURCES, Yarn, why_not, yarn

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.processes]
REASON = why_not()
APPLICATION_ENDED = re.compile(r" RMAppImpl: application_\d+_\d+ State change from FINISHING to FINISHED ")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    if REASON:
        pytest.skip(REASON)
    with yarn(tmp_path_factory.mktemp("yarn")) as found:
        yield found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    made = broker.prepare(tmp_path / "broker")
    made.launch()
    try:
        yield f"kafka://{made.address}"
    finally:
        made.stop(kill=True)


def on_yarn(cluster: Yarn, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the orchestrator with its master on YARN, from an app's own folder."""
    conf = {
        "spark.archives": f"{home / 'env.tar.gz'}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.yarn.jars": f"local:{cluster.spark}/jars/*",
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
    }
    given = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words, "--master", "yarn", *given],
        cwd=home,
        env={**os.environ, **cluster.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_a_backfill_and_its_audit_in_containers(cluster: Yarn, log: str, tmp_path: Path) -> None:
    rows = paid(5_000)
    (tmp_path / "history.jsonl").write_text(lines(rows))
    (tmp_path / "bank.py").write_text((ROOT / "examples/bank.py").read_text())
    pack(tmp_path / "env.tar.gz", needed())

    where = ("--log", log, "--snapshots", str(tmp_path / "snapshots"))
    done = on_yarn(cluster, tmp_path, "backfill", "bank:app", "payments=history.jsonl", *where)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.said()}"
    assert balances(log) == driven(rows)

    audited = on_yarn(cluster, tmp_path, "verify", "bank:app", "payments=history.jsonl", *where, "--json")
    assert audited.returncode == 0, f"{audited.stdout}\n{audited.stderr}\n{cluster.said()}"
    containers = {path.name for path in (cluster.home / "logs").glob("application_*/container_*")}
    assert len(containers) >= 6, "a master and two executors for each command"
    until("both applications are finished", lambda: len(APPLICATION_ENDED.findall(cluster.log(RESOURCES))) == 2)
