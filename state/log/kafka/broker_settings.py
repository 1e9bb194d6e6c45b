"""What the brokers are set to, where it matters here: how long they keep positions and transactional ids, and a transaction open.

One rule: a user who may not see the settings of brokers loses nothing by it: Kafka's own defaults are supposed.
Used by `log` (positions) and `seeding` (transactions).
"""

from __future__ import annotations

from aiokafka.protocol.admin import DescribeConfigsRequest_v1

from state.log.kafka.codes import Then, check, then
from state.log.kafka.connections import Connections

_BROKER_RESOURCE = 4
_WHAT = "settings of the brokers"


async def lifetimes_ms(connections: Connections) -> tuple[int, int]:
    """For how long an offset is kept that is not committed again, and a transactional id that commits nothing."""
    offsets = await _setting(connections, "offsets.retention.minutes", 7 * 24 * 60) * 60_000
    return offsets, await _setting(connections, "transactional.id.expiration.ms", 7 * 24 * 3_600_000)


async def transaction_limit_s(connections: Connections) -> float:
    """For how long a transaction may be open, at most."""
    return await _setting(connections, "transaction.max.timeout.ms", 900_000) / 1_000


async def _setting(connections: Connections, name: str, default: int) -> int:
    async def ask() -> int:
        node = connections.any_node()
        request = DescribeConfigsRequest_v1([(_BROKER_RESOURCE, str(node), [name])], False)
        answer = await connections.send(node, request, "quick")
        for code, text, _, _, entries in answer.resources:
            if then(code) is not Then.DENIED:
                check(_WHAT, code, text)
            for entry in entries:
                return int(entry[1])
        return default

    return await connections.retried(_WHAT, ask)
