"""What the parts of the log share of one cluster: connections, topics, offsets, and how long is waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

from state.log.kafka.access import Access
from state.log.kafka.client_settings import CODECS, ClientSettings
from state.log.kafka.connections import Connections
from state.log.kafka.left_open import ANYWHERE, Written
from state.log.kafka.offsets import Offsets
from state.log.kafka.producer import Producer
from state.log.kafka.properties import BadClientConfig
from state.log.kafka.reader import KafkaReader
from state.log.kafka.topics import Names, Topics

TRANSACTION_TIMEOUT_S = 30.0
BROKER_LOOKS_EVERY_S = 10.0  # how often a broker looks for transactions that are too old, by default


@dataclass(frozen=True)
class KafkaOptions:
    """Where the cluster is, and how this log uses it. `prefix` goes before every name; `topic_settings` are given to the
    topics that are created; `config` is a file of client settings (see access.py), "" for plain connections; `compression`
    a codec for what is written, "" for what that file says."""

    brokers: Sequence[tuple[str, int]]
    prefix: str = ""
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    compression: str = ""


@dataclass
class Cluster:
    """`settle_within_s`: how long an open transaction is waited for; brokers abort it before."""

    connections: Connections
    topics: Topics
    offsets: Offsets
    settle_within_s: float
    settings: ClientSettings = field(default_factory=ClientSettings)
    _readers: WeakSet[KafkaReader] = field(default_factory=WeakSet)
    _producers: WeakSet[Producer] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.connections.when_made_anew = self._doubt

    def _doubt(self) -> None:
        """A broker may have started again: what it left open is ended (left_open.py)."""
        for producer in list(self._producers):
            producer.doubt()

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
        writes: Written = ANYWHERE,
    ) -> Producer:
        """Not initialised yet."""
        answer_s = timeout_s if answer_within_s is None else answer_within_s
        parts = self.connections, self.topics, self.offsets
        made = Producer(*parts, transactional_id, timeout_s, purpose, answer_s, writes)
        self._producers.add(made)
        return made

    async def close(self) -> None:
        for reader in list(self._readers):
            await reader.close()
        await self.connections.close()


async def open_cluster(options: KafkaOptions) -> Cluster:
    """Raises LogUnavailable where no broker answers, AccessRefused, BadClientConfig."""
    access = Access(Path(options.config) if options.config else None)
    brokers = list(dict.fromkeys([*options.brokers, *access.settings.bootstrap]))
    connections = Connections(brokers, access)
    if options.compression and access.settings.compression:
        raise BadClientConfig(f"{access.where}: compression.type is given with the log's URL, too; keep one of them")
    await connections.start()
    try:
        await connections.reach()
    except BaseException:
        await connections.close()
        raise
    codec = CODECS[options.compression or access.settings.compression or "none"]
    topics = Topics(
        connections, Names(options.prefix), options.topic_settings, codec=codec, batch_bytes=access.settings.batch_bytes
    )
    settle_within_s = options.transaction_timeout_s + 2 * BROKER_LOOKS_EVERY_S
    offsets = Offsets(connections, topics, settle_within_s)
    return Cluster(connections, topics, offsets, settle_within_s, access.settings)
