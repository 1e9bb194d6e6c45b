"""What brokers have lost of what a producer wrote: a replica that lagged was elected, or a broker was restored.

One rule: brokers number what a producer writes to a partition, and refuse what does not follow what they have. This process has
had an answer to each number before, so what lacks there was in the log. A new producer begins at 0, and may write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from state.errors import RecordsLost, StateError
from state.log.kafka.cluster import Cluster
from state.log.kafka.codes import KafkaRefused, Then
from state.log.kafka.offsets import Offsets
from state.log.kafka.topics import Topics
from state.log.protocol import Partition

log = logging.getLogger("orchestrator.log")
_ASKED_S = 5.0


class Latest:
    """Where the latest ends that a writer has written to each partition, and under which leader: what it writes to one shows that
    brokers have lost records, and others may have, which it writes to later, by another producer."""

    def __init__(self) -> None:
        self._ends: dict[Partition, tuple[int, int]] = {}

    def wrote(self, behind: Mapping[Partition, int], topics: Topics) -> None:
        """`behind`: where its records end."""
        self._ends |= {one: (end, topics.known_epoch(one)) for one, end in behind.items()}

    async def lost(self, offsets: Offsets) -> list[Partition]:
        """Those that lack something of it. Raises StateError."""
        ends = await offsets.epoch_ends({one: epoch for one, (_, epoch) in self._ends.items() if epoch >= 0})
        return [one for one, end in ends.items() if end < self._ends[one][0]]


async def of_writer(error: KafkaRefused, cluster: Cluster, transactional_id: str, latest: Latest) -> RecordsLost:
    """For a commit that was refused by a code of `Then.LOST`, whose transaction is over: what is lost, and what follows."""
    topics, lost = cluster.topics, partitions(error)
    with suppress(StateError, TimeoutError):  # the line without the others rather than none
        async with asyncio.timeout(_ASKED_S):
            lost = sorted({*lost, *await latest.lost(cluster.offsets)})
    kinds: dict[str, str] = {}
    with suppress(StateError):  # the line without them rather than none
        kinds = {name: purpose.kind for name, purpose in (await topics.purposes({one.topic for one in lost})).items()}
    changelogs = [one for one in lost if kinds.get(one.topic) == "changelog"]
    others = [one for one in lost if one not in changelogs]
    parts = [
        f"the brokers of {_named(lost)} lost records of transactional id {transactional_id} (an unclean election, a restored broker)"
    ]
    if others:
        parts.append(f"what {_named(others)} lost was committed, and nothing writes it again")
    if changelogs:
        parts.append(f"tables are restored from what {_named(changelogs)} kept")
    return RecordsLost("; ".join([*parts, "this commit is made again, under another id"]))


def may_go_on(error: BaseException, is_time: bool) -> bool:
    """Whether another producer is to write what was refused, none of which is in the log then; with a warning of what is lost."""
    if not (is_time and isinstance(error, KafkaRefused) and error.then is Then.LOST):
        return False
    log.warning(
        "the brokers of %s lost records that were written there before (an unclean election, a restored broker): they are not written "
        "again; what follows is written by another producer",
        _named(partitions(error)),
    )
    return True


def partitions(error: KafkaRefused) -> list[Partition]:
    """Those that have lost what this producer wrote."""
    found = error.lost_in or ((error.partition,) if error.partition is not None else ())
    return [Partition(*one) for one in found]


def _named(partitions: list[Partition]) -> str:
    return ", ".join(map(str, partitions))
