"""Failpoints: a place in the code where a test or the demo makes a process die. Off unless named.

One rule: `commit:PATH` kills the whole instance with SIGKILL in the first commit that has outputs after the file PATH
appears (and is empty, or names this instance): all rows of its transaction are written, and it is not committed. What was written is left beside PATH, so that
it can be tried late, as a zombie would.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec

from orchestrator.clocks import wall_ms
from state.log.protocol import GroupLog, NewRecord, Partition, TaskCommit
from state.log.sqlite import SqliteLog
from workers.log.patient_log import PatientLog
from workers.spec import InstanceSpec
from workers.tasks.commit import Taken


class LatePart(msgspec.Struct, frozen=True):
    """One task's share of the commit that did not happen."""

    scope: str
    epoch: int
    records: list[tuple[str, int, list[NewRecord]]]
    positions: list[tuple[str, int, int]]


class LateWrite(msgspec.Struct, frozen=True):
    """A commit that its process did not live to make."""

    application: str
    writer: str
    instance: str
    at_ms: int
    parts: list[LatePart]


class Failpoint:
    """One failpoint of one worker."""

    def __init__(self, spec: InstanceSpec, log: GroupLog) -> None:
        kind, _, path = spec.failpoint.partition(":")
        self._path = Path(path) if kind == "commit" and path else None
        self._spec = spec
        self._log = log.inner if isinstance(log, PatientLog) else log

    def _named(self) -> bool:
        assert self._path is not None
        try:
            return self._path.read_text().strip() in ("", self._spec.instance)
        except FileNotFoundError:
            return False

    async def before_commit(self, transactional_id: str, taken: list[Taken]) -> None:
        if self._path is None or not any(t.part.records for t in taken) or not self._named():
            return
        try:
            self._path.rename(self._path.with_suffix(".taken"))
        except FileNotFoundError:
            return  # another instance took it
        parts = [
            LatePart(
                t.part.scope,
                t.part.epoch,
                [(p.topic, p.number, list(records)) for p, records in t.part.records.items()],
                [(p.topic, p.number, o) for p, o in t.part.positions.items()],
            )
            for t in taken
        ]
        late = LateWrite(
            self._spec.application,
            transactional_id,
            self._spec.instance,
            wall_ms(),
            parts,
        )
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(msgspec.msgpack.encode(late))
        draft.rename(self._path.with_suffix(".late"))
        if isinstance(self._log, SqliteLog):
            self._log.fail_before_commit(_die)
        else:
            _die()


def _die() -> None:
    """The instance's parent and this worker, at once."""
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def read_late(path: Path) -> tuple[LateWrite, list[TaskCommit]]:
    """The commit that a failpoint prevented, ready to be tried."""
    late = msgspec.msgpack.decode(path.read_bytes(), type=LateWrite)
    parts = [
        TaskCommit(
            part.scope,
            part.epoch,
            {Partition(t, n): records for t, n, records in part.records},
            {Partition(t, n): offset for t, n, offset in part.positions},
        )
        for part in late.parts
    ]
    return late, parts
