"""Whether the user may do with topics what cannot be taken back, or comes late, asked before any of it is done.

One rule: a change of several steps begins where each of them is allowed. Brokers say of a topic what the user may do with it; one
without an authorizer allows all of it. Used by commands and starts, through `Log.check_rights`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from state.log.kafka import rights
from state.log.kafka.cluster import Cluster
from state.log.kafka.codes import TOPIC_DENIED, KafkaRefused
from state.log.kafka.requests import metadata
from state.log.kafka.rights import on

_BITS = {rights.DELETE: 6, rights.ALTER: 7}  # of the operations in an answer, as AclOperation numbers them


async def check_topics(cluster: Cluster, wanted: Sequence[tuple[str, str, Collection[str]]]) -> None:
    """`wanted`: what is to be done, the operation that it takes, and with which topics. Raises KafkaRefused with all rights that are
    missing for the first of these."""
    names = sorted({cluster.topics.names.inside(name) for _, _, listed in wanted for name in listed})
    if not names:
        return

    async def ask() -> Any:
        return await cluster.connections.ask_any(metadata(names, operations=True))

    answer = await cluster.connections.retried("the rights on topics", ask)
    allowed = {
        name: -1 if code not in (0, TOPIC_DENIED) else operations for code, name, *_, operations, _ in answer.topics
    }
    for doing, operation, listed in wanted:
        bit = 1 << _BITS[operation]
        inside = map(cluster.topics.names.inside, sorted(listed))
        lacking = [name for name in inside if not allowed.get(name, -1) & bit]
        if lacking:
            what = f"{doing} topic {', '.join(map(cluster.topics.names.outside, lacking))}"
            raise KafkaRefused(what, TOPIC_DENIED, None, on(rights.TOPIC, operation, *lacking))
