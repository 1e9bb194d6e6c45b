"""Which record, or call of what came due, ended a worker process, held it for longer than `--max-call`, or wrote what the log
does not take: found once, and then left to `on_error`.

One rule: it costs nothing while nothing crashes. A worker that is started again after a crash is careful for a while: it
takes one record at a time and leaves a note of each call before it begins. When the process ends during one, its parent
reads the note. A call that lasts too long leaves the note itself. Where the processor's policy is to stop, the parent
reports the record as any failing one; else the next worker gives the record to the policy without calling.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from pipeline.errors import CallLost, DueCallId, Letter, ProcessorFailed, shown_place
from pipeline.records import TICK, RawRecord
from state import private
from state.log.protocol import Partition

if TYPE_CHECKING:
    from pipeline.app import App
    from pipeline.calls.answering import Answering
    from pipeline.calls.effects import Changes
    from pipeline.process import TaskProcess

log = logging.getLogger("orchestrator.worker")
TURN_S = 0.05  # how long a turn of a task goes on
CAREFUL_RECORDS = 1_000  # of each task, after a crash
# Signals that a process's own code brings on itself; the others are sent by people and kernels.
OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
WAYS = 'correct the processor, or give it on_error="skip" or a topic for dead letters'
OTHER_WAYS = 'correct that topic, or give the processor on_error="skip" or another topic for dead letters'


class Blame(msgspec.Struct, frozen=True):
    """A record, who was to process it, and what came of that: `reason` follows `settle at payments-3@17 `. `due`: the call, where
    there is no record for it; `topic` is then the name of the timers or the table, and `offset` is below 0. `letter`: what is left
    of its dead letter, which the log did not take as it was either."""

    task: str
    topic: str
    partition: int
    offset: int
    processors: tuple[str, ...]
    reason: str = ""
    due: DueCallId | None = None
    letter: Letter = Letter.WHOLE

    def refuse(self, app: App, process: TaskProcess, record: RawRecord) -> bool:
        """Leaves the record to the policies of these processors without calling them; whether it is completed by that. Raises
        ProcessorFailed."""
        if self.stops(app):
            raise self.error()
        return process.answering.lose(self.topic, record, self.processors, self.lost())

    def lost(self) -> CallLost:
        """What its policy is asked about."""
        return CallLost(f"the call {self.reason}", self.letter)

    def with_less(self, why: str) -> Blame:
        """Its dead letter was not taken: it is cut, and where it was, there is none."""
        if self.letter is Letter.WHOLE:
            return msgspec.structs.replace(self, letter=Letter.CUT)
        again = "" if why in self.reason else f" ({why})"
        return msgspec.structs.replace(
            self, letter=Letter.NONE, reason=f"{self.reason}, nor is its dead letter taken{again}"
        )

    def with_others(self, writers: Sequence[str], all_of_it: Sequence[str]) -> Blame | None:
        """Without its call the record writes what is not taken all the same: further processors may have, or, where none of the
        writers is another one, any may. None where all are known."""
        further = [name for name in writers if name not in self.processors] or all_of_it
        found = self.with_processors(further)
        return None if found.processors == self.processors else found

    def with_processors(self, names: Sequence[str]) -> Blame:
        further = (name for name in names if name not in self.processors)
        return msgspec.structs.replace(self, processors=(*self.processors, *further))

    def stops(self, app: App) -> bool:
        """Whether a processor of it has no policy but to stop."""
        from pipeline.definitions.error_policy import STOP  # there is an app: a command without one gets no further

        return any(app.error_policy(app.processors[name]).of(self.lost()) == STOP for name in self.processors)

    def error(self) -> ProcessorFailed:
        """What is reported where it stops."""
        error = ProcessorFailed(
            f"{self.happened}; {OTHER_WAYS if self.letter is Letter.NONE else WAYS}",
            processor=self._names,
            task=self.task,
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
        )
        error.due = self.due
        return error

    @property
    def happened(self) -> str:
        """What happened where, for a person."""
        return f"{self._names} at {self.shown} in task {self.task} {self.reason}"

    @property
    def _names(self) -> str:
        return " or ".join(self.processors)

    @property
    def shown(self) -> str:
        """The record, or what came due, for a person."""
        place = shown_place(self.topic, self.partition, self.offset)
        return place if self.due is None else f"{place} at {self.due.at_ms} ms (key {self.due.key!r})"


class Refusal(NamedTuple):
    """What the log does not take: why, of which topic, and of which table where that is its changelog."""

    why: str
    topic: str
    table: str | None = None

    @property
    def reason(self) -> str:
        return f"writes what the log does not take ({self.why})"

    def is_letter_of(self, blame: Blame, process: TaskProcess) -> bool:
        """Whether it may be the dead letter of what was blamed before."""
        return self.table is None and process.answering.sends_letters_to(blame.processors, self.topic, blame.lost())


def due_blame(task: str, partition: int, call: DueCallId, reason: str = "") -> Blame:
    """Of a call of what came due."""
    return Blame(task, call.name, partition, -1, (call.processor,), reason, call)


def note_path(folder: Path, incarnation: str) -> Path:
    """Returns where this worker process of the instance with this state folder notes its call. Each has a file of its
    own: a worker outlives its parent by a call that hangs, and its note must not be read as its successor's."""
    return folder / f"call-{incarnation}.json"


def remove_notes(folder: Path) -> None:
    """Removes the notes of processes that ended without a parent to read them."""
    for path in folder.glob("call-*.json"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


class CallNote:
    """The file in which a worker notes the call that it begins. The page cache keeps it when the process ends. Where it cannot be
    written, on a full disk for example, the call is made without: what has its state goes on, and only a call that ends the process
    is not found out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_warned = False

    def write(self, blame: Blame) -> None:
        data = msgspec.json.encode(blame)
        try:
            try:
                self._path.write_bytes(data)
            except FileNotFoundError:  # the folder was removed while the worker ran
                private.make_folder(self._path.parent)
                self._path.write_bytes(data)
        except OSError as error:
            self.clear()  # half of it, or of a call before
            if not self._has_warned:
                log.warning(
                    "the note of a call %s cannot be written (%s), so a call that ends this process is not found out: check the "
                    "state folder and its disk",
                    self._path,
                    error.strerror,
                )
            self._has_warned = True

    def clear(self) -> None:
        """The call is over. Where the file may not be removed it is emptied: else a crash later on would be that call's."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            with suppress(OSError):
                os.truncate(self._path, 0)

    def read(self, code: int) -> Blame | None:
        """Returns the call during which a process ended by itself with `code` (below 0: a signal), and forgets it; None
        where the end came from outside, or no call was noted."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Blame)
        except (OSError, msgspec.DecodeError):
            return None
        finally:
            self.clear()
        if found.reason:
            return found
        if code < 0 and -code not in OWN_SIGNALS:
            return None
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return msgspec.structs.replace(found, reason=f"ended its worker process ({how})")


class Run(Protocol):
    """A task, and what runs as its active, if it does."""

    @property
    def scope(self) -> str: ...
    @property
    def process(self) -> TaskProcess | None: ...


class Caution:
    """A worker's side: how many records a turn takes, and which are not to be called."""

    def __init__(self, note: CallNote, *, careful: bool, blamed: Sequence[Blame]) -> None:
        self._note = note
        self._first = CAREFUL_RECORDS if careful else 0
        self._done: dict[str, int] = {}
        self._left_out: dict[tuple[str, int, int], str] = {}
        self._blamed: dict[tuple[str, int, int], Blame] = {}
        for blame in blamed:
            if blame.due is None:  # of several processors that read a record each may have ended a worker
                known = self._blamed.setdefault(place := (blame.topic, blame.partition, blame.offset), blame)
                self._blamed[place] = known.with_processors(blame.processors)
        self._due_blamed = [blame for blame in blamed if blame.due is not None]
        self._begun: Blame | None = None  # the record that is noted
        self._answering: dict[str, Answering] = {}  # of each task
        self._searched: dict[
            str, int
        ] = {}  # tasks of which a record wrote what is not taken: for how many more it is looked for

    def leave_out(self, scope: str, topic: str, partition: int, offset: int) -> None:
        """An operator wants this record to be left out."""
        self._left_out[topic, partition, offset] = scope

    def is_careful(self, scope: str) -> bool:
        """Whether this task takes one record at a time."""
        if self._done.get(scope, 0) < self._first or scope in self._left_out.values() or scope in self._searched:
            return True
        return bool(self._blamed) and any(blame.task == scope for blame in self._blamed.values())

    def turn_s(self, scope: str) -> float:
        """How long a turn of this task goes on; none beyond one record, or one thing that comes due, where it is searched."""
        return 0.0 if scope in self._searched else TURN_S

    def commits_first(self, run: Run) -> bool:
        """Whether what a task has completed is committed before its next record, so that a commit is of one record."""
        return run.scope in self._searched and run.process is not None and run.process.has_completed

    def commits_now(self, runs: Callable[[], Sequence[Run]]) -> bool:
        """Whether that is so of any task."""
        return bool(self._searched) and any(map(self.commits_first, runs()))

    def unfit(self, scope: str, process: TaskProcess, changes: Changes, what: Refusal) -> bool:
        """The log does not take a commit of the task, because of something in it: with several records in it, or calls of what
        came due, they are made again, one record or due thing a commit; one alone is left to the policy of those of its processors
        that may have written it; their dead letter is cut where that is not taken either, and where that does not help, they stop.
        False where nothing is known to be left out."""
        if scope not in self._searched and (changes.records_in > 1 or process.due_calls is not None):
            self._searched[scope] = CAREFUL_RECORDS
            return True
        if changes.records_in == 0 and process.due_calls is not None:
            return self._unfit_calls(scope, process, process.due_calls.of_first_take(), what)
        if changes.records_in != 1:
            return False
        topic = next(name for name, count in changes.processed.items() if count)
        place = (topic, process.partition, changes.positions[topic] - 1)
        readers = process.answering.processors_of(topic)
        names = process.answering.writers_of(readers, what.topic, what.table)
        if (known := self._blamed.get(place)) is None:
            self._blamed[place] = Blame(scope, *place, tuple(names), what.reason)
            return True
        if not what.is_letter_of(known, process) and (further := known.with_others(names, readers)) is not None:
            self._blamed[place] = further
            return True
        self._blamed[place] = known.with_less(what.why)
        return known.letter is not Letter.NONE

    def _unfit_calls(self, scope: str, process: TaskProcess, calls: Sequence[DueCallId], what: Refusal) -> bool:
        """The same of the calls of one due thing."""
        known = [blame for blame in self._due_blamed if blame.due in calls]
        due = {blame.due for blame in known}
        found = [call for call in calls if call not in due]
        if not found or any(what.is_letter_of(blame, process) for blame in known):
            self._due_blamed = [
                blame.with_less(what.why) if blame.due in calls else blame for blame in self._due_blamed
            ]
            return any(blame.letter is not Letter.NONE for blame in known)
        names = process.answering.writers_of([call.processor for call in found], what.topic, what.table)
        self._due_blamed += [
            due_blame(scope, process.partition, call, what.reason) for call in found if call.processor in names
        ]
        return True

    def is_left_out(self, topic: str, partition: int, offset: int) -> bool:
        """Whether an operator wants this record to be left out; the answer is yes once."""
        return self._left_out.pop((topic, partition, offset), None) is not None

    def blamed(self, topic: str, partition: int, offset: int) -> Blame | None:
        """Returns why this record is not to be called."""
        return self._blamed.get((topic, partition, offset))

    def committed(self, positions: Mapping[Partition, int]) -> None:
        """Records before these positions do not come again: what is known of them may be forgotten."""
        if self._blamed:
            self._blamed = {
                record: blame
                for record, blame in self._blamed.items()
                if positions.get(Partition(*record[:2]), 0) <= record[2]
            }

    def forget(self, scope: str) -> None:
        """The task is to try again what it was halted at: what the log did not take it may take by now."""
        self._blamed = {record: blame for record, blame in self._blamed.items() if blame.task != scope}
        self._due_blamed = [blame for blame in self._due_blamed if blame.task != scope]

    def watch_calls(self, scope: str, process: TaskProcess) -> None:
        """A task begins: the note of a record names the one of several processors that is called, and calls of what comes due are
        noted as records are; those that are blamed are left to their policies."""

        self._answering[scope] = process.answering
        due = process.due_calls
        if due is None:
            return
        due.are_kept = scope in self._searched
        for blame in self._due_blamed:
            if blame.task == scope and blame.due is not None:
                due.lose(blame.due, blame.lost())

        def note(is_under_way: bool) -> None:
            call = due.under_way
            if is_under_way and call is not None:
                if self.is_careful(scope):
                    self._note.write(due_blame(scope, process.partition, call))
            elif self._begun is not None:
                self._note.write(self._begun)
            elif self.is_careful(scope):
                self._note.clear()

        due.note = note

    def begin(self, blame: Blame) -> None:
        """A record is next. A tick has no call of its own."""
        if blame.topic == TICK:
            return
        self._begun = blame
        self._note.write(blame)
        if not blame.reason and blame.task in self._answering:
            self._answering[blame.task].note = self._is_called

    def _is_called(self, name: str) -> None:
        """Of the processors that read the record that is noted this one is next."""
        if self._begun is not None and not self._begun.reason:
            self._begun = msgspec.structs.replace(self._begun, processors=(name,))
            self._note.write(self._begun)

    def end(self, scope: str) -> None:
        self._begun = None
        if scope in self._answering:
            self._answering[scope].note = None
        self._note.clear()
        self._done[scope] = self._done.get(scope, 0) + 1
        if scope in self._searched:
            self._searched[scope] -= 1
            if not self._searched[scope]:
                del self._searched[scope]
