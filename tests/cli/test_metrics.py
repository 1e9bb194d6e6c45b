"""Metrics of real processes, read as Prometheus reads them."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.console import Console

pytestmark = pytest.mark.processes

SOMETIMES = """
from orchestrator import App
app = App("sometimes", partitions=2)
numbers = app.topic("numbers", key=str, value=int)
letters = app.topic("letters", key=bytes, value=bytes)
sums = app.table("sums", key=str, value=int, default=int)

@app.processor(numbers, sums, on_error={ValueError: "skip", KeyError: letters})
def add(record, sums):
    if record.value == 1:
        raise ValueError("one")
    if record.value == 2:
        raise KeyError("two")
    sums[record.key] += record.value
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has, below those that the kernel deals."""
    for base in range(21_000 + os.getpid() % 9_000, 32_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("127.0.0.1", base + number))
            return base
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


class Page:
    """What one instance serves."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.place = f"{host}:{port}"

    def rows(self, name: str) -> list[tuple[dict[str, str], float]]:
        try:
            with urllib.request.urlopen(f"http://{self.place}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return []
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"orchestrator_{name}"
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for found, value in self.rows(name) if labels.items() <= found.items())


def sums(pages: list[Page], name: str, **labels: str) -> Callable[[], float]:
    return lambda: sum(page.total(name, **labels) for page in pages)


def test_what_was_processed_is_counted_wherever_it_was(console: Console) -> None:
    """Two instances of two workers each; one more joins, and its tasks' hand-overs are timed by the coordinator."""
    port = free_ports(3)
    pages = [Page(port + number) for number in range(3)]
    console.bank()
    words = ("--metrics-port", str(port), "--metrics-host", "127.0.0.1", "--workers", "2", "--heartbeat", "200ms")
    run = console.run(*words, instances=2)
    console.pay(*((f"k{number}", number) for number in range(40)))
    processed = sums(pages, "records_processed_total", application="bank", topic="payments")
    console.until("40 records", lambda: processed() == 40)
    assert sum(page.total("commit_records_sum") for page in pages) == 40
    assert sum(page.total("commit_seconds_count") for page in pages) > 0
    assert sum(page.total("processing_seconds_total") for page in pages) > 0
    assert sorted(page.total("workers") for page in pages) == [0, 2, 2]
    assert {labels["worker"] for labels, _ in pages[0].rows("tasks")} == {"i1.1", "i1.2"}
    assert {labels["name"] for labels, _ in pages[1].rows("instance_info")} == {"i2"}
    console.until("8 tasks", lambda: sum(len(page.rows("input_lag_records")) for page in pages) == 8)
    tasks = {labels["task"] for page in pages for labels, _ in page.rows("input_lag_records")}
    assert tasks == {f"0_{number}" for number in range(8)}
    console.until("no lag", lambda: sums(pages, "input_lag_records")() == 0)
    restores = sums(pages, "restores_total")()
    assert restores >= 8, "a worker that joins late has some of its tasks restored a second time"
    assert sums(pages, "restore_seconds_count")() == restores
    assert sums(pages, "is_coordinator")() == 1 and pages[0].total("coordinator_term") == 1

    assert console.here("scale-up", "bank", "--by", "1", "--wait").code == 0
    console.until("hand-overs", lambda: sums(pages, "hand_overs_total")() >= 1)
    console.until("tasks of the third", lambda: pages[2].total("tasks", role="active") >= 1)
    host = next(page for page in pages if page.total("is_coordinator"))
    assert host.total("hand_over_pause_seconds_count") <= host.total("hand_overs_total")

    def tasks_with_a_size(pages: list[Page]) -> set[str]:
        return {labels["task"] for page in pages for labels, _ in page.rows("state_bytes")}

    console.until("sizes at the third", lambda: tasks_with_a_size(pages[2:]))
    moved = tasks_with_a_size(pages[2:])
    console.until(  # workers report every second
        "no gauge of a task that has moved where it was", lambda: not moved & tasks_with_a_size(pages[:2])
    )
    console.pay(("k1", 1))
    console.until("one more", lambda: processed() == 41)
    run.send_signal(signal.SIGTERM)
    assert console.end(run) == 0


@pytest.mark.long
def test_what_was_left_out_a_crash_and_a_standby(console: Console) -> None:
    port = free_ports(2)
    pages = [Page(port), Page(port + 1)]
    console.app = "sometimes"
    console.write("sometimes.py", SOMETIMES)
    console.run("--metrics-port", str(port), "--standbys", "1", "--heartbeat", "200ms", instances=2)
    lines = [json.dumps({"key": f"k{n}", "value": n % 3}) for n in range(30)]
    assert console.here("produce", "sometimes:app", "numbers", stdin="\n".join(lines)).code == 0
    console.until("records", lambda: sums(pages, "records_processed_total", topic="numbers")() == 30)
    assert sums(pages, "records_skipped_total", topic="numbers")() == 10
    assert sums(pages, "records_dead_lettered_total", topic="numbers")() == 10
    console.until("standbys", lambda: sum(len(page.rows("standby_lag_records")) for page in pages) == 2)
    console.until("level", lambda: sums(pages, "standby_lag_records")() == 0)

    [pid] = [row["pid"] for row in console.here("status", "sometimes", "--json").json["instances"] if row["id"] == "i2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert pages[1].total("worker_report_age_seconds") >= 0  # a worker that stands still holds up no scrape
        console.until("an old report", lambda: pages[1].total("worker_report_age_seconds") > 2)
    finally:
        os.kill(pid, signal.SIGKILL)
    console.until("the crash", lambda: pages[1].total("worker_crashes_total") == 1)


def test_metrics_are_of_the_address_that_was_named(console: Console) -> None:
    port = free_ports(1)
    console.bank().run("--metrics-port", str(port), "--metrics-host", "127.0.0.2")
    assert not Page(port).rows("workers")
    console.until("a worker's report", lambda: Page(port, "127.0.0.2").total("workers") == 1)


def test_a_port_that_is_taken_ends_with_a_line(console: Console) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = console.bank()("run", "bank:app", "--metrics-port", str(port))
    assert done.code == 2 and f"error: cannot serve metrics on 127.0.0.1:{port}" in done.err, done
    assert "Traceback" not in done.err


@pytest.mark.parametrize("host", ["nosuchhost.invalid", "192.0.2.1"])  # unknown, and of no machine
def test_a_host_that_cannot_be_is_refused_before_anything_is_started(console: Console, host: str) -> None:
    """The fleet ended with that, and with the instance that it had begun."""
    port = free_ports(1)
    done = console.bank().here("run", "bank:app", "--metrics-port", str(port), "--metrics-host", host)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith(f"error: cannot serve metrics on {host}:{port} (") and done.err.count("\n") == 1, done
    assert not list(console.folder.glob(".orchestrator/state/bank/*/journal.jsonl"))
    assert console.here("status", "bank").code == 2, "the log does not know the app"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--metrics-port", "70000"), "'70000' is no port"),
        (("--metrics-port", "x"), "not a whole number"),
        (("--metrics-host", "0.0.0.0"), "--metrics-host has no effect here: metrics are not served"),
    ],
)
def test_wrong_use(console: Console, words: tuple[str, str], said: str) -> None:
    done = console.bank().here("run", "bank:app", *words)
    assert done.code == 2 and said in done.err
    assert not Path(console.folder, ".orchestrator").exists()
