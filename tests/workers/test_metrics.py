"""Metrics: the page is what Prometheus' own parser reads, and what the docs name is what there is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.main import main
from orchestrator.errors import WrongUse
from workers.connection.listening import metrics_port_of_instance
from workers.metrics import families as fam
from workers.metrics import otlp
from workers.metrics.measures import Measures
from workers.metrics.page import page
from workers.metrics.server import CONNECTIONS_MAX, HEAD_BYTES, MetricsServer

SUFFIXES = {fam.COUNTER: ("",), fam.GAUGE: ("",), fam.HISTOGRAM: ("_bucket", "_sum", "_count")}
ROOT = Path(__file__).resolve().parent.parent.parent


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        sample.name: [(one.labels, one.value) for one in family.samples if one.name == sample.name]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_was_measured_is_on_the_page() -> None:
    measures = Measures(fam.OF_WORKER)
    topic = 'a "b"\\\nc'
    measures.add(fam.PROCESSED, 3, "0_1", topic)
    measures.add(fam.PROCESSED, 4, "0_1", topic)
    for value in (0.001, 0.0011, 99.0):
        measures.observe(fam.COMMIT_SECONDS, value)
    measures.put_all(fam.INPUT_LAG, {("0_1",): 5, ("0_2",): 6})
    measures.put_all(fam.INPUT_LAG, {("0_2",): 7.5})
    found = parsed(page([({"worker": "i1"}, measures.samples())]))
    assert found["orchestrator_records_processed_total"] == [({"worker": "i1", "task": "0_1", "topic": topic}, 7.0)]
    assert found["orchestrator_input_lag_records"] == [({"worker": "i1", "task": "0_2"}, 7.5)]
    buckets = {labels["le"]: count for labels, count in found["orchestrator_commit_seconds_bucket"]}
    assert (buckets["0.001"], buckets["0.0025"], buckets["10"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert found["orchestrator_commit_seconds_count"] == [({"worker": "i1"}, 3.0)]
    assert found["orchestrator_commit_seconds_sum"][0][1] == pytest.approx(99.0021)


def test_samples_are_a_copy() -> None:
    measures = Measures(fam.OF_WORKER)
    measures.add(fam.PROCESSING, 1, "0_0")
    before = measures.samples()
    measures.add(fam.PROCESSING, 1, "0_0")
    assert before[fam.PROCESSING.name] == [(("0_0",), [1.0])]


def test_one_block_a_metric_whoever_measured_it() -> None:
    first, second = Measures(fam.OF_WORKER), Measures(fam.OF_WORKER)
    text = page([({"worker": "i1.1"}, first.samples()), ({"worker": "i1.2"}, second.samples())])
    heads = re.findall(r"# TYPE (\S+)", text)
    assert len(heads) == len(set(heads)) and text.count("orchestrator_log_waiting{") == 2
    assert text.endswith("\n")


def test_the_table_of_the_docs_is_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(orchestrator_\w+)` \| (\w+) \| ([^|]*)\|", (ROOT / "docs/metrics.md").read_text(), re.M)
    assert [(name, kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows] == [
        (family.name, family.kind, list(family.labels)) for family in fam.FAMILIES
    ]


def test_names_and_kinds_are_those_of_prometheus() -> None:
    for family in fam.FAMILIES:
        assert re.fullmatch(r"orchestrator_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == fam.COUNTER), family.name
        assert bool(family.buckets) == (family.kind == fam.HISTOGRAM) and list(family.buckets) == sorted(family.buckets)


def test_each_instance_has_a_port_of_its_own() -> None:
    assert [metrics_port_of_instance(9100, number) for number in (1, 2, 3)] == [9100, 9101, 9102]
    assert metrics_port_of_instance(0, 3) == 0 and metrics_port_of_instance(65_535, 2) == 0


# ---- the port


async def asked(port: int, request: bytes) -> tuple[int, bytes, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, head, body


@pytest.fixture
async def port():  # type: ignore[no-untyped-def]
    server = MetricsServer(lambda: "up 1\n")
    address = await server.open("127.0.0.1", 0)
    yield int(address.split(":")[2].partition("/")[0])
    await server.close()


async def test_requests_and_what_is_none(port: int) -> None:
    code, head, body = await asked(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (code, body) == (200, b"up 1\n") and b"text/plain; version=0.0.4" in head
    code, head, body = await asked(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (code, body) == (200, b"") and b"Content-Length: 5" in head
    assert (await asked(port, b"GET /secret HTTP/1.1\r\n\r\n"))[0] == 404
    assert (await asked(port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
    assert (await asked(port, b"\x00\x01\x02\r\n\r\n"))[0] == 400
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n" + b"x" * HEAD_BYTES * 2))[0] == 0  # ended, without an answer
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_those_who_only_connect_keep_nobody_out(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(idle[0][0].read(), 10) == b""  # the oldest made way
    for _, writer in idle:
        writer.close()


async def test_the_end_waits_for_nobody_who_only_connected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.metrics.server.REQUEST_S", 3600.0)
    server = MetricsServer(lambda: "")
    address = await server.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[2].partition("/")[0]))
    async with asyncio.timeout(30):
        await server.close()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert not caplog.records


async def test_a_port_in_use_is_one_line(port: int) -> None:
    with pytest.raises(WrongUse, match=f"cannot serve metrics on 127.0.0.1:{port} .*; choose another --metrics-port"):
        await MetricsServer(lambda: "").open("127.0.0.1", port)


# ---- the board


def test_the_board_shows_metrics_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board"]) == 0
    board = json.loads(capsys.readouterr().out)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and board["uid"] and board["schemaVersion"]
    exprs = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    there = {family.name + suffix for family in fam.FAMILIES for suffix in SUFFIXES[family.kind]}
    named = {name for expr in exprs for name in re.findall(r"orchestrator_[a-z_]+", expr)}
    assert exprs and named <= there, named - there
    corners = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]}
    assert len(corners) == len(board["panels"]), "panels that lie on each other"


def test_the_alerts_of_the_docs_use_metrics_that_there_are() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    named = set(re.findall(r"orchestrator_[a-z_]+", text.partition("groups:")[2]))
    assert len(named) == 3 and named <= {family.name for family in fam.FAMILIES}


@pytest.mark.parametrize(
    ("value", "shown"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (2.0, "2"), (0.5, "0.5")]
)
def test_numbers_are_written_as_the_format_has_them(value: float, shown: str) -> None:
    family = next(one for one in fam.FAMILIES if one.kind == "gauge" and not one.labels)
    assert page([({}, {family.name: [((), [value])]})]).splitlines()[-1] == f"{family.name} {shown}"


def test_a_sum_of_a_worker_that_was_started_again_has_a_start_of_its_own() -> None:
    """A collector takes a sum that falls, with the start that it had, for one of the past, or for a negative rate."""
    starts, starts_of = otlp.Starts(100), []
    for now_ns, count, seconds in ((200, 5.0, 1), (300, 7.0, 3), (400, 2.0, 2), (500, 3.0, 4)):
        measures = Measures(fam.OF_WORKER)
        measures.add(fam.PROCESSED, count, "0_1", "t")
        for _ in range(seconds):
            measures.observe(fam.COMMIT_SECONDS, 0.1)
        measures.put_all(fam.INPUT_LAG, {("0_1",): 9 - count})
        data = otlp.metrics_data([({"worker": "1"}, measures.samples())], {}, starts, now_ns)
        found = {one.name: one.data.data_points[0] for one in data.resource_metrics[0].scope_metrics[0].metrics}
        starts_of.append(
            [found[one.name].start_time_unix_nano for one in (fam.PROCESSED, fam.COMMIT_SECONDS, fam.INPUT_LAG)]
        )
    assert starts_of == [[100, 100, 100], [100, 100, 100], [300, 300, 100], [300, 300, 100]]
