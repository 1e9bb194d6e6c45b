"""Snapshots of a life: those that are taken while it runs, and those that may not be restored from.

One rule: files are real and are written by the product's own code (`state.snapshot`, `state.manifest`, the command
`snapshot`); whatever may not be used holds wrong values, so that a store that is restored from it differs from its changelog.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchestratorError
from state import history, manifest
from state.errors import SnapshotUnusable, StateError
from state.log import base
from state.log.group_store import AppMetadata
from state.log.protocol import NewRecord, Partition, TopicInfo
from state.manifest import ScopeManifest, SnapshotManifest
from state.private import make_folder
from state.snapshot import Origin, write_table
from tests.process_simulation.judges import records_of
from tests.process_simulation.process import Process
from workers.commands import snapshot as command
from workers.prepare import prepare

if TYPE_CHECKING:
    from tests.process_simulation.life import Life

TABLE = "balances"
WRONG = (123_456_789).to_bytes(8, "big")
BASE_KEYS = 6  # of a backfill before the life, each with a balance of its own
FORGED = tuple(f"snapshot-{of}" for of in ("log", "app", "topic", "history", "restored", "base", "past-end"))
Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the manifests of a snapshot are made of; `offsets` and `pairs` by number of the partition."""

    name: str
    application: str
    log_id: str
    topic: TopicInfo
    time_ms: int
    history: str
    offsets: Mapping[int, int]
    pairs: Mapping[int, Pairs]
    base: bool = False


class Snapshots:
    """The folder of snapshots of a life, and what befalls it."""

    def __init__(self, life: Life, root: Path) -> None:
        self.root = root
        self.befell: Counter[str] = Counter()  # what was done, and not only drawn
        self.before: dict[str, int] = {}  # balances of the backfill that the changelogs go on from
        self._life = life
        self._made = 0
        self._changelog = life.app.tables[TABLE].changelog

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    # ---- taken

    def take(self, steps: int = 0) -> None:
        """As a process of its own; it is killed after so many steps, if any."""
        life = self._life
        process = Process(life.loop, "snapshot")
        life.processes.append(process)
        if steps:
            process.steps_left, process.after_steps = steps, lambda: process.signal(signal.SIGKILL)
        process.start(self._run(life.log_client(), self._name("s")))

    def _name(self, letter: str) -> str:
        self._made += 1
        return f"{letter}-{self._made:03d}"

    async def _run(self, log: Any, name: str) -> int:
        try:
            await self._take(log, name)
        except (StateError, OrchestratorError) as error:
            self._life.loop.tell(f"snapshot {name} is not taken: {type(error).__name__}")
            return 1
        return 0

    async def _take(self, log: Any, name: str) -> None:
        """Every table up to the end of its changelog. The history and the time are asked for first: what is written
        meanwhile may be of a later one."""
        life = self._life
        found = await log.topics([self._changelog])
        if self._changelog not in found:
            return
        topic = found[self._changelog]
        partitions = [Partition(topic.name, number) for number in range(topic.partitions)]
        past, now_ms = await history.read(log, life.app.id), life.wall_ms("")
        ends = await log.ends(partitions, settled=True)
        folder, sums = self.root / name, {}
        for partition in partitions:
            offset = ends[partition]
            pairs = self._pairs(partition, offset)
            facts = Facts(name, life.app.id, log.log_id, topic, now_ms, past.id, {partition.number: offset}, {})
            scope = f"0_{partition.number}"
            sums[scope] = await asyncio.to_thread(_write_scope, folder, facts, partition.number, offset, pairs)
        await asyncio.to_thread(_publish, self.root, facts, sums)
        self.befell["taken"] += 1
        life.loop.tell(f"snapshot {name} is taken: {sorted(str(p) + '@' + str(end) for p, end in ends.items())}")

    def _pairs(self, partition: Partition, offset: int) -> Pairs:
        """What the table has there, base and all, in the order of its keys."""
        values: dict[bytes, bytes | None] = {}
        if self.before:
            values |= self._base_values(partition.number)
        values |= {
            one.key: one.value for one in records_of(self._life.log, partition) if one.offset < offset and one.key
        }
        return sorted((key, value) for key, value in values.items() if value is not None)

    # ---- the backfill before a life

    async def begin_with_a_base(self) -> None:
        """As `backfill --snapshot-only` leaves a log: entries of tables in the snapshot alone, a marker in each changelog."""
        life, log = self._life, self._life.log
        prepared = await prepare(log, life.app)
        topic = prepared.topics[self._changelog]
        partitions = [Partition(topic.name, number) for number in range(topic.partitions)]
        lease = await log.acquire(life.app.id, "backfill", "", None)
        assert lease is not None
        await history.begin(log, lease, partitions, "backfilled")
        self.before = {f"k{number}": 1_001 + 2 * number for number in range(BASE_KEYS)}
        offsets = {partition.number: base.OFFSET for partition in partitions}
        pairs = {number: sorted(self._base_values(number).items()) for number in offsets}
        facts = Facts(
            self._name("base"),
            life.app.id,
            log.log_id,
            topic,
            life.wall_ms(""),
            "backfilled",
            offsets,
            pairs,
            base=True,
        )
        write(self.root, facts)
        marker = base.marker(life.wall_ms(""))
        about = AppMetadata(life.app.id, base.BASE, topic.name, base.encode(base.Base(facts.name, topic.topic_id)))
        inputs = {Partition("payments", number): 0 for number in range(topic.partitions)}
        await log.seed_positions(lease, inputs, {one: [marker] for one in partitions}, metadata=[about])
        for partition in partitions:
            rows = [NewRecord(key, value, 0) for key, value in pairs[partition.number]]
            life.receipts.history[partition] = [(base.OFFSET, row) for row in rows]

    def _base_values(self, number: int) -> dict[bytes, bytes]:
        app, found = self._life.app, {}
        for key, value in self.before.items():
            raw = app.topics["payments"].key_codec.encode(key)
            if self._life.partition_of(raw) == number:
                found[raw] = app.tables[TABLE].value_codec.encode(value)
        return found

    # ---- what befalls them

    def damage(self, pick: int) -> None:
        """A byte, a half or all of a file of a published snapshot; `snapshot verify` must say so."""
        found = [one for one in manifest.listing(self.root)[0] if not one.base]
        if not found:
            return
        name = found[pick % len(found)].snapshot
        files = sorted(path for path in (self.root / name).rglob("*") if path.is_file())
        path = files[pick // 7 % len(files)]
        content, way = path.read_bytes(), pick % 3
        if way == 0 and path.name != manifest.MANIFEST:
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif way == 1 or (path.parent.name == name and path.name == manifest.MANIFEST):
            path.write_bytes(content[: len(content) // 2])
        else:
            path.unlink()
        self.befell["damaged"] += 1
        self._life.loop.tell(f"snapshot {name} is damaged: {path.parent.name}/{path.name}")
        try:
            self.ask("verify", name)
        except command.SnapshotDamaged:
            return
        self._life.breaks(f"snapshot: {path} was damaged, and verify does not say so")

    def forge(self, kind: str) -> None:
        """A snapshot that is newer than every other and may not be used."""
        life, found = self._life, manifest.listing(self.root)[0]
        topic = life.log._topics.get(self._changelog)
        if topic is None:
            return
        newest = max((one.time_ms for one in found), default=0)
        past = life.beginnings()
        offsets = {
            number: life.log.part(Partition(topic.name, number)).readable_end for number in range(topic.partitions)
        }
        facts = Facts(
            self._name("x"),
            life.app.id,
            life.log.log_id,
            topic,
            max(newest + 1, life.wall_ms("")),
            past[-1].id if past else "",
            offsets,
            {n: [(b"k%d" % key, WRONG) for key in range(3)] if offset else [] for n, offset in offsets.items()},
        )
        match kind:
            case "snapshot-log":
                facts = replace(facts, log_id="another")
            case "snapshot-app":
                facts = replace(facts, application="another")
            case "snapshot-topic":
                facts = replace(facts, topic=replace(topic, topic_id="another"))
            case "snapshot-history":
                facts = replace(facts, history="another")
            case "snapshot-base":
                facts = replace(facts, base=True)
            case "snapshot-past-end":
                facts = replace(facts, offsets={number: offset + 1_000 for number, offset in offsets.items()})
            case "snapshot-restored":
                if len(past) < 2:
                    return
                ends = past[-1].ends
                beyond = {n: ends.get(f"{topic.name}-{n}", 0) for n in offsets}
                if all(offsets[n] <= beyond[n] for n in offsets):
                    return
                facts = replace(facts, history=past[-2].id)
                within = {n for n in offsets if offsets[n] <= beyond[n]}  # where it is right: nothing was written since
                rights = {n: self._pairs(Partition(topic.name, n), offsets[n]) for n in within}
                facts = replace(facts, pairs={**facts.pairs, **rights})
        self.befell[kind] += 1
        write(self.root, facts)

    def prune(self, keep: int) -> None:
        self.befell["pruned"] += len(self.ask("prune", "--keep", str(keep))["removed"])

    def ask(self, *words: str) -> Any:
        """What `orchestrator snapshot` answers. Raises SnapshotDamaged."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            command.run([*words, "--snapshots", str(self.root), "--json"])
        return json.loads(said.getvalue())


# ---- files


def write(root: Path, facts: Facts) -> None:
    folder = root / facts.name
    sums = {
        f"0_{number}": _write_scope(folder, facts, number, offset, facts.pairs[number])
        for number, offset in facts.offsets.items()
    }
    _publish(root, facts, sums)


def _write_scope(folder: Path, facts: Facts, number: int, offset: int, pairs: Pairs) -> str:
    """As a task of a backfill: a draft, and then its name. Raises SnapshotUnusable."""
    draft = folder / f".0_{number}"
    origin = Origin(facts.log_id, facts.topic.name, facts.topic.topic_id, offset, facts.time_ms)
    make_folder(draft)
    table = write_table(draft, TABLE, pairs, origin)
    sum_ = manifest.write_scope(draft, ScopeManifest(f"0_{number}", facts.log_id, facts.time_ms, (table,)))
    if not manifest.settle(draft, folder / f"0_{number}"):
        raise SnapshotUnusable(f"{folder} is there already")
    return sum_


def _publish(root: Path, facts: Facts, sums: dict[str, str]) -> None:
    manifest.publish(
        root,
        SnapshotManifest(
            facts.name,
            facts.application,
            facts.log_id,
            facts.time_ms,
            {facts.topic.name: facts.topic.partitions},
            sums,
            base=facts.base,
            history=facts.history,
        ),
    )
