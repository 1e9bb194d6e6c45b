"""A setting of the command line that can do nothing beside the others is refused, in one line and with 2. What the
environment and files give serves several commands, and may be idle in some."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.cli.settings import TABLE, refuse_idle
from tests.attacks.test_tls import certificate
from tests.cli.console import Console

STATELESS = """
from orchestrator import App, Record

app = App("plain", partitions=2)
payments = app.topic("payments", key=str, value=dict)


@app.processor(payments)
def see(payment: Record[str, dict]) -> None:
    print(payment.key)
"""
BROKERS = ("--log", "kafka://127.0.0.1:1")
ALONE = "listen to this machine alone"
NO_LEARNERS = "only the protocol learner has learners"
REFUSED = [
    ("bank", ["--master", "local[2]"], "give --on spark"),
    ("bank", ["--kafka-config", "client.properties"], "the log is sqlite:"),
    ("bank", ["--synchronous", "FULL", *BROKERS], "brokers decide"),
    ("bank", ["--task-weights", "0_1=2", "--weights", "rate"], "weights are measured"),
    ("bank", ["--ready", "conservative", "--protocol", "eager"], NO_LEARNERS),
    ("bank", ["--learner-timeout", "9s", "--protocol", "cooperative"], NO_LEARNERS),
    ("bank", ["--acceptable-recovery-time", "9s", "--protocol", "eager"], NO_LEARNERS),
    ("bank", ["--max-learners", "3", "--protocol", "eager"], "neither learners nor standbys"),
    ("bank", ["--restore-rate-limit", "1MiB", "--protocol", "eager"], "neither learners nor standbys"),
    ("plain", ["--restore-rate-limit", "1MiB"], "neither learners nor standbys"),
    ("plain", ["--standbys", "1"], "the app has no tables"),
    ("plain", ["--snapshots", "old"], "the app has no tables"),
    ("bank", ["--zone", "east"], "give --standbys"),
    ("bank", ["--zone", "east", "--standbys", "0"], "give --standbys"),
    ("bank", ["--metrics-host", "127.0.0.2"], "give --metrics-port"),
    ("bank", ["--advertise", "gate:7000"], "give --listen with one that is"),
    ("bank", ["--tls-ca", "fleet.pem"], ALONE),
    ("bank", ["--tls-cert", "fleet.pem", "--tls-key", "fleet.key"], ALONE),
    ("bank", ["--tls-key", "fleet.key", "--tls-cert", "fleet.pem", "--listen", "127.0.0.1:0"], ALONE),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    found = Console(tmp_path_factory.mktemp("idle") / "place").bank()
    found.write("plain.py", STATELESS)
    if shutil.which("openssl"):
        certificate(found.folder, "fleet")
    yield found
    found.close()


@pytest.mark.parametrize(("app", "words", "said"), REFUSED, ids=lambda value: " ".join(value))
def test_a_flag_that_can_do_nothing_is_refused(place: Console, app: str, words: list[str], said: str) -> None:
    if "fleet.pem" in words and not shutil.which("openssl"):
        pytest.skip("certificates are made by openssl")
    done = place.here("run", f"{app}:app", *words)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: --") and done.err.count("\n") == 1
    assert "has no effect here: " in done.err and said in done.err, done.err
    assert not (place.folder / ".orchestrator").exists()


@pytest.mark.skipif(not shutil.which("openssl"), reason="certificates are made by openssl")
def test_machines_of_a_cluster_are_open_addresses(place: Console) -> None:
    words = ("--on", "spark", "--master", "spark://elsewhere:7077", "--tls-cert", "fleet.pem", "--tls-key", "fleet.key")
    done = place.here("run", "bank:app", *BROKERS, *words)
    assert done.code == 2 and "no effect" not in done.err
    assert "name files for --secret-file that lie at the same path on every machine" in done.err, done.err


def test_every_setting_with_a_need_is_refused_without_it() -> None:
    needy = {name for name, setting in TABLE.items() if setting.need is not None}
    assert needy == {word.removeprefix("--") for _, words, _ in REFUSED for word in words if word[:2] == "--"} & needy


def test_what_serves_several_commands_may_be_idle_in_one(console: Console) -> None:
    """Spark's master of a file is that of `backfill`, too; here instances are processes."""
    console.write("orchestrator.toml", 'master = "spark://elsewhere:7077"\n')
    console.environment["ORCHESTRATOR_ZONE"] = "east"
    fleet = console.run()
    assert console.here("status", "bank").code == 0
    fleet.terminate()
    assert console.end(fleet) == 0, console.said("run")
    assert (console.folder / "run.err").read_text() == ""


def test_what_can_act_is_not_refused() -> None:
    values: dict[str, Any] = {"protocol": "learner", "standbys": 1, "weights": "given", "on": "spark"}
    values |= {"has tables": True, "embedded log": True, "open address": True, "metrics-port": 9100}
    refuse_idle(TABLE.keys() - {"advertise"}, values)
    refuse_idle(["advertise"], {**values, "on": "processes"})
