"""A backfill and its audit on YARN, in containers that have nothing but the packed environment: right to the last balance."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import bank
from orchestrator.testing import Driver
from pipeline.spark.packing import needed, pack
from state.log.kafka import broker
from tests.spark.machines import ROOT, until
from tests.spark.yarn import RESOURCES, Yarn, why_not, yarn
from workers.commands.consume import read_all
from workers.log.logs import open_log

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
        [sys.executable, "-m", "orchestrator.cli.main", *words, "--master", "yarn", *given],
        cwd=home,
        env={**os.environ, **cluster.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


async def test_a_backfill_and_its_audit_in_containers(cluster: Yarn, log: str, tmp_path: Path) -> None:
    choice = random.Random(16)
    paid = [(f"account-{choice.randrange(200)}", choice.randrange(-50, 60)) for _ in range(5_000)]
    now = time.time_ns() // 1_000_000  # brokers remove what is older than a week, also while this runs
    rows = [
        {"key": who, "value": {"account": who, "amount": amount}, "timestamp_ms": now + at}
        for at, (who, amount) in enumerate(paid, -len(paid))
    ]
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "bank.py").write_text((ROOT / "examples/bank.py").read_text())
    pack(tmp_path / "env.tar.gz", needed())

    where = ("--log", log, "--snapshots", str(tmp_path / "snapshots"))
    done = on_yarn(cluster, tmp_path, "backfill", "bank:app", "payments=history.jsonl", *where)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.said()}"
    expected = driven(paid)
    assert await balances(log) == expected

    audited = on_yarn(cluster, tmp_path, "verify", "bank:app", "payments=history.jsonl", *where, "--json")
    assert audited.returncode == 0, f"{audited.stdout}\n{audited.stderr}\n{cluster.said()}"
    containers = {path.name for path in (cluster.home / "logs").glob("application_*/container_*")}
    assert len(containers) >= 6, "a master and two executors for each command"
    until("both applications are finished", lambda: len(APPLICATION_ENDED.findall(cluster.log(RESOURCES))) == 2)


def driven(paid: list[tuple[str, int]]) -> dict[str, int]:
    with Driver(bank.app) as here:
        for who, amount in paid:
            here.send(bank.payments, who, bank.Payment(who, amount))
        return dict(here.table(bank.balances))


async def balances(url: str) -> dict[str, int]:
    """As the changelog has them."""
    found: dict[str, int] = {}
    log = await open_log(url, create=False)
    try:
        for _, record in await read_all(log, "bank-balances-changelog"):
            found[record.key.decode()] = bank.balances.value_codec.decode(record.value)
    finally:
        await log.close()
    return found
