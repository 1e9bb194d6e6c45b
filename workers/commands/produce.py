"""`orchestrator produce APP TOPIC`: JSON objects, one a line, from standard input or a file into a topic.

One rule: the number of the line is committed with its records, so running the same file again completes it and writes
nothing twice; a bad line is named and nothing of its batch is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser
from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.app import App
from pipeline.codecs import Codec, codec_name
from pipeline.definitions import Topic
from pipeline.errors import CodecError
from pipeline.loading import load
from pipeline.partitioner import partition_of
from state.log.protocol import Log, NewRecord, Partition
from workers.commands.run import add_place
from workers.logs import default_log, open_log
from workers.prepare import prepare
from workers.values import to_bytes

BATCH = 1_000
PROGRESS = "produce"


class BadLine(OrchestratorError):
    """A line that is not a record."""


def run(argv: list[str]) -> int:
    parser = Parser("produce", "Write records to a topic: a JSON object a line with key, value, timestamp_ms, headers.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--file", default=None, help="read a file; its progress is kept, so that a second run completes it"
    )
    parser.add_argument("--rate", type=float, default=0, help="records a second; 0: as fast as it goes")
    parser.add_argument("--json", action="store_true")
    add_place(parser)
    args = parser.parse_args(argv)
    app = load(args.app)
    topic = find_topic(app, args.topic)
    url = args.log or default_log(app.id, Path.cwd(), existing=False)
    count = asyncio.run(_produce(app, topic, url, args.file, args.rate))
    print(json.dumps({"schema": 1, "records": count}) if args.json else f"{count} records")
    return 0


def find_topic(app: App, name: str) -> Topic[Any, Any]:
    found = next((t for t in app.topics.values() if name in (t.name, t.topic)), None)
    if found is None:
        raise WrongUse(f"app '{app.id}' has no topic '{name}'; it has {', '.join(sorted(app.topics))}")
    return found


async def _produce(app: App, topic: Topic[Any, Any], url: str, file: str | None, rate: float) -> int:
    log = await open_log(url, create=True)
    try:
        prepared = await prepare(log, app)
        partitions = prepared.topics[topic.topic].partitions
        if file is None:
            return await _write(log, app, topic, partitions, enumerate(sys.stdin, 1), None, 0, rate)
        path = Path(file)
        try:
            with path.open() as lines:
                name = f"{topic.topic}:{hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}"
                done = await log.note(app.id, PROGRESS, name)
                start = int(done) if done else 0
                numbered = ((n, line) for n, line in enumerate(lines, 1) if n > start)
                return await _write(log, app, topic, partitions, numbered, name, start, rate)
        except OSError as error:
            raise WrongUse(f"cannot read {file}: {error.strerror}") from None
    finally:
        await log.close()


async def _write(
    log: Log,
    app: App,
    topic: Topic[Any, Any],
    partitions: int,
    lines: Iterable[tuple[int, str]],
    name: str | None,
    start: int,
    rate: float,
) -> int:
    count = 0
    batch_size = BATCH if not rate else max(1, min(BATCH, int(rate / 20)))
    begun = time.monotonic()
    if name is None:
        # Standard input cannot be read again: all lines are checked before the first is written.
        lines = list(lines)
        for batch in _batches(topic, lines, BATCH):
            batch.check()
    for batch in _batches(topic, lines, batch_size):
        records = batch.records(partitions, count)
        note = None if name is None else (app.id, PROGRESS, name, str(batch.last).encode())
        await log.append(records, note=note)
        count += len(batch.items)
        if rate:
            await asyncio.sleep(max(0.0, begun + count / rate - time.monotonic()))
    return count


class _Batch:
    """Decoded lines and the number of the last."""

    def __init__(
        self, topic: Topic[Any, Any], items: list[tuple[bytes | None, bytes | None, int | None, Any]], last: int
    ):
        self._topic = topic
        self.items = items
        self.last = last

    def check(self) -> None:
        """Decoding was the check."""

    def records(self, partitions: int, done: int) -> dict[Partition, list[NewRecord]]:
        now = time.time_ns() // 1_000_000
        found: dict[Partition, list[NewRecord]] = {}
        for index, (key, value, at_ms, headers) in enumerate(self.items):
            number = partition_of(key, partitions, keyless=done + index)
            record = NewRecord(key, value, now if at_ms is None else at_ms, headers)
            found.setdefault(Partition(self._topic.topic, number), []).append(record)
        return found


def _batches(topic: Topic[Any, Any], lines: Iterable[tuple[int, str]], size: int) -> Iterator[_Batch]:
    items: list[tuple[bytes | None, bytes | None, int | None, Any]] = []
    number = 0
    for number, line in lines:
        if line.strip():
            items.append(read_line(topic, number, line))
        if len(items) >= size:
            yield _Batch(topic, items, number)
            items = []
    if items:
        yield _Batch(topic, items, number)


def encoded(codec: Codec[Any], value: Any) -> bytes | None:
    """A JSON value as the topic's codec writes it; it is read back once, so that nothing unreadable gets in."""
    if value is None:
        return None
    name = codec_name(codec)
    if name == "custom":
        return codec.encode(value)
    data = to_bytes(name, value)
    return codec.encode(codec.decode(data))


def read_line(topic: Topic[Any, Any], number: int, line: str) -> tuple[bytes | None, bytes | None, int | None, Any]:
    """A line to key and value bytes, time, headers. Raises BadLine naming the line."""
    try:
        facts = msgspec.json.decode(line)
        if not isinstance(facts, dict):
            raise ValueError("not a JSON object")
        unknown = set(facts) - {"key", "value", "timestamp_ms", "headers"}
        if unknown:
            raise ValueError(f"unknown field '{min(unknown)}'; known are key, value, timestamp_ms, headers")
        key = encoded(topic.key_codec, facts.get("key"))
        value = encoded(topic.value_codec, facts.get("value"))
        at_ms = facts.get("timestamp_ms")
        if at_ms is not None and (not isinstance(at_ms, int) or isinstance(at_ms, bool)):
            raise ValueError("timestamp_ms is not a whole number")
        headers = tuple((str(k), str(v).encode()) for k, v in dict(facts.get("headers") or {}).items())
    except (ValueError, TypeError, CodecError, WrongUse, msgspec.MsgspecError) as error:
        raise BadLine(f"line {number}: {error}; nothing of it was written") from None
    return key, value, at_ms, headers
