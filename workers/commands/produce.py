"""`orchestrator produce APP TOPIC`: records from standard input (a JSON object a line) or a file into a topic.

One rule: what was read of a file is committed with its records, as a digest of its content, so running the same file
again goes on where it ended and writes nothing twice; and a file of another content is another file, whatever its name.
What was read of standard input is forgotten once all of it is written (`produce_input.py`).
A bad line is named; what came before it stays and is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import PLACE
from orchestrator.clocks import monotonic_s, wall_ms
from orchestrator.errors import OrchestratorError, WrongUse
from pipeline.app import App
from pipeline.definitions.definition import Topic
from pipeline.errors import PipelineError
from pipeline.files.piped import Piped
from pipeline.files.shape import BadFile, BadRow, FileRecord, Reading, Shape, shape_of
from pipeline.files.text import json_records
from pipeline.loading import load
from pipeline.values.partitioner import partition_of
from state.errors import LogUnavailable, MetadataChanged, StateError, UnfitRecord
from state.log.protocol import GroupLog, Log, NewRecord, Partition
from workers.commands.produce_end import Ending
from workers.commands.produce_input import Given, begin_input
from workers.commands.short_lived import Look, old_records
from workers.commands.when_free import when_free
from workers.first_start import refuse_cut_off
from workers.log.logs import log_url, open_log
from workers.log.produced import Begun, begin
from workers.missing_inputs import prepare_and_say

BATCH = 1_000
LOOK_S = 0.5


class BadLine(OrchestratorError):
    """A line that is not a record, or one that its topic does not take, or that another `produce` of this input writes;
    `records` before it are written."""

    def __init__(self, message: str, records: int) -> None:
        super().__init__(message)
        self.records = records


def run(argv: list[str]) -> int:
    """Runs `orchestrator produce`; its exit code. Raises WrongUse."""
    parser = Parser("produce", "Write records to a topic: a JSON object a line with key, value, timestamp_ms, headers.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--file",
        default=None,
        help="read a file (JSON lines, CSV, Parquet); what was read is kept, so that a second run goes on there",
    )
    add_shape(parser)
    parser.add_argument("--rate", type=float, default=0, help="records a second; 0: as fast as it goes")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE)
    args = parser.parse_args(argv)
    app = load(args.app)
    topic = find_topic(app, args.topic)
    shape = shape_of(args.key, args.value, args.timestamp, args.headers, args.partition)
    url = log_url(args, app.id, existing=False)
    refuse_cut_off(url, app.id, args.state_dir)
    if not 0 <= args.rate < math.inf:
        raise WrongUse(f"--rate {args.rate}: write a number of records a second, or 0 for as fast as it goes")
    ending = Ending()
    try:
        with ending.signals():
            is_known = asyncio.run(_produce(app, topic, url, args.file, shape, args.rate, ending))
    except SystemExit:
        print(f"interrupted: {ending.so_far()}", file=sys.stderr)
        if args.json:
            print(json.dumps({"schema": 1, "records": ending.written}))
        raise
    except StateError as error:
        if ending.has_begun:
            error.args = (f"{error}; {ending.so_far()}",)
            if args.json:
                print(json.dumps({"schema": 1, "records": ending.written}))
        raise
    except BadLine as error:
        if args.json:
            print(json.dumps({"schema": 1, "records": error.records}))
        raise
    count = ending.written
    known = f"; what {args.file} holds was produced before" if is_known and not count else ""
    print(json.dumps({"schema": 1, "records": count}) if args.json else f"{_records(count)}{known}")
    return 0


def add_shape(parser: Parser) -> None:
    """Options that say which columns of a flat file make a record."""
    parser.add_argument("--key", metavar="COLUMN", help="a flat file's column with the key")
    parser.add_argument("--value", metavar="COLUMN", help="and with the value; by default it is built from the columns")
    parser.add_argument(
        "--timestamp", metavar="COLUMN[:UNIT]", help="and with the time; s, ms, us or ns if whole numbers"
    )
    parser.add_argument("--headers", metavar="COLUMN", help="and with the headers, an object of names and texts")
    parser.add_argument("--partition", metavar="COLUMN", help="and with the partition; by default the key decides")


def find_topic(app: App, name: str) -> Topic[Any, Any]:
    """The topic of that name as the log describes the app. Raises WrongUse."""
    found = next((t for t in app.topics.values() if name in (t.name, t.topic)), None)
    if found is None:
        raise WrongUse(f"app '{app.id}' has no topic '{name}'; it has {', '.join(sorted(app.topics))}")
    return found


def _refuse_unreadable(file: str) -> None:
    """Raises WrongUse, before anything is made in a log."""
    path = Path(file)
    try:
        if path.is_dir():
            return
        is_special = path.exists() and not path.is_file()
        if not is_special:
            path.open("rb").close()
    except OSError as error:
        raise _unreadable(file, error) from None
    if is_special:
        raise WrongUse(f"{file} is a pipe or a device, and can be read only once; give it on standard input, < {file}")


def _unreadable(file: str, error: OSError) -> WrongUse:
    return WrongUse(f"cannot read {file}: {error.strerror}; name a readable file")


async def _produce(
    app: App, topic: Topic[Any, Any], url: str, file: str | None, shape: Shape, rate: float, ending: Ending
) -> bool:
    """Whether the file was known: some of it had been written before."""
    if file is not None:
        _refuse_unreadable(file)
    log = await open_log(url, create=True)
    try:
        say = partial(print, file=sys.stderr, flush=True)
        prepared = await prepare_and_say(log, app, url, say, topic.topic, runs=False)
        info = prepared.topics[topic.topic]
        partitions, look = info.partitions, old_records(url, app.id, info, wall_ms(), say)
        reading = Reading(topic.topic, topic.key_codec, topic.value_codec, partitions)
        counted = Counted(log, partitions)
        if file is None:
            lines = Piped(cast(BufferedIOBase, sys.stdin.buffer))
            if sys.stdin.isatty():  # who types a line again means it
                found = json_records(lines, 1, reading, shape)
                await Writing(log, app, topic, counted, rate, None, ending, look=look).write(found, lines.is_quiet)
                return False
            given = await begin_input(log, app.id, lines, reading, shape)
            await Writing(log, app, topic, counted, rate, given, ending, look=look).write(
                given.records(), given.is_quiet
            )
            return False
        try:
            begun = await begin(log, app.id, Path(file), reading, shape)
        except OSError as error:
            raise _unreadable(file, error) from None
        except BadFile as error:
            raise WrongUse(str(error)) from None
        with begun:
            is_known = begun.is_known
            await Writing(log, app, topic, counted, rate, begun, ending, look=look).write(begun.records())
            return is_known
    finally:
        await log.close()


class Writing:
    """One run: batches of `size` records, each in one transaction with what was read."""

    def __init__(
        self,
        log: GroupLog,
        app: App,
        topic: Topic[Any, Any],
        counted: Counted,
        rate: float,
        begun: Begun | Given | None,
        ending: Ending,
        size: int = BATCH,
        look: Look = lambda records: None,
    ) -> None:
        self._log, self._app, self._topic = log, app, topic
        self._counted = counted
        self._rate = rate
        self._begun = begun
        self._ending = ending
        self._look = look
        self._size = size if not rate else max(1, min(size, int(rate / 20)))

    async def write(self, found: Iterator[FileRecord], is_quiet: Callable[[], bool] = lambda: False) -> int:
        """`is_quiet`: the next record would have to be waited for, so those before it are written first.
        Raises BadLine, once what comes before the bad line is written."""
        since = monotonic_s()
        batch: list[FileRecord] = []
        try:
            for record in found:
                batch.append(record)
                if len(batch) >= self._size or is_quiet():
                    await self._append(batch)
                    batch = []
                    if self._rate:
                        await asyncio.sleep(max(0.0, since + self._ending.written / self._rate - monotonic_s()))
        except (BadRow, BadFile) as error:
            await self._append(batch, has_ended=True)
            if self._begun is not None:
                await self._begun.ended(self._log, self._app.id)
            raise BadLine(self._stopped_at(error), self._ending.written) from None
        await self._append(batch, is_last=True)
        self._ending.is_whole = True
        if self._begun is not None:
            await self._ending.unless_hurried(self._begun.over(self._log, self._app.id))
        return self._ending.written

    def _stopped_at(self, error: PipelineError) -> str:
        count = self._ending.written
        before = f"the {_records(count)} before it {'is' if count == 1 else 'are'} written"
        if not count:
            before = "nothing was written"
        again = "correct it and run it again, it goes on there" if self._begun is not None else "write the rest again"
        return f"{error}; {before}; {again}"

    async def _append(self, batch: list[FileRecord], *, is_last: bool = False, has_ended: bool = False) -> None:
        """`is_last`: the input is read to its end; `has_ended`: to a bad line."""
        if not batch:
            return
        self._look(batch)
        partitions = await self._counted.now(self._topic.topic)
        records = self._placed(batch, partitions)
        progress = None
        if self._begun is not None:
            progress = self._begun.progress(self._app.id, is_last=is_last, has_ended=has_ended)
        begun, ending = self._begun, self._ending

        async def once() -> None:
            with ending.batch(len(batch), is_last=is_last, is_kept=progress is not None):
                if begun is None or progress is None:
                    await self._log.append(records)
                else:
                    after, before = progress
                    await self._log.append(records, metadata=after, seen=before)
                    begun.written(after.value)

        try:
            await when_free(once)
        except MetadataChanged:
            raise BadLine(
                f"another `produce` writes the same input to topic {self._topic.topic}, from line {batch[0].line} on: "
                f"{_records(self._ending.written)} of this one {'is' if self._ending.written == 1 else 'are'} written, and none is written "
                "twice; let the other one end, or stop it and run this again, it goes on there",
                self._ending.written,
            ) from None
        except UnfitRecord as error:
            raise BadLine(self._unfit(error, batch, partitions), self._ending.written) from error

    def _numbers(self, batch: list[FileRecord], partitions: int) -> list[int]:
        """The partition of each record."""
        return [
            partition_of(one.key, partitions, keyless=index) if one.partition is None else one.partition
            for index, one in enumerate(batch, self._ending.written)
        ]

    def _placed(self, batch: list[FileRecord], partitions: int) -> dict[Partition, list[NewRecord]]:
        now = wall_ms()
        found: dict[Partition, list[NewRecord]] = {}
        for one, number in zip(batch, self._numbers(batch, partitions), strict=True):
            record = NewRecord(one.key, one.value, now if one.timestamp_ms is None else one.timestamp_ms, one.headers)
            found.setdefault(Partition(self._topic.topic, number), []).append(record)
        return found

    def _unfit(self, error: UnfitRecord, batch: list[FileRecord], partitions: int) -> str:
        """Which line it is, as far as the log says; nothing of its batch is written."""
        numbers = self._numbers(batch, partitions)
        there = [one.line for one, number in zip(batch, numbers, strict=True) if number == error.partition[1]]
        which = f"line {there[max(error.index, 0)]}"
        if error.index < 0 and len(there) > 1:
            which = f"one of lines {there[0]} to {there[-1]}"
        count = self._ending.written
        before = (
            f"the {_records(count)} before line {batch[0].line} {'is' if count == 1 else 'are'} written, and no more"
        )
        again = "run it again, it goes on there" if self._begun is not None else "write the rest again"
        return f"{which}: {error.what}: {before if count else 'nothing was written'}; {error.advice}, and {again}"


class Counted:
    """How many partitions the topic has: it may grow while a long file is written."""

    def __init__(self, log: Log, partitions: int, clock: Callable[[], float] = monotonic_s) -> None:
        self._log = log
        self._partitions = partitions
        self._clock = clock
        self._looked = clock()

    async def now(self, topic: str) -> int:
        if self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            with contextlib.suppress(
                LogUnavailable
            ):  # what is written next waits for the log, and longer than a look does
                info = (await self._log.topics([topic])).get(topic)
                self._partitions = self._partitions if info is None else info.partitions
        return self._partitions


def _records(count: int) -> str:
    return f"{count} record{'s' if count != 1 else ''}"
