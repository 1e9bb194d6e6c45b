"""Topics on Kafka: create, grow, delete, find; who leads a partition, and what a topic takes.

One rule: the names that callers use and those on the cluster differ by a prefix, and only this module adds it or takes it
away (`Names`). What a topic is for is read from its settings (topic_settings.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from aiokafka.protocol.admin import CreatePartitionsRequest_v1, DeleteTopicsRequest_v3, DescribeConfigsRequest_v1

from state.errors import LogBusy, StateError, TopicMismatch
from state.log import checks
from state.log.kafka import rights
from state.log.kafka.codes import NONE, TOPIC_EXISTS, UNKNOWN_TOPIC, KafkaRefused, Then, Unreachable, check, then
from state.log.kafka.connections import ANSWER_WITHIN_S, Connections
from state.log.kafka.layouts import Layout, layout_of
from state.log.kafka.read_epochs import ReadEpochs
from state.log.kafka.requests import CreateTopicsRequest_v4, IncrementalAlterConfigsRequest_v1, metadata
from state.log.kafka.rights import on
from state.log.kafka.topic_settings import SETTINGS, as_settings, kind_of, retention_of
from state.log.protocol import FOR_EVER, Partition, Retention, TopicInfo, TopicSpec

BATCH_HEADER_BYTES = 61
_TIMEOUT_MS, _SHOWN_WITHIN_S = 10_000, 30.0
NO_TIME = "-"  # beside a position of ours that was committed without a time
SETTINGS_S = 60.0  # how long those of a topic are known: other programs may change them
_TOPIC_RESOURCE, _SET = 2, 0


@dataclass(frozen=True, slots=True)
class Names:
    """The prefix before every topic, group and transactional id, so that several logs may share a cluster."""

    prefix: str = ""

    def inside(self, name: str) -> str:
        return self.prefix + name

    def outside(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def by_topic(self, partitions: Mapping[Partition, Any]) -> dict[str, list[tuple[int, Any]]]:
        """Numbers and what belongs to them by the cluster's name of the topic."""
        found: dict[str, list[tuple[int, Any]]] = {}
        for partition, what in partitions.items():
            found.setdefault(self.inside(partition.topic), []).append((partition.number, what))
        return found


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a topic is for, the largest batch that it takes, for how long its compaction keeps a deletion, and which times its records get."""

    kind: str
    max_message_bytes: int
    delete_retention_ms: int
    retention: Retention
    has_append_times: bool


class Topics:
    """See the module text. Layouts are kept until a broker says that they are old."""

    def __init__(
        self,
        connections: Connections,
        names: Names,
        settings: Mapping[str, str],
        replication: int = -1,
        codec: int = 0,
        batch_bytes: int | None = None,
    ) -> None:
        """`codec`: of the batches that are written, as Kafka numbers them; `batch_bytes`: how large those of several records are."""
        self._connections = connections
        self.codec, self.batch_bytes = codec, batch_bytes
        self.names = names
        self._settings = dict(settings)
        self._replication = replication
        self._layouts: dict[str, Layout] = {}
        self.read_epochs = ReadEpochs()
        self._stale: set[str] = set()
        self._purposes: dict[bytes, Purpose] = {}
        self._asked: dict[bytes, float] = {}  # for these, when, by the loop's clock

    # ------------------------------------------------------------------ what there is

    async def infos(self, names: Collection[str]) -> dict[str, TopicInfo]:
        layouts = await self.refresh(names)
        await self._know_purposes(layouts, asking_again=True)
        return {name: self._info(name, layout) for name, layout in layouts.items()}

    def _info(self, name: str, layout: Layout) -> TopicInfo:
        purpose = self._purposes[layout.topic_id]
        of_settings = purpose.kind, purpose.delete_retention_ms, purpose.retention, purpose.has_append_times
        return TopicInfo(name, layout.topic_id.hex(), len(layout.leaders), *of_settings)

    async def refresh(self, names: Collection[str], within_s: float = ANSWER_WITHIN_S) -> dict[str, Layout]:
        """The layouts of those that exist, as a broker has them now."""
        if not names:
            return {}
        wanted = sorted(set(names))
        answer = await self._connections.retried(
            "metadata",
            lambda: self._connections.metadata([self.names.inside(name) for name in wanted]),
            within_s=within_s,
        )
        found = self._layouts_of(answer)
        for node in self._connections.nodes():
            # A broker learns of a new topic later than another one: what was there is gone once no broker has it.
            doubtful = [name for name in wanted if name not in found and name in self._layouts]
            if not doubtful:
                break
            request = metadata([self.names.inside(name) for name in doubtful])
            try:
                found |= self._layouts_of(await self._connections.send(node, request, "quick"))
            except Unreachable:
                continue
        for name in wanted:
            if name not in found:
                self._layouts.pop(name, None)
        self._layouts |= found
        self._stale -= set(wanted)
        return found

    def _layouts_of(self, answer: Any) -> dict[str, Layout]:
        """The topics that a metadata answer has. Raises KafkaRefused."""
        found = {}
        for topic in answer.topics:
            if topic[0] == UNKNOWN_TOPIC:
                continue
            name = self.names.outside(topic[1])
            if topic[0] != NONE and not topic[4]:
                check(f"metadata of {name}", topic[0], None, on(rights.TOPIC, rights.DESCRIBE, topic[1]))
            found[name] = layout_of(topic[2], topic[4], self._connections.made_anew)
        return found

    async def listed(self) -> list[str]:
        """The names of all topics with our prefix."""
        answer = await self._connections.retried("metadata", lambda: self._connections.metadata(None))
        inside = (topic[1] for topic in answer.topics)
        return sorted(self.names.outside(name) for name in inside if name.startswith(self.names.prefix))

    async def known(self) -> list[Partition]:
        """All partitions of the topics that this process has asked about, as they are now."""
        layouts = await self.refresh(list(self._layouts))
        return [Partition(name, number) for name, one in sorted(layouts.items()) for number in range(len(one.leaders))]

    def remembered(self) -> list[Partition]:
        """The same as they were last known."""
        return [
            Partition(name, number) for name, one in sorted(self._layouts.items()) for number in range(len(one.leaders))
        ]

    async def require(self, partitions: Collection[Partition], within_s: float = ANSWER_WITHIN_S) -> None:
        """Raises UnknownTopic for a partition that is not there."""
        strange = {one.topic for one in partitions if self.known_leader(one) is None or self._is_old(one.topic)}
        if strange:
            await self.refresh(strange, within_s)
        for partition in partitions:
            self.check(partition)

    def _is_old(self, topic: str) -> bool:
        """A broker that was connected to anew may have started anew, and leads under another epoch then."""
        return topic in self._stale or self._layouts[topic].as_of != self._connections.made_anew

    def check(self, partition: Partition) -> None:
        """Raises UnknownTopic by what is last known of the topic."""
        if self.known_leader(partition) is None:
            layout = self._layouts.get(partition.topic)
            raise checks.unknown(partition, None if layout is None else len(layout.leaders))

    def known_leader(self, partition: Partition) -> int | None:
        """As last known; -1: none at the moment, None: no such partition."""
        layout = self._layouts.get(partition.topic)
        return layout.leaders[partition.number] if layout and 0 <= partition.number < len(layout.leaders) else None

    def known_epoch(self, partition: Partition) -> int:
        """The epoch of the partition's leader, as last known; -1: not known."""
        layout = self._layouts.get(partition.topic)
        return layout.epochs[partition.number] if layout and 0 <= partition.number < len(layout.epochs) else -1

    def alone(self, partitions: Collection[Partition]) -> list[Partition]:
        """Those whose broker may go without another to lead them, while others of the cluster go on; as last known."""
        found = [one for one in partitions if (of := self._layouts.get(one.topic)) and one.number in of.alone]
        return [one for one in found if self._connections.nodes() != [self.known_leader(one)]]

    def known_id(self, topic: str) -> bytes:
        """The topic's id, as last known."""
        return self._layouts[topic].topic_id

    def placed(
        self, positions: Mapping[Partition, int], times_ms: Mapping[Partition, int]
    ) -> dict[Partition, tuple[int, int, str]]:
        """Positions with what is committed beside them: the epoch of what lies before them, and a time, which is our mark as well."""
        of = self.read_epochs.before
        return {
            one: (position, of(one, position, self.known_epoch(one)), str(times_ms.get(one, NO_TIME)))
            for one, position in positions.items()
        }

    def forget(self, topics: Collection[str]) -> None:
        """What is known of these is old: a broker is asked before anything else is."""
        self._stale.update(topics)

    async def leaderless(self, partitions: Collection[Partition], within_s: float = ANSWER_WITHIN_S) -> list[Partition]:
        """Those that have no leader now, which is looked for again when they are asked for next. Raises UnknownTopic."""
        await self.require(partitions, within_s)
        found = [one for one in partitions if self.known_leader(one) == -1]
        self.forget({one.topic for one in found})
        return found

    async def by_leader(
        self, partitions: Collection[Partition], within_s: float = ANSWER_WITHIN_S
    ) -> dict[int, list[Partition]]:
        """The partitions by the broker that leads them. Raises UnknownTopic, KafkaRefused where one has no leader."""
        if lost := await self.leaderless(partitions, within_s):
            raise KafkaRefused(f"partition {lost[0]}", 5)
        found: dict[int, list[Partition]] = {}
        for partition in partitions:
            found.setdefault(self.known_leader(partition) or 0, []).append(partition)
        return found

    async def purposes(self, topics: Collection[str]) -> dict[str, Purpose]:
        """What these topics are for. Raises UnknownTopic."""
        await self.require([Partition(topic, 0) for topic in topics])
        layouts = {topic: self._layouts[topic] for topic in topics}
        await self._know_purposes(layouts)
        return {topic: self._purposes[layout.topic_id] for topic, layout in layouts.items()}

    def forget_purpose(self, topic: str) -> None:
        """The topic may have other settings by now than those that are known."""
        if (layout := self._layouts.get(topic)) is not None:
            self._purposes.pop(layout.topic_id, None)

    async def _know_purposes(self, layouts: Mapping[str, Layout], *, asking_again: bool = False) -> None:
        """`asking_again`: also for what was asked long ago. What is known of that goes on where it is refused: the right to ask may
        be gone by now, and who looks at topics looks for others that grew or went, too."""
        now = asyncio.get_running_loop().time()
        by_id = {layout.topic_id: name for name, layout in layouts.items()}
        old = {one for one in by_id if asking_again and now - self._asked.get(one, now) >= SETTINGS_S}
        if old:
            self._asked |= dict.fromkeys(old, now)
            with suppress(StateError):
                await self._ask_purposes({by_id[one]: one for one in old}, may_be_refused=True)
        # Until each is known at one moment: other calls forget some while this one asks.
        while missing := by_id.keys() - self._purposes.keys():
            await self._ask_purposes({by_id[one]: one for one in missing})
            self._asked |= dict.fromkeys(missing, now)

    async def _ask_purposes(self, ids: Mapping[str, bytes], *, may_be_refused: bool = False) -> None:
        wanted = ["cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes"]
        wanted += ["max.message.bytes", "delete.retention.ms", "message.timestamp.type"]
        request = DescribeConfigsRequest_v1([(_TOPIC_RESOURCE, self.names.inside(name), wanted) for name in ids], False)

        async def ask() -> Any:
            answer = await self._connections.ask_any(request)
            for code, text, _, name, _ in () if may_be_refused else answer.resources:
                what = f"settings of {self.names.outside(name)}"
                check(what, code, text, on(rights.TOPIC, rights.DESCRIBE_CONFIGS, name))
            return answer

        for code, _, _, name, entries in (await self._connections.retried("settings of topics", ask)).resources:
            if code:
                continue
            kept = {entry[0]: entry[1] for entry in entries}
            self._purposes[ids[self.names.outside(name)]] = Purpose(
                kind_of(kept),
                int(kept["max.message.bytes"]),
                int(kept["delete.retention.ms"]),
                retention_of(kept),
                kept["message.timestamp.type"] == "LogAppendTime",
            )

    # ------------------------------------------------------------------ changes

    async def create(self, spec: TopicSpec, settings: Mapping[str, str] | None = None) -> TopicInfo:
        """Create, or return what is there; with `settings` before those of its kind, and these before the log's. Raises TopicMismatch."""
        checks.topic_spec(spec)
        found = (await self.infos([spec.name])).get(spec.name)
        if found is None:
            kept = as_settings(spec.retention) if spec.retention != FOR_EVER else {}  # else as the brokers have it
            chosen = {**self._settings, **SETTINGS[spec.kind], **kept, **(settings or {})}
            topic: Any = (self.names.inside(spec.name), spec.partitions, self._replication, [], list(chosen.items()))
            request = CreateTopicsRequest_v4([topic], _TIMEOUT_MS, False)
            await self._change(
                f"creating topic {spec.name}", request, lambda answer: answer.topic_errors, rights.CREATE
            )
            found = await self._shown(spec.name, spec.partitions)
        if found.partitions != spec.partitions:
            raise TopicMismatch(checks.mismatch(found, spec))
        return found

    async def grow(self, name: str, partitions: int) -> TopicInfo:
        if (found := checks.growth((await self.infos([name])).get(name), name, partitions)).partitions == partitions:
            return found
        request = CreatePartitionsRequest_v1([(self.names.inside(name), (partitions, None))], _TIMEOUT_MS, False)
        try:
            await self._change(f"growing topic {name}", request, lambda answer: answer.topic_errors, rights.ALTER)
        except KafkaRefused as error:
            if error.then is not Then.GROWN:
                raise
            # Another has grown it since it was looked at, which brokers may show later than their controller knows it.
            return checks.growth(await self._shown(name, partitions), name, partitions)
        return await self._shown(name, partitions)

    async def set_retention(self, name: str, retention: Retention) -> TopicInfo:
        """Raises UnknownTopic, StateError."""
        found = checks.plain((await self.infos([name])).get(name), name)
        changes: Any = [(key, _SET, value, {}) for key, value in as_settings(retention).items()]
        resources: Any = [(_TOPIC_RESOURCE, self.names.inside(name), changes, {})]
        request = IncrementalAlterConfigsRequest_v1(resources, False, {})
        await self._change(
            f"setting the retention of topic {name}",
            request,
            lambda answer: [(self.names.inside(name), code, text) for code, text, *_ in answer.responses],
            rights.ALTER_CONFIGS,
        )
        changed = replace(found, retention=retention._replace(forced=False))

        async def shown() -> dict[str, TopicInfo]:
            self._purposes.pop(bytes.fromhex(found.topic_id), None)
            return await self.infos([name])

        def is_there(infos: Mapping[str, TopicInfo]) -> bool:
            return name not in infos or infos[name].retention == changed.retention

        # Brokers answer before they show it: whoever looks next would see what was.
        await self._until(f"the retention of topic {name}", shown, is_there)
        return changed

    async def delete(self, name: str) -> None:
        if name not in await self.refresh([name]):
            raise checks.unknown(Partition(name, 0), None)
        request = DeleteTopicsRequest_v3([self.names.inside(name)], _TIMEOUT_MS)
        await self._change(
            f"deleting topic {name}",
            request,
            lambda answer: [(topic, code, None) for topic, code in answer.topic_error_codes],
            rights.DELETE,
        )
        await self._until(f"topic {name} to be gone", lambda: self.refresh([name]), lambda found: name not in found)

    async def _change(
        self, what: str, request: Any, codes: Callable[[Any], Sequence[tuple[str, int, str | None]]], operation: str
    ) -> None:
        """Any broker passes it on to the controller. Of two who create or delete at once, both are right."""

        async def ask() -> None:
            for name, code, text in codes(await self._connections.ask_any(request)):
                if code not in (TOPIC_EXISTS, UNKNOWN_TOPIC):
                    check(what, code, text, on(rights.TOPIC, operation, name))

        await self._connections.retried(what, ask)

    async def _shown(self, name: str, partitions: int) -> TopicInfo:
        """The topic, once every partition of it has a leader."""

        def whole(found: dict[str, Layout]) -> bool:
            return name in found and len(found[name].leaders) >= partitions and -1 not in found[name].leaders

        await self._until(f"topic {name} to have its leaders", lambda: self.refresh([name]), whole)
        return (await self.infos([name]))[name]

    async def _until(self, what: str, ask: Any, there: Callable[[Any], bool]) -> None:
        deadline = (loop := asyncio.get_running_loop()).time() + _SHOWN_WITHIN_S
        while not there(await ask()):
            if loop.time() > deadline:
                raise LogBusy(f"waited {_SHOWN_WITHIN_S:.0f} s for {what}: look at the brokers, and try again")
            await asyncio.sleep(0.005)

    async def led(
        self,
        what: str,
        partitions: Collection[Partition],
        ask: Any,
        operation: str,
        within_s: float = ANSWER_WITHIN_S,
        transactional_id: str = "",
    ) -> dict[Partition, Any]:
        """What `ask(node, partitions)` answers for all partitions, each from its leader; again where a leader moved. It
        takes the right to `operation`, and to write by `transactional_id`.

        `ask` gives a code and a value for each partition. Raises UnknownTopic, KafkaRefused, LogUnavailable.
        """
        done: dict[Partition, Any] = {}

        async def one_round() -> None:
            left = [partition for partition in partitions if partition not in done]
            leaders = await self.by_leader(left, within_s)
            try:
                answers = await asyncio.gather(*(ask(node, listed) for node, listed in leaders.items()))
            except Unreachable:
                self.forget({partition.topic for partition in left})  # another broker may lead them by now
                raise
            for answer in answers:
                done.update({partition: value for partition, (code, value) in answer.items() if _is_done(code)})
            for answer in answers:
                for partition, (code, _) in answer.items():
                    if not _is_done(code):
                        taken = on(rights.TOPIC, operation, self.names.inside(partition.topic))
                        taken += on(rights.TRANSACTIONAL_ID, rights.WRITE, transactional_id)
                        refused = KafkaRefused(f"{what} of {partition}", code, None, taken)
                        refused.partition = partition
                        if refused.then is Then.LEADER:
                            self.forget([partition.topic])
                        raise refused

        if partitions:
            await self._connections.retried(what, one_round, within_s=within_s)
        return done


def _is_done(code: int) -> bool:
    return code == NONE or then(code) is Then.DONE
