"""The members of a group as the coordinator sees them: sessions, statuses, silence.

One rule: everything here can be rebuilt from what members report; nothing here is written down. Used by group.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.model import Assignment, Hello, Settings, Status, TaskId


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

    @property
    def name(self) -> str:
        return self.hello.member

    @property
    def is_leaving(self) -> bool:
        return self.leaving or self.status.leaving

    def silent_for(self, now_ms: int) -> int:
        """How long nothing came: since the connection ended, else since the last heartbeat."""
        since = self.heard_ms if self.silent_ms is None else self.silent_ms
        return max(0, now_ms - since)


class Roster:
    """Members by id and by session."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._by_session: dict[int, str] = {}

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
        return next((m for m in self.members.values() if m.hello.writer == writer), None)

    def bind(self, member: Member, session: int) -> None:
        """`member` speaks over `session` from now on."""
        if member.session is not None:
            self._by_session.pop(member.session, None)
        member.session = session
        member.silent_ms = None
        self._by_session[session] = member.name
        self.members[member.name] = member

    def unbind(self, session: int, now_ms: int) -> Member | None:
        """The session ended; its member is silent from now on."""
        name = self._by_session.pop(session, None)
        member = None if name is None else self.members.get(name)
        if member is not None and member.session == session:
            member.session = None
            member.silent_ms = now_ms
        return member

    def remove(self, member: Member) -> None:
        if member.session is not None:
            self._by_session.pop(member.session, None)
        self.members.pop(member.name, None)

    def note_progress(self, member: Member, now_ms: int) -> None:
        """Remember when each restoring copy last came forward."""
        for task, copy in member.status.copies.items():
            position, _ = member.progress.get(task, (-1, now_ms))
            if copy.position > position or copy.ready:
                member.progress[task] = (copy.position, now_ms)
        for task in [t for t in member.progress if t not in member.status.copies]:
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
