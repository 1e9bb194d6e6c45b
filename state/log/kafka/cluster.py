"""What the parts of the log share of one cluster: connections, topics, offsets, and how long is waited."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakSet

from state.log.kafka.client_settings import ClientSettings
from state.log.kafka.connections import Connections
from state.log.kafka.offsets import Offsets
from state.log.kafka.producer import Producer
from state.log.kafka.reader import KafkaReader
from state.log.kafka.topics import Topics


@dataclass
class Cluster:
    """`settle_within_s`: how long an open transaction is waited for; brokers abort it before."""

    connections: Connections
    topics: Topics
    offsets: Offsets
    settle_within_s: float
    settings: ClientSettings = field(default_factory=ClientSettings)
    _readers: WeakSet[KafkaReader] = field(default_factory=WeakSet)

    def reader(self) -> KafkaReader:
        sizes = self.settings.fetch_bytes, self.settings.partition_bytes
        made = KafkaReader(self.connections, self.topics, self.offsets, *sizes)
        self._readers.add(made)
        return made

    def producer(
        self,
        transactional_id: str | None,
        timeout_s: float,
        purpose: str = "txn",
        *,
        answer_within_s: float | None = None,
    ) -> Producer:
        """Not initialised yet."""
        answer_s = timeout_s if answer_within_s is None else answer_within_s
        return Producer(self.connections, self.topics, self.offsets, transactional_id, timeout_s, purpose, answer_s)

    async def close(self) -> None:
        for reader in list(self._readers):
            await reader.close()
        await self.connections.close()
