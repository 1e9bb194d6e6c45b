"""The bare loops that windows, sessions and joins are measured beside: each a process of its own, which prints its CPU seconds.

One rule: a bare loop makes the same kind of entries and keeps no promise. It reads the same batches from the log, folds what is
open in dicts by hand, and commits changelog, outputs and positions as often as the worker did. What closes is deleted; no record
is late, nothing is decoded, no call can fail. `benchmarks/time.py` runs them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch

from benchmarks.bare_log import BareLog, Writes, open_bare_log
from benchmarks.time_apps import OTHER, PARTITIONS, TOPIC
from state.log import batches
from state.log.protocol import NewRecord
from state.store.buffered import BufferedStore

FETCH_BYTES = 16 << 10  # of both topics about as much, so that the records of a join come in the order of time
MINUTE_MS, HOP_MS, GAP_MS, WITHIN_MS = 60_000, 10_000, 30_000, 10_000


def rate(form: str, folder: Path, source: Path, records: int, commit_records: int) -> float:
    """Records per CPU-second of the loop over what the log `source` has."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.bare_time", form, str(folder), str(source), str(commit_records)]
    return records / float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Loop:
    """Of one task: `take` has the records of a batch, `writes` what its changelog gets, `sent` what its output gets."""

    def __init__(self, store: BufferedStore) -> None:
        self.store = store
        self.sent: list[NewRecord] = []

    def take(self, topic: str, records: Any) -> int:
        """Returns how many there were."""
        raise NotImplementedError

    def writes(self) -> Writes:
        raise NotImplementedError


class Plain(Loop):
    def __init__(self, store: BufferedStore) -> None:
        super().__init__(store)
        self._fold: dict[bytes, int] = {}

    def take(self, topic: str, records: Any) -> int:
        fold, get, count = self._fold, self.store.get, 0
        for record in records:
            key = record.key
            if key in fold:
                fold[key] += 1
            else:
                stored = get(key)
                fold[key] = 1 if stored is None else int.from_bytes(stored, "big") + 1
            count += 1
        return count

    def writes(self) -> Writes:
        made: Writes = {key: value.to_bytes(8, "big") for key, value in self._fold.items()}
        self._fold.clear()
        return made


class Windows(Loop):
    """Of a minute; what is open is held by the start of the window."""

    def __init__(self, store: BufferedStore, every_ms: int) -> None:
        super().__init__(store)
        self._every_ms = every_ms
        self._back_ms = list(range(0, MINUTE_MS, every_ms))
        self._open: dict[int, dict[bytes, int]] = {}
        self._changed: dict[int, set[bytes]] = {}
        self._now_ms = 0

    def take(self, topic: str, records: Any) -> int:
        opened, changed, count = self._open, self._changed, 0
        for record in records:
            key, at_ms = record.key, record.timestamp
            if at_ms > self._now_ms:
                self._now_ms = at_ms
            last_ms = at_ms - at_ms % self._every_ms
            for back_ms in self._back_ms:
                start_ms = last_ms - back_ms
                if start_ms < 0:
                    continue
                if (window := opened.get(start_ms)) is None:
                    window = opened[start_ms] = {}
                if (keys := changed.get(start_ms)) is None:
                    keys = changed[start_ms] = set()
                window[key] = window.get(key, 0) + 1
                keys.add(key)
            count += 1
        return count

    def writes(self) -> Writes:
        made: dict[bytes, bytes | None] = {}
        for start_ms, keys in self._changed.items():
            head, window = b"w" + start_ms.to_bytes(8, "big"), self._open[start_ms]
            made.update({head + key: window[key].to_bytes(8, "big") for key in keys})
        self._changed.clear()
        for start_ms in [start_ms for start_ms in self._open if start_ms + MINUTE_MS <= self._now_ms]:
            head = b"w" + start_ms.to_bytes(8, "big")
            made.update(dict.fromkeys([head + key for key in self._open.pop(start_ms)]))
        return made


class Sessions(Loop):
    """Of each key the last one is held: its first and last time, and its count."""

    def __init__(self, store: BufferedStore) -> None:
        super().__init__(store)
        self._open: dict[bytes, tuple[int, int, int]] = {}
        self._made: dict[bytes, bytes | None] = {}
        self._now_ms = 0

    def take(self, topic: str, records: Any) -> int:
        opened, made, count = self._open, self._made, 0
        for record in records:
            key, at_ms = record.key, record.timestamp
            if at_ms > self._now_ms:
                self._now_ms = at_ms
            start_ms, end_ms, visits = opened.get(key, (at_ms, at_ms, 0))
            if at_ms - end_ms > GAP_MS:
                made[_of_session(start_ms, key)] = None
                start_ms, visits = at_ms, 0
            opened[key] = start_ms, at_ms, visits + 1
            made[_of_session(start_ms, key)] = at_ms.to_bytes(8, "big") + (visits + 1).to_bytes(8, "big")
            count += 1
        return count

    def writes(self) -> Writes:
        made, self._made = self._made, {}
        return made


class Joining(Loop):
    """Of each side what is not over is held by its key."""

    def __init__(self, store: BufferedStore) -> None:
        super().__init__(store)
        self._kept: tuple[dict[bytes, list[tuple[int, bytes]]], ...] = {}, {}
        self._places: tuple[list[tuple[int, bytes]], ...] = [], []
        self._made: dict[bytes, bytes | None] = {}
        self._now_ms = self._number = 0

    def take(self, topic: str, records: Any) -> int:
        side, count = int(topic == OTHER), 0
        mine, theirs, places, made = self._kept[side], self._kept[1 - side], self._places[side], self._made
        for record in records:
            key, at_ms, value = record.key, record.timestamp, record.value
            if at_ms > self._now_ms:
                self._now_ms = at_ms
            for other_ms, other in theirs.get(key, ()):
                if -WITHIN_MS <= other_ms - at_ms <= WITHIN_MS:
                    self.sent.append(NewRecord(key, other if side else value, max(at_ms, other_ms)))
            self._number += 1
            place = b"lr"[side : side + 1] + (at_ms // WITHIN_MS).to_bytes(8, "big") + len(key).to_bytes(4, "big") + key
            place += at_ms.to_bytes(8, "big") + self._number.to_bytes(8, "big")
            kept = mine.setdefault(key, [])
            while kept and kept[0][0] + WITHIN_MS < self._now_ms:
                del kept[0]
            kept.append((at_ms, value))
            made[place] = value
            places.append((at_ms + WITHIN_MS, place))
            count += 1
        return count

    def writes(self) -> Writes:
        made, self._made = self._made, {}
        for places in self._places:
            over = next((at for at, (end_ms, _) in enumerate(places) if end_ms >= self._now_ms), len(places))
            made.update(dict.fromkeys([place for _, place in places[:over]]))
            del places[:over]
        return made


def _of_session(start_ms: int, key: bytes) -> bytes:
    return b"n" + start_ms.to_bytes(8, "big") + key


LOOPS: Mapping[str, Callable[[BufferedStore], Loop]] = {
    "plain": Plain,
    "tumbling": lambda store: Windows(store, MINUTE_MS),
    "hopping": lambda store: Windows(store, HOP_MS),
    "sessions": Sessions,
    "joining": Joining,
}


async def run(form: str, folder: Path, source: Path, commit_records: int) -> float:
    """Returns the CPU seconds."""
    topics = [TOPIC, OTHER] if form == "joining" else [TOPIC]
    async with open_bare_log(folder, source, topics, PARTITIONS) as bare:
        loops = [LOOPS[form](store) for store in bare.stores]
        began, waiting = time.process_time(), 0
        while parts := await bare.reader.poll(max_bytes_per_partition=FETCH_BYTES):
            for part in parts:
                loop = loops[part.partition.number]
                for header in batches.headers(part.data):
                    batch = DefaultRecordBatch(part.data[header.start : header.stop])
                    assert batch.validate_crc()
                    waiting += loop.take(part.partition.topic, batch)
                bare.positions[part.partition] = part.next_position
                if waiting >= commit_records:
                    await _commit(bare, loops)
                    waiting = 0
        await _commit(bare, loops)
        return time.process_time() - began


async def _commit(bare: BareLog, loops: list[Loop]) -> None:
    made = {number: loop.writes() for number, loop in enumerate(loops)}
    await bare.commit(made, {number: loop.sent for number, loop in enumerate(loops)})
    for loop in loops:
        loop.sent = []


def main() -> None:
    form, folder, source, commit_records = sys.argv[1:]
    print(asyncio.run(run(form, Path(folder), Path(source), int(commit_records))))


if __name__ == "__main__":
    main()
