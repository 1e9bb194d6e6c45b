"""Three brokers with three replicas of everything, two of which must be in sync; quick to notice that one is gone.

One rule: each has ports of its own and a folder of its own, and all know each other before any is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from state.log.kafka import broker
from state.log.kafka.broker import Broker

_THREE = {
    **dict.fromkeys(
        ("default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor"),
        "3",
    ),
    "min.insync.replicas": "2",
    "transaction.state.log.min.isr": "2",
}
REPLICAS = {
    **_THREE,
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "1500",
    "replica.fetch.wait.max.ms": "100",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
DEFAULTS = {  # Kafka's own, where a broker for developers has others
    **_THREE,
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "controlled.shutdown.enable": "true",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "controller.quorum.append.linger.ms": "25",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
}


def prepared(folder: Path, settings: Mapping[str, str] = REPLICAS, version: str = broker.VERSION) -> list[Broker]:
    """None is started."""
    ports: list[int] = []
    while len(ports) < 3:
        if (port := broker.free_port()) not in ports:
            ports.append(port)
    voters = ",".join(f"{number}@127.0.0.1:{port + 1}" for number, port in enumerate(ports, 1))
    cluster = broker.identity()
    return [
        broker.prepare(
            folder / f"broker{number}",
            port,
            version=version,
            settings={**settings, "node.id": str(number), "controller.quorum.voters": voters},
            cluster=cluster,
        )
        for number, port in enumerate(ports, 1)
    ]
