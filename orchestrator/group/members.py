"""The members of a group as the coordinator sees them: sessions, statuses, silence.

One rule: everything here can be rebuilt from what members report; nothing here is written down. Used by step.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, KeysView
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.group.topology_versions import Version
from orchestrator.model import Assignment, JoinRequest, MemberStatus, Owner, Protocol, TaskId


class Presence(StrEnum):
    """Where a member is in its life, as the coordinator sees it."""

    RUNNING = "running"
    SILENT = "silent"  # its connection ended; it may come back
    LEAVING = "leaving"  # hands its tasks over, then goes
    # Its transactional id is refused from now on; kept until its session ends, for the state on its disk
    FENCED = "fenced"


# The life of a member: (where it was, what happened) -> where it is; None means not in the group. Executed by Member.live,
# drawn in the docs, judged by the simulation.
MEMBER_LIFE: dict[tuple[Presence | None, str], Presence | None] = {
    (None, "joined"): Presence.RUNNING,
    (None, "joined, to leave"): Presence.LEAVING,
    (Presence.RUNNING, "joined"): Presence.RUNNING,  # over another connection, or as another incarnation
    (Presence.RUNNING, "joined, to leave"): Presence.LEAVING,
    (Presence.RUNNING, "connection ended"): Presence.SILENT,
    (Presence.RUNNING, "to leave"): Presence.LEAVING,
    (Presence.RUNNING, "fenced"): Presence.FENCED,
    (Presence.RUNNING, "gone"): None,
    (Presence.SILENT, "joined"): Presence.RUNNING,
    (Presence.SILENT, "joined, to leave"): Presence.LEAVING,
    (Presence.SILENT, "to leave"): Presence.SILENT,
    (Presence.SILENT, "to stay"): Presence.SILENT,
    (Presence.SILENT, "fenced"): Presence.FENCED,
    (Presence.SILENT, "gone"): None,
    (Presence.LEAVING, "joined"): Presence.RUNNING,
    (Presence.LEAVING, "joined, to leave"): Presence.LEAVING,
    (Presence.LEAVING, "connection ended"): Presence.SILENT,
    (Presence.LEAVING, "to stay"): Presence.RUNNING,
    (Presence.LEAVING, "fenced"): Presence.FENCED,
    (Presence.LEAVING, "gone"): None,
    (Presence.FENCED, "joined"): Presence.RUNNING,
    (Presence.FENCED, "joined, to leave"): Presence.LEAVING,
    (Presence.FENCED, "connection ended"): Presence.FENCED,
    (Presence.FENCED, "to leave"): Presence.FENCED,
    (Presence.FENCED, "to stay"): Presence.FENCED,
    (Presence.FENCED, "fenced"): Presence.FENCED,
    (Presence.FENCED, "gone"): None,
}


class Progress(NamedTuple):
    """How far a copy has come, by its position and by what it read of a snapshot, and when it last came forward."""

    position: int
    read: int
    since_ms: int


NONE_YET = (-1, -1)


@dataclass(slots=True)
class Member:
    """One worker. `session` None means that its connection ended at `silent_ms`."""

    join_request: JoinRequest
    session: int | None
    status: MemberStatus
    last_report_ms: int
    silent_ms: int | None = None
    leaving: bool = False  # marked by an operator
    sent: Assignment | None = None
    presence: Presence | None = None  # None until it is bound to a session, and when it is gone
    progress: dict[TaskId, Progress] = field(default_factory=dict)
    shut_down: bool = False
    resent_ms: int = 0
    complete: tuple[object, ...] = ()  # an assignment, and reports of which it was seen that they lack nothing of it
    number: int = 0  # its place among the members
    recalled: dict[TaskId, int] = field(
        default_factory=dict
    )  # ready copies that an assignment had it close: with which generation

    @property
    def name(self) -> str:
        return self.join_request.member

    def record_sent(self, assignment: Assignment) -> None:
        """This assignment was sent to it. A copy that it has to close counts as ready no more: if it is wanted
        again a moment later, it has to be opened again first, and the member may have received neither assignment yet."""
        self.sent = assignment
        for task, copy in self.status.copies.items():
            if copy.ready and task not in assignment.active and task not in assignment.learners:
                self.recalled[task] = assignment.generation
        self.status = self.believed(self.status)

    def believed(self, status: MemberStatus) -> MemberStatus:
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
    def comes_back(self) -> bool:
        """It announced a bounce. One that is to leave ends for good, whatever it announced."""
        return self.status.bounce and not self.is_leaving

    @property
    def fenced(self) -> bool:
        return self.presence is Presence.FENCED

    def live(self, what: str) -> None:
        """Something happened to the member. Raises KeyError for what cannot happen to it where it is."""
        self.presence = MEMBER_LIFE[self.presence, what]

    def mark(self, leaving: bool) -> None:
        """An operator wants the member to leave, or no longer."""
        before, self.leaving = self.is_leaving, leaving
        self._turn(before)

    def report(self, status: MemberStatus) -> None:
        """The member's status is this from now on, but for announcements that it may not be believed."""
        before, self.status = self.is_leaving, self.believed(status)
        self._turn(before)

    def _turn(self, was_leaving: bool) -> None:
        if was_leaving != self.is_leaving:
            self.live("to leave" if self.is_leaving else "to stay")

    def lacks_assigned(self) -> bool:
        """Whether a member that has taken its assignment in reports less than what is in it (it dropped a task, or obeyed
        another coordinator in between). Asked with every heartbeat, so the same reports are not searched twice."""
        sent, status = self.sent, self.status
        if sent is None or status.term != sent.term or status.generation < sent.generation:
            return False
        reports = (sent, status.active, status.released, status.copies)
        if reports == self.complete:
            return False
        missing = [t for t in sent.active if t not in status.active and t not in status.released]
        copies = (*sent.learners, *sent.standbys)
        if missing or any(t not in status.copies and t not in status.active for t in copies):
            return True
        self.complete = reports
        return False

    def wait_longer(self, ms: int) -> None:
        """For so long no copy of it could come forward, or it would not have been seen."""
        self.progress = {t: one._replace(since_ms=one.since_ms + ms) for t, one in self.progress.items()}

    def stuck(self, learners: list[TaskId], now_ms: int, timeout_ms: int) -> list[TaskId]:
        """Those of `learners` that made no progress for the learner timeout; each has an entry in `progress`."""
        found: list[TaskId] = []
        for task in learners:
            copy = self.status.copies.get(task)
            if (copy is None or not copy.ready) and now_ms - self.progress[task].since_ms >= timeout_ms:
                found.append(task)
        return found

    def silent_for(self, now_ms: int) -> int:
        """How long nothing came: since the connection ended, else since the last heartbeat."""
        since = self.last_report_ms if self.silent_ms is None else self.silent_ms
        return max(0, now_ms - since)


def is_released(owner: Owner, member: Member) -> bool:
    """Whether the member's own report proves that it gave the task up at the recorded epoch."""
    proof = member.status.released.get(owner.task)
    return proof is not None and proof.epoch == owner.epoch


class Members:
    """Members by id, by session, by transactional id and by instance; and who reports a copy of which task."""

    def __init__(self) -> None:
        self.by_name: dict[str, Member] = {}
        self._by_session: dict[int, str] = {}
        self._by_transactional_id: dict[str, Member] = {}
        self._by_instance: dict[str, dict[str, Member]] = {}
        self._copies: dict[TaskId, dict[str, None]] = {}
        self._speak: Counter[Protocol] = Counter()
        self._by_version: dict[Version, dict[str, Member]] = {}
        self._stays = ""  # the one of whom it was last seen that it stays
        self._came = 0

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Member | None:
        return self.by_name.get(name)

    def of_session(self, session: int) -> Member | None:
        name = self._by_session.get(session)
        return None if name is None else self.by_name.get(name)

    def of_transactional_id(self, transactional_id: str) -> Member | None:
        return self._by_transactional_id.get(transactional_id)

    def of_instance(self, instance: str) -> list[Member]:
        """The workers of an instance that are here."""
        return list(self._by_instance.get(instance, {}).values())

    def transactional_ids(self) -> KeysView[str]:
        """The transactional ids of those who are here."""
        return self._by_transactional_id.keys()

    def reporting(self, task: TaskId) -> list[Member]:
        """Who reports a copy of the task, or state of it on disk."""
        return [self.by_name[name] for name in self._copies.get(task, ())]

    def report(self, member: Member, status: MemberStatus) -> None:
        """The member's status is this from now on."""
        before = member.status
        member.report(status)
        status = member.status
        if before.copies.keys() != status.copies.keys() or before.disk.keys() != status.disk.keys():
            self._forget_copies(member.name, before)
            self._note_copies(member.name, status)

    def _note_copies(self, name: str, status: MemberStatus) -> None:
        for task in (*status.copies, *status.disk):
            self._copies.setdefault(task, {})[name] = None

    def _forget_copies(self, name: str, status: MemberStatus) -> None:
        for task in status.copies.keys() | status.disk.keys():
            names = self._copies[task]
            del names[name]
            if not names:
                del self._copies[task]

    def all_speak(self, protocol: Protocol) -> bool:
        return self._speak[protocol] == len(self.by_name)

    def somebody_stays(self) -> bool:
        """Whether any member is not leaving."""
        known = self.by_name.get(self._stays)
        if known is None or known.is_leaving:
            self._stays = next((m.name for m in self.by_name.values() if not m.is_leaving), "")
        return self._stays != ""

    def versions(self) -> list[Version]:
        """The versions of the app of the members that stay; of those that leave, where none stays. Nearly always one, and
        nearly always the first one asked stays: thousands that join are not looked through for each of them."""
        staying = [
            version
            for version, members in self._by_version.items()
            if any(not m.is_leaving and not m.shut_down for m in members.values())
        ]
        return staying or list(self._by_version)

    def bind(self, member: Member, session: int) -> None:
        """`member`, who is not a member yet, speaks over `session` from now on."""
        self._came += 1
        member.number = self._came
        member.session = session
        member.silent_ms = None
        member.live("joined, to leave" if member.is_leaving else "joined")
        self.by_name[member.name] = member
        self._by_session[session] = member.name
        self._by_transactional_id[member.join_request.writer] = member
        self._by_instance.setdefault(member.join_request.instance, {})[member.name] = member
        self._by_version.setdefault(member.join_request.tasks, {})[member.name] = member
        self._note_copies(member.name, member.status)
        self._speak.update(set(member.join_request.protocols))

    def unbind(self, session: int, now_ms: int) -> Member | None:
        """The session ended; its member is silent from now on."""
        name = self._by_session.pop(session, None)
        member = None if name is None else self.by_name.get(name)
        if member is not None and member.session == session:
            member.session = None
            member.silent_ms = now_ms
            member.live("connection ended")
        return member

    def remove(self, member: Member) -> None:
        if self.by_name.pop(member.name, None) is None:
            return
        if member.session is not None:
            self._by_session.pop(member.session, None)
        self._by_transactional_id.pop(member.join_request.writer, None)
        workers = self._by_instance[member.join_request.instance]
        del workers[member.name]
        if not workers:
            del self._by_instance[member.join_request.instance]
        alike = self._by_version[member.join_request.tasks]
        del alike[member.name]
        if not alike:
            del self._by_version[member.join_request.tasks]
        self._forget_copies(member.name, member.status)
        self._speak.subtract(set(member.join_request.protocols))

    def note_progress(self, member: Member, learning: Container[TaskId], now_ms: int) -> None:
        """Remember when each restoring copy last came forward. A standby of a task in which nothing happens is not late: its time begins
        when it is to learn the task (`learning`); nor is one that is level, and waits for what else its worker learns (`ready`
        conservative). What is to be learned and is not reported counts from when it was given to the member: one that speaks and
        does not restore would be waited for without end."""
        if not member.progress and not member.status.copies:
            return
        for task, copy in member.status.copies.items():
            position, read, _ = member.progress.get(task, (*NONE_YET, now_ms))
            if task not in learning or copy.ready or (copy.end_known and copy.lag == 0):
                member.progress[task] = Progress(copy.position, copy.read, now_ms)
            elif copy.position > position or copy.read > read:
                member.progress[task] = Progress(max(position, copy.position), max(read, copy.read), now_ms)
        for task in [t for t in member.progress if t not in member.status.copies and t not in learning]:
            del member.progress[task]
