"""The errors of durable state. One rule: a message names what happened, where, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class StateError(Exception):
    """Base of everything that goes wrong with durable bytes; `str(error)` is one line for a person, and `exit_code`
    what a command ends with."""

    exit_code = 1


class TopicMismatch(StateError):
    """A topic exists with another partition count than asked for."""

    exit_code = 3


class UnknownTopic(StateError):
    """No topic of that name is in the log."""

    exit_code = 2


class LogMissing(StateError):
    """The log file named does not exist, and the caller may not create it."""

    exit_code = 2


class FileTaken(StateError):
    """A copy is to be written where something is already."""

    exit_code = 2


class LogUnusable(StateError):
    """The log cannot be opened or written: not a log, no space, no permission, a newer format."""


class LogReplaced(LogUnusable):
    """The file of a log was deleted or replaced while it was in use: nothing that this process writes would be read."""


class LogUnavailable(StateError):
    """The log cannot be used now; nothing was written, and trying again is safe."""


class LogBusy(LogUnavailable):
    """Another process holds the log locked for longer than we wait."""


class LogFull(LogUnavailable):
    """There is no space left for the log to grow."""


class LogTimedOut(StateError):
    """The log could not be used for longer than `--log-timeout`."""

    exit_code = 6


class LogDamaged(StateError):
    """Record batches that are cut off or do not match their checksum."""


class PositionOutOfRange(StateError):
    """A position past the end of its partition (meant for another log or an earlier topic of that name), or before its
    start (the records were removed). `partition` is (topic, number); it can be read from `start` to `end`."""

    def __init__(self, message: str, partition: tuple[str, int], start: int, end: int) -> None:
        super().__init__(message)
        self.partition, self.start, self.end = partition, start, end


class UnfitRecord(StateError):
    """A record that its topic does not take; nothing was written, and the writer may go on.

    `partition` is (topic, number), `index` its place among the records given for that partition; in a commit `scope`
    and the place among the records of that scope. Where a broker said so it is not known which record of the partition it
    is: `index` is -1, and there is no scope. `what`: why not, alone.
    """

    advice: ClassVar[str]

    def __init__(self, what: str, partition: tuple[str, int], index: int, scope: str | None = None) -> None:
        text = f"{what}: nothing was written; {self.advice}"
        super().__init__(text if scope is None else f"{scope}: {text}")
        self.what, self.partition, self.index, self.scope = what, partition, index, scope


class RecordTooLarge(UnfitRecord):
    """Because of its size."""

    advice = "make it smaller, or raise the log's limit"


class InvalidRecord(UnfitRecord):
    """A record without a key, in a topic that keeps the last record of each."""

    advice = "give it a key, or write to another topic"


class InvalidTime(UnfitRecord):
    """A record of a time that is too far from the broker's clock for its topic."""

    advice = "look after the clock that gave it its time, or raise these settings of the topic"


class MetadataChanged(StateError):
    """Metadata is not what the caller had seen: another process wrote it; nothing was written."""


class LeaseLost(StateError):
    """The coordinator's lease is held by a newer term; nothing was written."""


class LeaseGivenUp(LeaseLost):
    """Its holder gave the lease up by itself, because the log did not answer: no answer of the log."""


class Refused(StateError):
    """Scopes of a commit have another owner now; nothing at all was written.

    `scopes` names them, so that the caller can drop those and commit the others again.
    """

    def __init__(self, scopes: frozenset[str], message: str) -> None:
        super().__init__(message)
        self.scopes = scopes


class Fenced(StateError):
    """This transactional id was fenced for good: every scope it had is lost. Nothing was written."""


class RecordsLost(Fenced):
    """The log has lost records that this writer wrote, and takes no more of it: its id is given up, as one that was fenced. Nothing
    of this commit counts."""


class NotOpened(StateError):
    """A commit by a transactional id that this process has not opened; nothing was written."""


class OutcomeUnknown(StateError):
    """The log did not answer whether a commit took place; the stores must be restored from the log."""


class StoreDamaged(StateError):
    """A local store, where known the one at `path`, cannot be read; wipe it and restore it from its changelog."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class StoreDeleted(StoreDamaged):
    """A local store was deleted while it was open."""


class DirectoryLocked(StateError):
    """Another process holds the lock of a task directory."""


class NoSpaceLeft(StateError):
    """A disk is full; what was written is not whole, and is not used."""


class DirectoryUnusable(StateError):
    """The state directory cannot be used: no permission, no space, not a directory, too many open files."""


class DirectoryFull(DirectoryUnusable):
    """The disk of the state directory is full, or its quota is used up."""


class TooManyFiles(DirectoryUnusable):
    """A store was not opened: its process has as many files open as it may."""


class BaseMissing(StateError):
    """A changelog goes on from a snapshot that is not there or cannot be used; nothing was restored or written."""

    exit_code = 3


class ChangelogCut(StateError):
    """What a changelog began with was deleted by others, so that nothing is restored from it; nothing was written or wiped."""

    exit_code = 3


class SnapshotUnusable(StateError):
    """A snapshot is incomplete, damaged, or belongs to another log, topic or number of partitions."""
