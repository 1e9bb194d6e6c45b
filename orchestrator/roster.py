"""The members of a group as the coordinator sees them: sessions, statuses, silence.

One rule: everything here can be rebuilt from what members report; nothing here is written down. Used by group.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, KeysView
from dataclasses import dataclass, field, replace
from enum import StrEnum

from orchestrator.model import Assignment, Hello, Protocol, Settings, Status, TaskId, TaskRange

Version = tuple[TaskRange, ...] | None  # of the app: its tasks, as Hello tells them


class Presence(StrEnum):
    """Where a member is in its life, as the coordinator sees it."""

    RUNNING = "running"
    SILENT = "silent"  # its connection ended; it may come back
    LEAVING = "leaving"  # hands its tasks over, then goes
    FENCED = "fenced"  # its writer is refused from now on; kept until its session ends, for the state on its disk


# The life of a member: (where it was, what happened) -> where it is; None means not in the group. Drawn in the docs from
# this table; the simulation judges every step of every member by it.
MEMBER_LIFE: dict[tuple[Presence | None, str], Presence | None] = {
    (None, "joined"): Presence.RUNNING,
    (None, "joined, and is to leave"): Presence.LEAVING,
    (Presence.RUNNING, "connection ended"): Presence.SILENT,
    (Presence.RUNNING, "to leave"): Presence.LEAVING,
    (Presence.RUNNING, "release or heartbeat overdue"): Presence.FENCED,
    (Presence.RUNNING, "session timed out"): None,
    (Presence.SILENT, "connected again"): Presence.RUNNING,
    (Presence.SILENT, "connected again, to leave"): Presence.LEAVING,
    (Presence.SILENT, "a warm copy takes over"): Presence.FENCED,
    (Presence.SILENT, "session timed out"): None,
    (Presence.LEAVING, "mark taken back"): Presence.RUNNING,
    (Presence.LEAVING, "connection ended"): Presence.SILENT,
    (Presence.LEAVING, "release overdue"): Presence.FENCED,
    (Presence.LEAVING, "shut down, or session timed out"): None,
    (Presence.FENCED, "rejoined"): Presence.RUNNING,
    (Presence.FENCED, "rejoined, to leave"): Presence.LEAVING,
    (Presence.FENCED, "session timed out"): None,
}


@dataclass(slots=True)
class Member:
    """One worker. `session` None means that its connection ended at `silent_ms`."""

    hello: Hello
    session: int | None
    status: Status
    heard_ms: int
    silent_ms: int | None = None
    leaving: bool = False
    sent: Assignment | None = None
    fenced: bool = False
    progress: dict[TaskId, tuple[int, int]] = field(default_factory=dict)
    shut_down: bool = False
    told_again_ms: int = 0
    complete: tuple[object, ...] = ()  # an assignment, and reports of which it was seen that they lack nothing of it
    number: int = 0  # its place in the roster
    recalled: dict[TaskId, int] = field(
        default_factory=dict
    )  # ready copies it was told to close: with which generation

    @property
    def name(self) -> str:
        return self.hello.member

    def told(self, assignment: Assignment) -> None:
        """This is what it is to hold from now on. A copy that it is told to close counts as ready no more: if it is wanted
        again a moment later, it has to be opened again first, and the member may not have heard of either yet."""
        self.sent = assignment
        for task, copy in self.status.copies.items():
            if copy.ready and task not in assignment.active and task not in assignment.learners:
                self.recalled[task] = assignment.generation
        self.status = self.believed(self.status)

    def believed(self, status: Status) -> Status:
        """What it says, but for announcements from before it closed a copy."""
        if not self.recalled:
            return status
        self.recalled = {task: since for task, since in self.recalled.items() if status.generation < since}
        void = {task: copy for task, copy in status.copies.items() if task in self.recalled and copy.ready}
        copies = {**status.copies, **{task: replace(copy, ready=False) for task, copy in void.items()}}
        return replace(status, copies=copies) if void else status

    @property
    def is_leaving(self) -> bool:
        return self.leaving or self.status.leaving

    @property
    def presence(self) -> Presence:
        """See MEMBER_LIFE."""
        if self.fenced:
            return Presence.FENCED
        if self.session is None:
            return Presence.SILENT
        return Presence.LEAVING if self.is_leaving else Presence.RUNNING

    def silent_for(self, now_ms: int) -> int:
        """How long nothing came: since the connection ended, else since the last heartbeat."""
        since = self.heard_ms if self.silent_ms is None else self.silent_ms
        return max(0, now_ms - since)


class Roster:
    """Members by id, by session, by writer and by instance; and who reports a copy of which task."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._by_session: dict[int, str] = {}
        self._by_writer: dict[str, Member] = {}
        self._by_instance: dict[str, dict[str, Member]] = {}
        self._copies: dict[TaskId, dict[str, None]] = {}
        self._speak: Counter[Protocol] = Counter()
        self._by_version: dict[Version, dict[str, Member]] = {}
        self._stays = ""  # the one of whom it was last seen that it stays
        self._came = 0

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    def get(self, name: str) -> Member | None:
        return self.members.get(name)

    def of_session(self, session: int) -> Member | None:
        name = self._by_session.get(session)
        return None if name is None else self.members.get(name)

    def of_writer(self, writer: str) -> Member | None:
        return self._by_writer.get(writer)

    def of_instance(self, instance: str) -> list[Member]:
        """The workers of an instance that are here."""
        return list(self._by_instance.get(instance, {}).values())

    def writers(self) -> KeysView[str]:
        """The writers of those who are here."""
        return self._by_writer.keys()

    def reporting(self, task: TaskId) -> list[Member]:
        """Who reports a copy of the task, or state of it on disk."""
        return [self.members[name] for name in self._copies.get(task, ())]

    def report(self, member: Member, status: Status) -> None:
        """The member's status is this from now on."""
        before, member.status = member.status, member.believed(status)
        status = member.status
        if before.copies.keys() != status.copies.keys() or before.disk.keys() != status.disk.keys():
            self._forget_copies(member.name, before)
            self._note_copies(member.name, status)

    def _note_copies(self, name: str, status: Status) -> None:
        for task in (*status.copies, *status.disk):
            self._copies.setdefault(task, {})[name] = None

    def _forget_copies(self, name: str, status: Status) -> None:
        for task in status.copies.keys() | status.disk.keys():
            names = self._copies[task]
            del names[name]
            if not names:
                del self._copies[task]

    def all_speak(self, protocol: Protocol) -> bool:
        return self._speak[protocol] == len(self.members)

    def somebody_stays(self) -> bool:
        """Whether anybody is not leaving."""
        known = self.members.get(self._stays)
        if known is None or known.is_leaving:
            self._stays = next((m.name for m in self.members.values() if not m.is_leaving), "")
        return self._stays != ""

    def versions(self) -> list[Version]:
        """The versions of the app of those who stay; of those who leave, where nobody stays. Nearly always one, and
        nearly always the first one asked stays: thousands that join are not looked through for each of them."""
        staying = [
            version
            for version, members in self._by_version.items()
            if any(not m.is_leaving and not m.shut_down for m in members.values())
        ]
        return staying or list(self._by_version)

    def bind(self, member: Member, session: int) -> None:
        """`member`, who is not in the roster yet, speaks over `session` from now on."""
        self._came += 1
        member.number = self._came
        member.session = session
        member.silent_ms = None
        self.members[member.name] = member
        self._by_session[session] = member.name
        self._by_writer[member.hello.writer] = member
        self._by_instance.setdefault(member.hello.instance, {})[member.name] = member
        self._by_version.setdefault(member.hello.tasks, {})[member.name] = member
        self._note_copies(member.name, member.status)
        self._speak.update(set(member.hello.protocols))

    def unbind(self, session: int, now_ms: int) -> Member | None:
        """The session ended; its member is silent from now on."""
        name = self._by_session.pop(session, None)
        member = None if name is None else self.members.get(name)
        if member is not None and member.session == session:
            member.session = None
            member.silent_ms = now_ms
        return member

    def remove(self, member: Member) -> None:
        if self.members.pop(member.name, None) is None:
            return
        if member.session is not None:
            self._by_session.pop(member.session, None)
        self._by_writer.pop(member.hello.writer, None)
        workers = self._by_instance[member.hello.instance]
        del workers[member.name]
        if not workers:
            del self._by_instance[member.hello.instance]
        alike = self._by_version[member.hello.tasks]
        del alike[member.name]
        if not alike:
            del self._by_version[member.hello.tasks]
        self._forget_copies(member.name, member.status)
        self._speak.subtract(set(member.hello.protocols))

    def note_progress(self, member: Member, learning: Container[TaskId], now_ms: int) -> None:
        """Remember when each restoring copy last came forward. What it is to learn (`learning`) and does not report counts
        from when it was given to it: a member that speaks and does not restore would be waited for without end."""
        if not member.progress and not member.status.copies:
            return
        for task, copy in member.status.copies.items():
            position, _ = member.progress.get(task, (-1, now_ms))
            if copy.position > position or copy.ready:
                member.progress[task] = (copy.position, now_ms)
        for task in [t for t in member.progress if t not in member.status.copies and t not in learning]:
            del member.progress[task]

    def stuck_learners(self, member: Member, learners: list[TaskId], now_ms: int, settings: Settings) -> list[TaskId]:
        """Those of `learners` that made no progress for the learner timeout."""
        stuck: list[TaskId] = []
        for task in learners:
            copy = member.status.copies.get(task)
            if copy is not None and copy.ready:
                continue
            _, since = member.progress.setdefault(task, (-1, now_ms))
            if now_ms - since >= settings.learner_timeout_ms:
                stuck.append(task)
        return stuck
