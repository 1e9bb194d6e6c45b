"""What other processes write of a seed, within its open transaction: `Ticket` is sent to them, and writes there.

One rule: each partition is written in one order that every attempt gives again, its records numbered from 0 by the sequence of
the seed's producer. The broker appends the next number and no other: so of two attempts of a task, at once or one after the
other, each record is written once, and what an attempt still sends when the transaction is over is refused. The driver opens the
transaction and ends it (seeding.py); nobody here initialises its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from state.errors import LogUnusable
from state.log.kafka.building import build
from state.log.kafka.cluster import KafkaOptions, open_cluster
from state.log.kafka.codes import OUT_OF_ORDER_SEQUENCE, KafkaRefused
from state.log.kafka.producer import Identity, ProducerFenced
from state.log.protocol import NewRecord, Partition


@dataclass(frozen=True)
class Ticket:
    """See `state.log.protocol.Ticket`. Where the cluster is, and whose transaction it is; it holds no secret."""

    options: KafkaOptions
    transactional_id: str
    identity: Identity
    answer_s: float

    async def write(self, partition: Partition, parts: Callable[[], Iterable[Sequence[NewRecord]]]) -> int:
        """Raises LogUnusable where the transaction is over."""
        cluster = await open_cluster(self.options)
        try:
            producer = cluster.producer(self.transactional_id, 0.0, "seed", answer_within_s=self.answer_s)
            producer.join(self.identity)
            written, refused = 0, None
            for part in parts():
                for batch in (await build(cluster.topics, {partition: part})).get(partition, ()):
                    try:
                        await producer.continue_transaction(partition, batch)
                        refused = None
                    except KafkaRefused as error:
                        if error.code != OUT_OF_ORDER_SEQUENCE:
                            raise
                        refused = error  # another attempt has written it, and more behind it
                    written += batch.span
            if refused is not None:  # the last one is known to the broker, whoever wrote it
                raise refused
            return written
        except ProducerFenced as error:
            raise LogUnusable(f"{error}: the seed that {partition} was written for is over") from error
        finally:
            await cluster.close()
