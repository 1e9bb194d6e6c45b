"""Standard input as `produce` reads it: what a run wrote that did not come to its end is recognised in a later one.

One rule: lines are taken for written only where a run ended in their middle (at a bad line, interrupted, killed) and they begin
with all that it wrote, byte for byte; a run that comes to its end leaves nothing, so the same lines given twice are written
twice. What was read is kept by a digest in the transaction of its records; a run that goes on elsewhere at the time is
left alone. In the flow: `produce` begins it, and commits `progress()` with each batch of records.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, cast

import msgspec

from orchestrator.clocks import wall_ms
from pipeline.files.piped import Piped
from pipeline.files.shape import FileRecord, Reading, Shape
from pipeline.files.text import Tail, json_records
from state.log.group_store import AppMetadata, GroupStore, MetadataKind
from workers.commands.when_free import when_free
from workers.fleet.presence import is_here, is_running, this_process

UNFINISHED = MetadataKind("produce-input")
KEPT_MS = 7 * 24 * 3_600_000  # what a run has left is forgotten then
KEPT_MOST = 1_000  # of an application
SPOOLED = 64 << 20  # bytes of lines that are compared, above which they go to a temporary file
QUIET_S = 2.0  # without the next line, before it is said what is waited for


class Mark(NamedTuple):
    """So many lines were read, and this is the digest of them."""

    lines: int
    digest: str


class Unfinished(msgspec.Struct, frozen=True):
    """What a run has read. `marks`: after 1 line, and whenever there were twice as many, so that other lines are known for
    others early; the last is of all. `process`: whose it is, None once it has ended in order."""

    marks: tuple[Mark, ...]
    bytes: int
    at_ms: int
    process: dict[str, Any] | None

    def may_go_on(self) -> bool:
        """Whether its run is over, as far as can be known here."""
        return self.process is None or (is_here(self.process) and not is_running(self.process))


NOTHING = Unfinished((), 0, 0, None)


class Given:
    """Standard input, from where an earlier run ended. `before`: how many lines that run has read."""

    kind = UNFINISHED

    def __init__(
        self, lines: Piped, reading: Reading, shape: Shape, name: str, seen: bytes | None, known: _Known
    ) -> None:
        self._lines = lines
        self._reading, self._shape = reading, shape
        self._name, self._seen = name, seen
        self._known = known
        self._tail = Tail(cast(IO[bytes], chain(known.rest(), lines)))
        self._tail.go_on(known.hash, known.bytes, known.lines)
        self._done = NOTHING if seen is None else msgspec.json.decode(seen, type=Unfinished)
        self._marks = list(self._done.marks)
        self.before = known.lines

    def records(self) -> Iterator[FileRecord]:
        """What was not read before. Raises BadRow."""
        for record in json_records(self._tail, self.before + 1, self._reading, self._shape):
            self._tail.mark()
            if not self._marks or record.line >= 2 * self._marks[-1].lines:
                self._marked()
            yield record

    def _marked(self) -> int:
        """Notes all that is understood; returns its bytes."""
        size, lines, digest = self._tail.marked()
        if not self._marks or lines > self._marks[-1].lines:
            self._marks.append(Mark(lines, digest))
        return size

    def is_quiet(self) -> bool:
        """Whether the next line would have to be waited for."""
        return self._known.is_read and self._lines.is_quiet()

    def progress(
        self, application: str, *, is_last: bool, has_ended: bool = False
    ) -> tuple[AppMetadata, bytes | None] | None:
        """What is to be in the log, and what is, once every record that was given is in the log; None where all of the
        input is in one transaction."""
        if is_last and self._seen is None:
            return None
        size = self._marked()
        process = None if has_ended else this_process()
        self._done = Unfinished(tuple(self._marks), size, wall_ms(), process)
        if len(self._marks) > 1 and self._marks[-1].lines < 2 * self._marks[-2].lines:
            self._marks.pop()
        return AppMetadata(application, UNFINISHED, self._name, msgspec.json.encode(self._done)), self._seen

    def written(self, value: bytes) -> None:
        self._seen = value

    async def ended(self, log: GroupStore, application: str) -> None:
        """At a bad line: others may go on there from now on, wherever they run."""
        if self._seen is None or self._done.process is None:
            return
        done = msgspec.json.encode(msgspec.structs.replace(self._done, process=None))
        if await log.replace_metadata(application, UNFINISHED, self._name, self._seen, done):
            self._seen = done

    async def over(self, log: GroupStore, application: str) -> None:
        """At its end: nothing is left to go on from."""
        if self._seen is not None:
            await log.replace_metadata(application, UNFINISHED, self._name, self._seen, None)


class _Known:
    """What was read to compare it: `lines`, `bytes` and `hash` of what an earlier run wrote, and the rest of it."""

    def __init__(self) -> None:
        self._spool = SpooledTemporaryFile[bytes](max_size=SPOOLED)
        self.name: str | None = None
        self.lines = self.bytes = 0
        self.hash = hashlib.blake2b(digest_size=16)
        self._read = 0
        self.is_read = False

    def compare(self, first: bytes, lines: Piped, found: Mapping[str, Unfinished]) -> None:
        """Reads until it is known which of them the input begins with: the longest."""
        running, size = self.hash.copy(), 0
        left = {name: dict(one.marks) for name, one in found.items()}
        announced = False
        for count, line in enumerate(chain([first], lines), 1):
            self._spool.write(line)
            self._read = count
            running.update(line)
            size += len(line)
            for name in [name for name, marks in left.items() if count in marks]:
                is_same = running.hexdigest() == left[name][count]
                if is_same and count == max(left[name]):
                    self.name, self.lines, self.bytes, self.hash = name, count, size, running.copy()
                if not is_same or count == max(left[name]):
                    del left[name]
            if not left:
                break
            if not announced and lines.is_quiet(QUIET_S):
                announced = True
                longest = max(max(marks) for marks in left.values())
                print(
                    f"waiting: so far these are the lines of a run that ended in the middle, after {longest}; nothing is "
                    "written until they go on there, or are others",
                    file=sys.stderr,
                    flush=True,
                )

    def rest(self) -> Iterator[bytes]:
        with self._spool as spool:
            spool.seek(self.bytes)
            left = self._read - self.lines
            self.is_read = not left
            for line in spool:
                left -= 1
                self.is_read = not left
                yield line


async def begin_input(log: GroupStore, application: str, lines: Piped, reading: Reading, shape: Shape) -> Given:
    """Reads the first line, and further where an earlier run began with it and did not come to its end."""
    known = _Known()
    first = next(iter(lines), b"")
    digest = hashlib.blake2b(first.rstrip(b"\r\n"), digest_size=8).hexdigest()
    begin = f"{reading.topic}:{digest}."
    found: dict[str, tuple[bytes, Unfinished]] = {}
    kept = await when_free(
        lambda: log.metadata_of(application, UNFINISHED, settled=True)
    )  # also of a run that has just ended
    notes = sorted((msgspec.json.decode(value, type=Unfinished).at_ms, name) for name, value in kept.items())
    # Not by their age: this machine's clock may be wrong, and they are of other inputs.
    for _, name in notes[:-KEPT_MOST]:
        await log.replace_metadata(application, UNFINISHED, name, kept.pop(name), None)
    for name, value in kept.items():
        one = msgspec.json.decode(value, type=Unfinished)
        if not (name.startswith(begin) and one.may_go_on()):
            continue
        if one.at_ms < wall_ms() - KEPT_MS:
            await log.replace_metadata(application, UNFINISHED, name, value, None)
        else:
            found[name] = value, one
    known.compare(first, lines, {name: one for name, (_, one) in found.items()})
    if known.name is None:
        return Given(lines, reading, shape, f"{begin}{secrets.token_hex(8)}", None, known)
    print(
        f"lines 1 to {known.lines} were written by a run that ended there; going on behind them (to write them again, run it "
        "once more when this one is done)",
        file=sys.stderr,
        flush=True,
    )
    return Given(lines, reading, shape, known.name, found[known.name][0], known)
