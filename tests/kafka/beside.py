"""Plain aiokafka producers that commit transactions on the same brokers at the same time: what the brokers' own election costs
anybody, beside which a stall of ours is to be seen.

One rule: they are as quick as aiokafka can be: short timeouts and pauses, and nothing to do but to commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

TOPIC, GROUP, PARTITIONS = "beside", "beside", 8
COUNT, EVERY_S = 3, 0.1


class Beside:
    """As many as there are instances; each writes to every partition and commits a position with it."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._since = [time.monotonic()] * COUNT
        self.restart()

    def restart(self) -> None:
        """Forget the longest stalls, not those under way."""
        self.longest, self.of_one = 0.0, 0.0

    def _committed(self, number: int) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - max(self._since))
        self.of_one = max(self.of_one, now - self._since[number])
        self._since[number] = now

    async def run(self) -> None:
        """For ever; the topic is there."""
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        running = [asyncio.create_task(self._commit(number)) for number in range(COUNT)]
        try:
            await asyncio.gather(*running)
        finally:
            for one in running:
                one.cancel()

    async def _commit(self, number: int) -> None:
        while True:
            producer: Any = AIOKafkaProducer(
                bootstrap_servers=self._addresses,
                transactional_id=f"beside-{number}",
                request_timeout_ms=3_000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5_000,
            )
            try:
                await producer.start()
                position = 0
                while True:
                    position += 1
                    async with producer.transaction():
                        for partition in range(PARTITIONS):
                            await producer.send(TOPIC, b"value", b"key", partition)
                        offsets = {TopicPartition(TOPIC, number): position}
                        await producer.send_offsets_to_transaction(offsets, f"{GROUP}-{number}")
                    self._committed(number)
                    await asyncio.sleep(EVERY_S)
            except KafkaError:
                continue  # as the same writer anew: its stall goes on
            finally:
                await producer.stop()
