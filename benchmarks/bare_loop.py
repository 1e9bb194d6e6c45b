"""The bare loops that a worker is measured beside. Each runs in a process of its own and prints its CPU seconds.

One rule: a bare loop makes the same bytes and keeps no promise. The first decodes the same batches to keys and values, folds a
dict with one `get` of the store per distinct key and commit, encodes, and writes the same changelog batches and the same
RocksDB store. The second reads the batches from the log as it goes, and commits its changelog and positions to it: what a
record costs beyond it is its object, its call and its table. One more has every key at hand: reads of the store, changelogs, commits
and writes alone, which is what no form can be without. The third besides makes a `Record` of each, and calls the app's own
function with a dict that asks the store: the least that any worker in Python does. The last two are the second with what a
form needs: a re-keyed record is written to the log and read again, one that waits gives the event loop a turn.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bare_log import OUTPUT, BareLog, open_bare_log
from benchmarks.stream_apps import PARTITIONS, TOPIC, count_all, tail_of
from pipeline.records import Record
from pipeline.values.partitioner import partition_of
from state.log import batches
from state.log.protocol import Fetched, NewRecord, Partition
from state.log.sqlite import open_sqlite
from state.store.buffered import BufferedStore
from state.store.rocksdb import Budget, RocksDbStore

COMMIT_RECORDS = 30_000  # about what a worker commits in 100 ms
FETCH_BYTES = 256 << 10
BARE: Final = "bare"
WITH_LOG: Final = "bare, with the log"
AT_HAND: Final = "bare, keys at hand"
WITH_RECORDS: Final = "bare, with records"
REKEYING: Final = "bare, rekeying"
WAITING: Final = "bare, waiting"
LOOPS = (BARE, WITH_LOG, AT_HAND, WITH_RECORDS, REKEYING, WAITING)
Folds = list[dict[bytes, int]]
_NOTHING: Final[Mapping[int, Sequence[NewRecord]]] = {}


def run(loop: str, folder: Path, source: Path) -> float:
    """Returns the CPU seconds of the loop over what the log `source` has."""
    command = [sys.executable, "-m", "benchmarks.bare_loop", loop, str(folder), str(source)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def bare(folder: Path, source: Path) -> float:
    log = await open_sqlite(source, create=False)
    found: list[tuple[int, bytes]] = []
    reader = log.reader()
    for number in range(PARTITIONS):
        reader.add(Partition(TOPIC, number), 0)
    while parts := await reader.poll(max_bytes_per_partition=FETCH_BYTES):
        found += [(part.partition.number, part.data) for part in parts]
    await reader.close()
    await log.close()
    stores = [RocksDbStore(folder / f"bare-{n}", stamp={}, cache=Budget()) for n in range(PARTITIONS)]
    began = time.process_time()
    waiting = 0
    folds: Folds = [{} for _ in stores]
    for number, data in found:
        waiting += _fold(data, folds[number], stores[number])
        if waiting >= COMMIT_RECORDS:
            _commit(stores, folds)
            waiting = 0
    _commit(stores, folds)
    took = time.process_time() - began
    for store in stores:
        store.close()
    return took


def _fold(data: bytes, fold: dict[bytes, int], store: RocksDbStore) -> int:
    """Returns how many records there were."""
    count = 0
    for key, _ in batches.pairs(data, 0):
        assert key is not None
        if key in fold:
            fold[key] += 1
        else:
            stored = store.get(key)
            fold[key] = 1 if stored is None else int.from_bytes(stored, "big") + 1
        count += 1
    return count


def _encoded(fold: dict[bytes, int]) -> dict[bytes, bytes | None]:
    return {key: value.to_bytes(8, "big") for key, value in fold.items()}


def _commit(stores: list[RocksDbStore], folds: Folds) -> None:
    for store, fold in zip(stores, folds, strict=True):
        if fold:
            writes = _encoded(fold)
            batches.build([NewRecord(key, value, 1_000) for key, value in writes.items()])
            store.write(writes, store.offset + len(writes))
            fold.clear()


async def with_log(folder: Path, source: Path) -> float:
    """The store is the buffered one, as a worker's is."""
    async with open_bare_log(folder, source, [TOPIC], PARTITIONS) as log:
        folds: Folds = [{} for _ in log.stores]

        async def take(part: Fetched) -> int:
            number = part.partition.number
            return _fold(part.data, folds[number], log.stores[number])

        return await _all(log, take, lambda: _commit_in_log(log, folds))


async def _all(log: BareLog, take: Callable[[Fetched], Awaitable[int]], commit: Callable[[], Awaitable[None]]) -> float:
    """Reads to the end and commits now and then; `take` returns how many records a part had. Returns the CPU seconds."""
    began, waiting = time.process_time(), 0
    while parts := await log.reader.poll(max_bytes_per_partition=FETCH_BYTES):
        for part in parts:
            waiting += await take(part)
            log.positions[part.partition] = part.next_position
            if waiting >= COMMIT_RECORDS:
                await commit()
                waiting = 0
    await commit()
    return time.process_time() - began


async def at_hand(folder: Path, source: Path) -> float:
    async with open_bare_log(folder, source, [TOPIC], PARTITIONS) as log:
        parts: list[tuple[Partition, int, list[bytes]]] = []
        while found := await log.reader.poll(max_bytes_per_partition=FETCH_BYTES):
            parts += [
                (part.partition, part.next_position, [key or b"" for key, _ in batches.pairs(part.data, 0)])
                for part in found
            ]
        writes: list[dict[bytes, bytes | None]] = [{} for _ in log.stores]
        one = (1).to_bytes(8, "big")
        began, waiting = time.process_time(), 0
        for partition, next_position, keys in parts:
            get, written = log.stores[partition.number].get, writes[partition.number]
            for key in keys:
                if key not in written:
                    get(key)
                    written[key] = one
            log.positions[partition] = next_position
            waiting += len(keys)
            if waiting >= COMMIT_RECORDS:
                await log.commit(dict(enumerate(writes)), _NOTHING)
                writes, waiting = [{} for _ in log.stores], 0
        await log.commit(dict(enumerate(writes)), _NOTHING)
        return time.process_time() - began


class _Counts(dict[str, int]):
    """As a table, with no promise."""

    def __init__(self, store: BufferedStore) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, key: str) -> int:
        stored = self._store.get(key.encode())
        return 0 if stored is None else int.from_bytes(stored, "big")


async def with_records(folder: Path, source: Path) -> float:
    async with open_bare_log(folder, source, [TOPIC], PARTITIONS) as log:
        tables = [_Counts(store) for store in log.stores]

        async def take(part: Fetched) -> int:
            number = part.partition.number
            records = [
                Record(raw.key.decode(), raw.value, raw.timestamp_ms, raw.headers, TOPIC, number, raw.offset)
                for raw in batches.decode(part.data, part.position)
                if raw.key is not None
            ]
            count_all(records, tables[number])  # type: ignore[arg-type]
            return len(records)

        return await _all(log, take, lambda: _commit_tables(log, tables))


async def _commit_tables(log: BareLog, tables: list[_Counts]) -> None:
    await _commit_in_log(log, [{key.encode(): value for key, value in table.items()} for table in tables])
    for table in tables:
        table.clear()


async def rekeying(folder: Path, source: Path) -> float:
    """Each record goes to the partition of its new key, and is counted once it has come from there."""
    async with open_bare_log(folder, source, [TOPIC, OUTPUT], PARTITIONS) as log:
        folds: Folds = [{} for _ in log.stores]
        sent: dict[int, list[NewRecord]] = {}
        began, waiting = time.process_time(), 0
        while True:
            parts = await log.reader.poll(max_bytes_per_partition=FETCH_BYTES)
            for part in parts:
                topic, number = part.partition
                log.positions[part.partition] = part.next_position
                if topic == OUTPUT:
                    waiting += _fold(part.data, folds[number], log.stores[number])
                    continue
                for raw in batches.decode(part.data, part.position):
                    assert raw.key is not None
                    key = tail_of(raw.key.decode()).encode()
                    sent.setdefault(partition_of(key, PARTITIONS), []).append(
                        NewRecord(key, raw.value, raw.timestamp_ms)
                    )
                    waiting += 1
            if waiting >= COMMIT_RECORDS or (waiting and not parts):
                await _commit_in_log(log, folds, sent)
                sent, waiting = {}, 0
            elif not parts:
                return time.process_time() - began


async def waits(folder: Path, source: Path) -> float:
    async with open_bare_log(folder, source, [TOPIC], PARTITIONS) as log:
        folds: Folds = [{} for _ in log.stores]

        async def take(part: Fetched) -> int:
            number = part.partition.number
            count = _fold(part.data, folds[number], log.stores[number])
            for _ in range(count):
                await asyncio.sleep(0)
            return count

        return await _all(log, take, lambda: _commit_in_log(log, folds))


async def _commit_in_log(log: BareLog, folds: Folds, sent: Mapping[int, Sequence[NewRecord]] = _NOTHING) -> None:
    await log.commit({number: _encoded(fold) for number, fold in enumerate(folds)}, sent)
    for fold in folds:
        fold.clear()


def main() -> None:
    loop, folder, source = sys.argv[1:]
    print(asyncio.run(_LOOPS[loop](Path(folder), Path(source))))


_LOOPS: Final[Mapping[str, Callable[[Path, Path], Coroutine[Any, Any, float]]]] = {
    BARE: bare,
    WITH_LOG: with_log,
    AT_HAND: at_hand,
    WITH_RECORDS: with_records,
    REKEYING: rekeying,
    WAITING: waits,
}


if __name__ == "__main__":
    main()
