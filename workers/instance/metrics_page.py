"""The metrics of an instance: its own, and what its workers reported last; and their page.

One rule: no process is asked when it is read. A worker that is busy shows as the age of its report, one that has ended is gone.
"""

from __future__ import annotations

import asyncio
import socket

from workers.instance.instance_stores import InstanceStores
from workers.metrics.families import INSTANCE_INFO, REPORT_AGE, WORKERS
from workers.metrics.measures import Measures, Samples
from workers.metrics.page import page
from workers.spec import InstanceSpec


def written(spec: InstanceSpec, measures: Measures, stores: InstanceStores) -> str:
    """Returns the page, in Prometheus' text format."""
    return page(measured(spec, measures, stores))


def measured(spec: InstanceSpec, measures: Measures, stores: InstanceStores) -> list[tuple[dict[str, str], Samples]]:
    """Returns who measured, as labels, and what."""
    now = asyncio.get_running_loop().time()
    workers = stores.reporting()
    measures.put(INSTANCE_INFO, 1, spec.instance, socket.gethostname(), _version())
    measures.put(WORKERS, len(workers))
    of_app = {"application": spec.application}
    sources = [(of_app, {name: rows for name, rows in measures.samples().items() if name != REPORT_AGE.name})]
    for worker in workers:
        who = {**of_app, "worker": worker.member}
        sources.append((who, {**worker.samples, REPORT_AGE.name: [((), [now - worker.reported_at])]}))
    return sources


def _version() -> str:
    """Of this package; "" where it is run from its source."""
    from importlib.metadata import PackageNotFoundError, version  # with the whole of email: when a page is asked for

    try:
        return version("stream-orchestrator")
    except PackageNotFoundError:
        return ""
