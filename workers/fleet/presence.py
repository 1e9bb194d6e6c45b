"""Who runs an application: its fleet, and the instances that run by a name, as the log knows them and the kernel confirms.

One rule: a note in the log may be of a process that has ended without a word. Of a process of this machine the kernel
says whether it is there; of one elsewhere the note alone is known, and whether its group has a coordinator. Used by fleets,
named instances and clients.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

from orchestrator.clocks import monotonic_ms, wall_ms
from orchestrator.coordinator.election import Election, Seen
from orchestrator.errors import RefusedBySafety
from state import private
from state.disk_full import writing_to
from state.errors import DirectoryUnusable
from state.log.group_store import GroupStore, MetadataKind
from workers.instance.ledger import is_given_back, kept_scale_downs

FLEET, NAMED = MetadataKind("fleet"), MetadataKind("named")
FRESH_MS = 10_000  # a note from elsewhere that is younger may be of a process that has not joined yet
LOOK_S = 0.1
ENDED = ("Z", "X")  # of the kernel's states of a process


def started(pid: int) -> str | None:
    """Returns what distinguishes a process from a later one with its number: the kernel's start time of it. None where it has ended,
    also where its parent does not ask how (the first process of a container may never), or where there is no /proc."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in ENDED else fields[18]


def this_process() -> dict[str, Any]:
    """Returns what a note says of the process that writes it."""
    return {"pid": os.getpid(), "started": started(os.getpid()), "host": socket.gethostname()}


def is_here(facts: dict[str, Any]) -> bool:
    """Whether a note is of this machine; those of older versions are taken for it."""
    return bool(facts.get("host", socket.gethostname()) == socket.gethostname())


def is_running(facts: dict[str, Any]) -> bool:
    """Whether the process of a note of this machine is there."""
    return not Path("/proc").exists() or started(facts["pid"]) == facts.get("started")


async def fleet_of(log: GroupStore, application: str) -> dict[str, Any] | None:
    """The fleet that runs the application, if `orchestrator run` started one and its process is there; one on another machine is there
    as far as this one knows."""
    found = await log.metadata(application, FLEET, "fleet")
    if found is None:
        return None
    facts: dict[str, Any] = json.loads(found)
    return facts if not is_here(facts) or is_running(facts) else None


async def named_of(log: GroupStore, application: str) -> dict[str, dict[str, Any]]:
    """Returns the instances that run by a name: those of this machine whose process is there, and those noted on other machines."""
    notes = {name: json.loads(found) for name, found in (await log.metadata_of(application, NAMED)).items()}
    return {name: facts for name, facts in notes.items() if not is_here(facts) or is_running(facts)}


async def names_taken(log: GroupStore, application: str) -> set[str]:
    """Returns the names of instances that run by themselves, and of those that a scale-down has leave which a fleet before this one did
    not see to its end: under such a name a new instance would be sent away at once."""
    leaving: set[str] = set()
    for operation in (await kept_scale_downs(log, application)).run:
        until_ms = operation.get("deadline_wall_ms")
        if until_ms is None or int(str(until_ms)) > wall_ms() or operation.get("force"):
            leaving.update(map(str, cast(Sequence[object], operation["leaving"])))
    return leaving | set(await named_of(log, application))


async def is_looked_after(log: GroupStore, application: str) -> bool:
    """Whether a process that starts instances of the application is there. A note of another machine counts while it is young,
    and where somebody coordinates the group: a host that is gone leaves its note, and would refuse for ever what is refused to
    a running application. Takes as long as a candidate waits for a beat where only such notes are left."""
    fleet = await fleet_of(log, application)
    notes = [*([] if fleet is None else [fleet]), *(await named_of(log, application)).values()]
    if any(is_here(one) for one in notes):
        return True
    return bool(notes) and (any(is_fresh(one) for one in notes) or await is_coordinated(log, application))


def is_fresh(facts: dict[str, Any]) -> bool:
    """Whether a note may be of a process that has not joined the group yet. One of a clock that is ahead by more would stay young for as long."""
    return bool(abs(wall_ms() - facts.get("at_ms", 0)) < FRESH_MS)


def refuse_beside_command(application: str, note: dict[str, Any]) -> None:
    """Raises RefusedBySafety where the note in a fleet's place is of a command that must be alone with the application."""
    command = note.get("command")
    if command and (is_running(note) if is_here(note) else is_fresh(note)):
        where = f"process {note['pid']}" + ("" if is_here(note) else f" on {note['host']}")
        raise RefusedBySafety(
            f"`orchestrator {command}` is at work on '{application}' ({where}); start it once that has ended"
        )


async def runs_elsewhere(
    log: GroupStore,
    application: str,
    note: dict[str, Any],
    elsewhere: Callable[[Collection[str]], Awaitable[str | None]],
) -> bool:
    """Whether what this note of another machine is of is there: it has just begun, or the group has one of its instances there."""
    if is_fresh(note) or await elsewhere(note["instances"]) is not None:
        return True
    return await is_coordinating(log, application, note)


async def is_coordinating(log: GroupStore, application: str, note: dict[str, Any]) -> bool:
    """Whether an instance of this note coordinates the group. Of a machine that is not reached from here, which has no --listen, the
    lease is all that shows it. Takes as long as a candidate waits for a beat where such an instance was the last to hold it."""
    lease = await log.lease(application)
    return lease is not None and lease.holder in note["instances"] and await is_coordinated(log, application)


async def is_coordinated(log: GroupStore, application: str) -> bool:
    """Whether somebody holds the lease of the group: a beat comes before it has stood still as long as a candidate waits."""
    election = Election()
    while True:
        found = await log.lease(application)
        if found is None or await is_given_back(log, found):
            return False
        seen = Seen(found.term, found.beat)
        if election.has_moved(seen):
            return True
        if election.look(seen, monotonic_ms()):
            return False
        await asyncio.sleep(LOOK_S)


async def may_be_looked_after(log: GroupStore, application: str) -> bool:
    """The same for a command that only waits: wherever the fleet was started, and whether it has a coordinator or not."""
    return await fleet_of(log, application) is not None or bool(await named_of(log, application))


def hold(file: Path, refusal: str) -> int:
    """Takes a lock that ends with this process; returns its descriptor. Raises RefusedBySafety, `refusal` with the process
    that holds it in the place of `{holder}`; DirectoryUnusable, NoSpaceLeft."""
    try:
        private.make_folder(file.parent)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private.FILE)
    except OSError as error:
        raise DirectoryUnusable(
            f"the state folder {file.parent} cannot be made or written ({error.strerror}); choose another with --state-dir"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise RefusedBySafety(refusal.replace("{holder}", holder)) from None
    try:
        with writing_to(file.parent, "free some, or choose another folder with --state-dir"):
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock
