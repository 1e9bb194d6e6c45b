"""Metrics that a fleet sends by OpenTelemetry, as a collector gets them."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.cli.console import Console


class Collector(ThreadingHTTPServer):
    """Keeps what each instance sent last: its metrics by name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.last: dict[str, dict[str, Any]] = {}
        Thread(target=self.serve_forever, daemon=True).start()

    def total(self, name: str) -> float:
        points = [p for metrics in list(self.last.values()) if name in metrics for p in metrics[name].sum.data_points]
        return sum(point.as_double for point in points)


class Requests(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        [found] = ExportMetricsServiceRequest.FromString(body).resource_metrics
        who = {one.key: one.value.string_value for one in found.resource.attributes}
        assert self.path == "/v1/metrics" and who["service.name"] == "bank"
        self.server.last[who["service.instance.id"]] = {m.name: m for m in found.scope_metrics[0].metrics}
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.processes
def test_a_collector_gets_what_the_page_shows(console: Console, collector: Collector) -> None:
    console.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    console.environment["OTEL_METRIC_EXPORT_INTERVAL"] = "200"
    console.run("--heartbeat", "200ms", instances=2)
    console.pay(*((f"k{n}", n) for n in range(30)))
    console.until("all are sent", lambda: collector.total("orchestrator_records_processed_total") == 30)
    assert set(collector.last) == {"i1", "i2"}
    metrics = collector.last["i1"]
    processed = metrics["orchestrator_records_processed_total"].sum
    assert processed.is_monotonic and {a.key for a in processed.data_points[0].attributes} >= {"task", "worker"}
    commits = metrics["orchestrator_commit_seconds"].histogram.data_points[0]
    assert commits.count == sum(commits.bucket_counts) > 0
    assert len(commits.bucket_counts) == len(commits.explicit_bounds) + 1
    assert metrics["orchestrator_workers"].gauge.data_points[0].as_double == 1


@pytest.mark.processes
def test_a_collector_that_is_not_there_costs_nothing(console: Console) -> None:
    console.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
    fleet = console.run()
    console.pay(("ann", 5))
    assert console.balance("ann") == "5\n"
    fleet.terminate()
    assert console.end(fleet) == 0 and "Traceback" not in console.said("run")
