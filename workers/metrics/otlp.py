"""Metrics sent by OpenTelemetry: the same samples as on the page, over OTLP, where OTEL_EXPORTER_OTLP_ENDPOINT names a collector.

One rule: OpenTelemetry's own variables say where to and how often (its SDK reads them again), and it sends in a thread; a collector that does not answer
costs the instance nothing. Needs the extra `otel`. Opened by workers/instance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from orchestrator.clocks import wall_ms
from workers.metrics.families import COUNTER, FAMILIES, Family
from workers.metrics.measures import Samples

log = logging.getLogger("orchestrator.metrics")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EVERY, EVERY_MS = "OTEL_METRIC_EXPORT_INTERVAL", 60_000  # as the specification of the SDK has it
Sources = Sequence[tuple[Mapping[str, str], Samples]]


def is_collected(environment: Mapping[str, str]) -> bool:
    """Whether the environment of the process names a collector."""
    return any(environment.get(name) for name in ENDPOINTS)


class OtlpExport:
    """Sends what `sources` returns, again and again, from `open` to `close`."""

    def __init__(
        self, sources: Callable[[], Sources], service: str, instance: str, environment: Mapping[str, str]
    ) -> None:
        self._sources = sources
        self._environment = environment
        self._who = {"service.name": service, "service.instance.id": instance}
        self._exporter: Any = None
        self._sending: asyncio.Task[None] | None = None

    def open(self) -> Self:
        """Begins to send, where a collector is named. What is missing for it is a warning: the app runs without it."""
        if not is_collected(self._environment):
            return self
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ModuleNotFoundError:
            log.warning(
                "no metrics are sent to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names: OpenTelemetry's SDK is not "
                "installed; pip install 'stream-orchestrator[otel]'"
            )
            return self
        every = self._environment.get(EVERY, "")
        every_s = (int(every) if every.isdigit() and int(every) > 0 else EVERY_MS) / 1000
        self._exporter = OTLPMetricExporter()
        self._sending = asyncio.get_running_loop().create_task(self._send(every_s))
        return self

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._exporter.shutdown()

    async def _send(self, every_s: float) -> None:
        starts = Starts(wall_ms() * 1_000_000)
        while True:
            data = metrics_data(self._sources(), self._who, starts, wall_ms() * 1_000_000)
            await asyncio.to_thread(self._exporter.export, data)  # its failures are in the SDK's own log
            await asyncio.sleep(every_s)


class Starts:
    """Since when each sum counts. One that has become smaller began anew, with its worker: a sum that falls while its start stays
    is no sum to a collector (OpenTelemetry's metrics data model, "Resets and gaps")."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = self._last_ns = began_ns
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[int, float]] = {}

    def of(self, name: str, attributes: Mapping[str, str], total: float) -> int:
        """The start of this sum (wall ns), which is `total` now."""
        key = name, frozenset(attributes.items())
        began_ns, before = self._known.get(key, (self._began_ns, 0.0))
        if total < before:
            began_ns = self._last_ns
        self._known[key] = began_ns, total
        return began_ns

    def looked(self, now_ns: int) -> None:
        self._last_ns = now_ns


def metrics_data(sources: Sources, who: Mapping[str, str], starts: Starts, now_ns: int) -> Any:
    """Returns OpenTelemetry's form of the samples: counters are sums and histograms distributions since their starts."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    found = [metric for family in FAMILIES if (metric := _metric(family, sources, starts, now_ns)) is not None]
    starts.looked(now_ns)
    scope = ScopeMetrics(scope=InstrumentationScope("orchestrator"), metrics=found, schema_url="")
    resource = Resource.create(dict(who))
    return MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Family, sources: Sources, starts: Starts, now_ns: int) -> Any:
    """Returns None for what has no samples."""
    from opentelemetry.sdk.metrics import export

    points: list[Any] = []
    for of, samples in sources:
        for labels, numbers in samples.get(family.name, ()):
            attributes = {**of, **dict(zip(family.labels, labels, strict=True))}
            total = sum(numbers[:-1]) if family.buckets else numbers[0]
            began_ns = starts.of(family.name, attributes, total if family.buckets or family.kind == COUNTER else 0)
            times: dict[str, Any] = {"start_time_unix_nano": began_ns, "time_unix_nano": now_ns}
            points.append(
                export.HistogramDataPoint(
                    attributes=attributes,
                    count=int(sum(numbers[:-1])),
                    sum=numbers[-1],
                    bucket_counts=[int(count) for count in numbers[:-1]],
                    explicit_bounds=list(family.buckets),
                    min=None,  # type: ignore[arg-type]  # not known; the form has a place for none
                    max=None,  # type: ignore[arg-type]
                    **times,
                )
                if family.buckets
                else export.NumberDataPoint(attributes=attributes, value=float(numbers[0]), **times)
            )
    if not points:
        return None
    since = export.AggregationTemporality.CUMULATIVE
    data: Any = export.Gauge(data_points=points)
    if family.buckets:
        data = export.Histogram(data_points=points, aggregation_temporality=since)
    elif family.kind == COUNTER:
        data = export.Sum(data_points=points, aggregation_temporality=since, is_monotonic=True)
    return export.Metric(name=family.name, description=family.help, unit="", data=data)
