"""`orchestrator produce APP TOPIC`: JSON objects, one a line, from standard input or a file into a topic.

One rule: the number of the line is committed with its records, so running the same file again completes it and writes
nothing twice; a bad line is named and nothing is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
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
from state.log.group_store import AppMetadata, MetadataKind
from state.log.protocol import Log, NewRecord, Partition
from workers.commands.run import add_place
from workers.logs import default_log, open_log
from workers.prepare import prepare
from workers.values import to_bytes

BATCH = 1_000
LOOK_S = 0.5
PROGRESS = MetadataKind("produce")
FIELDS = {"key", "value", "timestamp_ms", "headers"}
IGNORED = {"partition", "offset"}  # `consume` prints them; where a record goes is decided by its key
NUMBER_SHOWN = 20
TIME_MAX_MS = (1 << 63) - 1


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
    if not 0 <= args.rate < math.inf:
        raise WrongUse(f"--rate {args.rate}: write a number of records a second, or 0 for as fast as it goes")
    count = asyncio.run(_produce(app, topic, url, args.file, args.rate))
    print(json.dumps({"schema": 1, "records": count}) if args.json else f"{count} record{'s' if count != 1 else ''}")
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
        counted = _Counted(log, prepared.topics[topic.topic].partitions)
        if file is None:
            # Standard input cannot be read again, so it is kept; all lines are checked before the first is written.
            lines = list(enumerate(sys.stdin.buffer, 1))
            _check(topic, lines)
            return await _write(log, app, topic, counted, lines, None, None, rate)
        path = Path(file)
        try:
            name = f"{topic.topic}:{hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}"
            done = await log.metadata(app.id, PROGRESS, name)
            start = int(done) if done else 0
            with path.open("rb") as lines_:
                _check(topic, _after(lines_, start))
                lines_.seek(0)
                return await _write(log, app, topic, counted, _after(lines_, start), name, done, rate)
        except OSError as error:
            raise WrongUse(f"cannot read {file}: {error.strerror}; name a readable file") from None
    finally:
        await log.close()


def _after(lines: Iterable[bytes], start: int) -> Iterator[tuple[int, bytes]]:
    return ((n, line) for n, line in enumerate(lines, 1) if n > start)


def _check(topic: Topic[Any, Any], lines: Iterable[tuple[int, bytes]]) -> None:
    """Raises BadLine for the first line that is not a record."""
    for number, line in lines:
        if line.strip():
            read_line(topic, number, line)


async def _write(
    log: Log,
    app: App,
    topic: Topic[Any, Any],
    counted: _Counted,
    lines: Iterable[tuple[int, bytes]],
    name: str | None,
    done: bytes | None,
    rate: float,
) -> int:
    count = 0
    batch_size = BATCH if not rate else max(1, min(BATCH, int(rate / 20)))
    begun = time.monotonic()
    for batch in _batches(topic, lines, batch_size):
        records = batch.records(await counted.now(topic.topic), count)
        if name is None:
            await log.append(records)
        else:
            progress = AppMetadata(app.id, PROGRESS, name, str(batch.last).encode())
            await log.append(records, metadata=progress, seen=done)
            done = progress.value
        count += len(batch.items)
        if rate:
            await asyncio.sleep(max(0.0, begun + count / rate - time.monotonic()))
    return count


class _Counted:
    """How many partitions the topic has: it may grow while a long file is written."""

    def __init__(self, log: Log, partitions: int) -> None:
        self._log = log
        self._partitions = partitions
        self._looked = time.monotonic()

    async def now(self, topic: str) -> int:
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            info = (await self._log.topics([topic])).get(topic)
            self._partitions = self._partitions if info is None else info.partitions
        return self._partitions


class _Batch:
    """Decoded lines and the number of the last."""

    def __init__(
        self, topic: Topic[Any, Any], items: list[tuple[bytes | None, bytes | None, int | None, Any]], last: int
    ):
        self._topic = topic
        self.items = items
        self.last = last

    def records(self, partitions: int, done: int) -> dict[Partition, list[NewRecord]]:
        now = time.time_ns() // 1_000_000
        found: dict[Partition, list[NewRecord]] = {}
        for index, (key, value, at_ms, headers) in enumerate(self.items):
            number = partition_of(key, partitions, keyless=done + index)
            record = NewRecord(key, value, now if at_ms is None else at_ms, headers)
            found.setdefault(Partition(self._topic.topic, number), []).append(record)
        return found


def _batches(topic: Topic[Any, Any], lines: Iterable[tuple[int, bytes]], size: int) -> Iterator[_Batch]:
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
        try:
            return codec.encode(value)
        except Exception as error:
            raise CodecError(f"{type(codec).__name__} cannot write it: {type(error).__name__}: {error}") from error
    data = to_bytes(name, value)
    return codec.encode(codec.decode(data))


def read_line(topic: Topic[Any, Any], number: int, line: bytes) -> tuple[bytes | None, bytes | None, int | None, Any]:
    """A line to key and value bytes, time, headers. Raises BadLine naming the line."""
    try:
        facts = msgspec.json.decode(line)
        if not isinstance(facts, dict):
            raise ValueError("not a JSON object")
        unknown = set(facts) - FIELDS - IGNORED
        if unknown:
            raise ValueError(f"unknown field '{min(unknown)}'; known are {', '.join(sorted(FIELDS))}")
        if "value" not in facts:
            raise ValueError("no value; write null to delete a key")
        key = encoded(topic.key_codec, facts.get("key"))
        value = encoded(topic.value_codec, facts["value"])
        return key, value, _time(facts.get("timestamp_ms")), _headers(facts.get("headers"))
    except RecursionError:
        raise BadLine(f"line {number}: nested too deeply; nothing was written") from None
    except UnicodeDecodeError:
        raise BadLine(f"line {number}: not UTF-8; nothing was written") from None
    except msgspec.DecodeError as error:
        raise BadLine(f"line {number}: {_cause(line, error)}; nothing was written") from None
    except (ValueError, TypeError, CodecError, WrongUse, msgspec.MsgspecError) as error:
        raise BadLine(f"line {number}: {error}; nothing was written") from None


def _cause(line: bytes, error: msgspec.DecodeError) -> str:
    """What is wrong with a line. Where it is JSON to others, it is for one of two things that the decoder does not name."""
    large: list[str] = []

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            large.append(text)
        return value

    try:
        text = json.dumps(json.loads(line, parse_float=number), ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(error)
    if large:
        return f"the number {large[0][:NUMBER_SHOWN]} is too large"
    half = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
    return str(error) if half is None else f"\\u{ord(half):04x} is half of a pair that makes one character"


def _time(given: Any) -> int | None:
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= TIME_MAX_MS:
        raise ValueError("timestamp_ms is not a whole number of milliseconds since 1970")
    return given


def _headers(given: Any) -> tuple[tuple[str, bytes], ...]:
    if given is None:
        return ()
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ValueError("headers is not an object of strings")
    return tuple((name, text.encode()) for name, text in given.items())
