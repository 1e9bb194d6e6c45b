"""The requests of a transaction alone, as a limit for a commit on Kafka: nothing is built, looked up, checked or kept.

One rule: the same requests over the same connections, in the same order, as `state/log/kafka/producer.py` sends them; what a worker
adds is its own. Records are built once; only their headers change, as they have to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest_v0,
    AddPartitionsToTxnRequest_v0,
    EndTxnRequest_v0,
    InitProducerIdRequest_v0,
)

from state.log import batches
from state.log.batches import Batch
from state.log.kafka.requests import TxnOffsetCommitRequest_v3
from state.log.kafka.sealing import seal
from state.log.protocol import TaskCommit

_AGAIN: Final = {14, 15, 16, 51}  # a coordinator that loads, or is not there yet; markers of the transaction before
_PAUSE_S = 0.001
_ALL_REPLICAS, _TIMEOUT_MS = -1, 10_000
Codes = Callable[[Any], list[int]]


class _Exact:
    """Has aiokafka send a request in the version that it is written for."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        return self._request


class BareCommits:
    """Commits of what `tasks` write, to topics that begin with `prefix`, by an id of its own and in a group of its own."""

    def __init__(self, port: int, prefix: str, tasks: list[TaskCommit]) -> None:
        self._port = port
        self._id, self._group = f"{prefix}bare", f"{prefix}bare"
        self._built: dict[tuple[str, int], Batch] = {}
        self._positions: dict[tuple[str, int], int] = {}
        for task in tasks:
            for (topic, number), records in task.records.items():
                (self._built[prefix + topic, number],) = batches.build(records, cut_records=len(records))
            for (topic, number), position in task.positions.items():
                self._positions[prefix + topic, number] = position
        self._sequences = dict.fromkeys(self._built, 0)
        self._producer, self._epoch = -1, -1
        self._connection: AIOKafkaConnection

    async def open(self) -> None:
        self._connection = await create_conn("127.0.0.1", self._port)
        for kind, key in ((1, self._id), (0, self._group)):
            await self._ask(FindCoordinatorRequest_v1(key, kind), lambda got: [got.error_code])
        answer = await self._ask(InitProducerIdRequest_v0(self._id, 60_000), lambda got: [got.error_code])
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def close(self) -> None:
        self._connection.close()

    async def commit(self) -> None:
        who = (self._id, self._producer, self._epoch)
        added = AddPartitionsToTxnRequest_v0(*who, _by_topic(dict.fromkeys(self._built)))
        offsets = AddOffsetsToTxnRequest_v0(*who, self._group)
        await asyncio.gather(
            self._ask(added, lambda got: [code for _, numbers in got.errors for _, code in numbers]),
            self._ask(offsets, lambda got: [got.error_code]),
        )
        sealed = {
            one: seal(batch.data, self._producer, self._epoch, self._sequences[one], transactional=True)
            for one, batch in self._built.items()
        }
        written = ProduceRequest_v7(self._id, _ALL_REPLICAS, _TIMEOUT_MS, _by_topic(sealed, beside=True))
        await self._ask(written, lambda got: [one[1] for _, numbers in got.topics for one in numbers])
        for one, batch in self._built.items():
            self._sequences[one] += batch.span
        topics: Any = [
            (topic, [(number, position, -1, "", {}) for number, position in numbers], {})
            for topic, numbers in _by_topic(self._positions, beside=True)
        ]
        positions = TxnOffsetCommitRequest_v3(
            self._id, self._group, self._producer, self._epoch, -1, "", None, topics, {}
        )
        await self._ask(positions, lambda got: [code for _, numbers, _ in got.topics for _, code, _ in numbers])
        await self._ask(EndTxnRequest_v0(*who, True), lambda got: [got.error_code])

    async def _ask(self, request: Any, codes: Codes) -> Any:
        while True:
            answer = await self._connection.send(_Exact(request))
            wrong = {code for code in codes(answer) if code}
            if not wrong:
                return answer
            if not wrong <= _AGAIN:
                raise SystemExit(f"the broker refuses {type(request).__name__}: {sorted(wrong)}")
            await asyncio.sleep(_PAUSE_S)


def _by_topic(found: Mapping[tuple[str, int], Any], *, beside: bool = False) -> list[tuple[str, list[Any]]]:
    """Numbers by topic, each with what is `beside` it."""
    topics: dict[str, list[Any]] = {}
    for (topic, number), one in found.items():
        topics.setdefault(topic, []).append((number, one) if beside else number)
    return list(topics.items())
