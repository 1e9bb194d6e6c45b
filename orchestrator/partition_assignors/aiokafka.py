"""The assignors for aiokafka consumers. One rule: a group may mix members in Python and Java, with a leader of either.

Hand a class, or several, to `GroupConsumer` (an AIOKafkaConsumer that gives every consumer its own state, the group's
generation and its instance id):

    GroupConsumer("orders", group_id="g", partition_assignment_strategy=[StickyPartitionAssignor], ...)

The classes also fit a plain AIOKafkaConsumer, one consumer a process: aiokafka keeps an assignor's state on its class.
There the generation stays unknown, because aiokafka does not pass it on; and give it one class, not a list of several:
aiokafka 0.14 joins once for every name, and members that do that can keep each other rebalancing.

What aiokafka cannot do, and what that means here. Its client is eager: it gives everything up before it rejoins. So
`CooperativeStickyPartitionAssignor` has nothing to withhold, it is `sticky` under the cooperative name; and when a Java
member of such a group keeps its partitions over the rebalance, a leader in Python cannot see which, so it refuses to
lead (a Java leader is safe). It drops `group.instance.id` before it calls `assign`; ours carries the id in the user
data, so instance ids of Java members are not seen by a leader in Python. It carries no racks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.group import JoinGroupRequest

from orchestrator.partition_assignors import ASSIGNORS, Assignor, AssignorError, Subscription, TopicPartition, wire

log = logging.getLogger(__name__)


def _unknown_generation() -> int:
    return wire.UNKNOWN_GENERATION


@dataclass
class _State:
    """What one consumer remembers between rebalances."""

    instance_id: str | None = None
    current_generation: Callable[[], int] = _unknown_generation
    generation: int = wire.UNKNOWN_GENERATION
    owned: tuple[TopicPartition, ...] | None = field(default=None)


class _Adapter(AbstractPartitionAssignor):  # type: ignore[misc]
    """A core assignor behind aiokafka's interface."""

    core: ClassVar[Assignor]
    name: ClassVar[str]
    version: ClassVar[int] = 0
    state: ClassVar[_State]

    def __init_subclass__(cls, core: str | None = None, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if core is not None:
            cls.core, cls.name = ASSIGNORS[core], name or core
        cls.state = _State()

    @classmethod
    def for_consumer(
        cls, instance_id: str | None = None, generation: Callable[[], int] = _unknown_generation
    ) -> type[_Adapter]:
        """The same assignor with a state of its own; `generation` tells the group's generation when it is asked."""
        own: type[_Adapter] = type(cls.__name__, (cls,), {})
        own.state = _State(instance_id, generation)
        return own

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        return ConsumerProtocolMemberMetadata(cls.version, sorted(topics), cls._user_data())

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        cls.state.owned = tuple(TopicPartition(topic, p) for topic, ps in assignment.assignment for p in ps)
        cls.state.generation = cls.state.current_generation()

    @classmethod
    def assign(
        cls, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        subscriptions = {member: cls._subscription(member, metadata) for member, metadata in members.items()}
        counts: dict[str, int] = {}
        for topic in {topic for subscription in subscriptions.values() for topic in subscription.topics}:
            partitions = cluster.partitions_for_topic(topic)
            if partitions:
                counts[topic] = len(partitions)
        assigned = cls.core.assign(counts, subscriptions)
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, _by_topic(partitions), b"")
            for member, partitions in assigned.items()
        }

    @classmethod
    def _user_data(cls) -> bytes:
        return wire.encode_instance(cls.state.instance_id)

    @classmethod
    def _subscription(cls, member: str, metadata: ConsumerProtocolMemberMetadata) -> Subscription:
        return Subscription(
            topics=tuple(metadata.subscription), instance_id=_read(wire.decode_instance, member, metadata.user_data)
        )


class RangePartitionAssignor(_Adapter, core="range"):
    """Kafka's `RangeAssignor`; instance ids of our own members are honoured."""


class RoundRobinPartitionAssignor(_Adapter, core="roundrobin"):
    """Kafka's `RoundRobinAssignor`; instance ids of our own members are honoured."""


class StickyPartitionAssignor(_Adapter, core="sticky"):
    """Kafka's `StickyAssignor`: members carry what they held, so the next leader goes on from it."""

    @classmethod
    def _user_data(cls) -> bytes:
        state = cls.state
        return b"" if state.owned is None else wire.encode_sticky(state.owned, state.generation)

    @classmethod
    def _subscription(cls, member: str, metadata: ConsumerProtocolMemberMetadata) -> Subscription:
        owned, generation = _read(wire.decode_sticky, member, metadata.user_data) or ((), wire.UNKNOWN_GENERATION)
        return Subscription(tuple(metadata.subscription), owned, generation)


class CooperativeStickyPartitionAssignor(_Adapter, core="sticky", name="cooperative-sticky"):
    """Sticky under the name `cooperative-sticky`: every member has given everything up before the leader assigns."""

    @classmethod
    def _user_data(cls) -> bytes:
        state = cls.state
        return b"" if state.owned is None else wire.encode_cooperative(state.owned, state.generation)

    @classmethod
    def _subscription(cls, member: str, metadata: ConsumerProtocolMemberMetadata) -> Subscription:
        if metadata.version > 0:
            raise AssignorError(
                f"member {member!r} keeps its partitions over a rebalance and aiokafka does not show which; "
                "cooperative-sticky led from Python; let a Java member lead or use the sticky assignor in all members"
            )
        owned, generation = _read(wire.decode_cooperative, member, metadata.user_data) or ((), wire.UNKNOWN_GENERATION)
        return Subscription(tuple(metadata.subscription), owned, generation)


class GroupConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """An AIOKafkaConsumer whose assignors have a state of their own and know the generation and the instance id."""

    def __init__(
        self,
        *topics: str,
        partition_assignment_strategy: Sequence[type[_Adapter]] = (StickyPartitionAssignor,),
        group_instance_id: str | None = None,
        **options: Any,
    ) -> None:
        own = [
            strategy.for_consumer(group_instance_id, self.group_generation)
            for strategy in partition_assignment_strategy
        ]
        self._names = len(own)
        super().__init__(*topics, partition_assignment_strategy=own, group_instance_id=group_instance_id, **options)

    @property
    def _coordinator(self) -> Any:
        return self.__dict__.get("_coordinator")

    @_coordinator.setter
    def _coordinator(self, coordinator: Any) -> None:
        if isinstance(coordinator, GroupCoordinator):
            coordinator._send_req = _joining_once(coordinator._send_req, self._names)
        self.__dict__["_coordinator"] = coordinator

    def group_generation(self) -> int:
        """The generation of the assignment at hand; -1 before the first and after the group has put us out."""
        # aiokafka has no public way to it; without it a stale report could not be told from a fresh one.
        generation = getattr(self._coordinator, "generation", None)
        return generation if isinstance(generation, int) else wire.UNKNOWN_GENERATION


def _joining_once(send: Callable[[Any], Awaitable[Any]], names: int) -> Callable[[Any], Awaitable[Any]]:
    """aiokafka sends a JoinGroup for each assignor it adds to its list: [range], then [range, sticky]. The second one
    starts a rebalance of its own, and two such members can keep each other rebalancing for good. So only the request
    that names all assignors goes out; aiokafka looks at the answer to the last one alone."""

    async def send_when_complete(request: Any) -> Any:
        if isinstance(request, JoinGroupRequest) and len(request._group_protocols) < names:
            return SimpleNamespace(error_code=0)
        return await send(request)

    return send_when_complete


def _read(decode: Callable[[bytes], Any], member: str, data: bytes | None) -> Any:
    """User data, or None: a member whose data cannot be read starts without a past, as in Java, and the log says so."""
    if not data:
        return None
    try:
        return decode(data)
    except wire.WireError as error:
        log.warning("member %s starts without a past, its user data cannot be read: %s", member, error)
        return None


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())
