"""A view and its target assignment as bytes: what travels between the coordinator (assignor_process.py) and its assignor process (assignor_main.py).

One rule: the target assignment that comes back is the one that `assign_tasks` gives for the view, whatever was sent before. Tasks are sent
where they differ from those of the request before; everything else names them by their place in that table, in
columns. A target assignment is sent as what differs from its view. Pure; the coordinator's side (`RequestEncoder`) works in steps of about
a millisecond, as an assignment does, because it shares its loop with the heartbeats.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec

from orchestrator.errors import ProtocolError
from orchestrator.model import Protocol, Settings, Task, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import STEP, LearnerView, MemberView, TargetAssignment, View

NOBODY = -1
MALFORMED = (msgspec.MsgspecError, LookupError, ValueError, TypeError)

T = TypeVar("T")
TASK_VALUES: tuple[Callable[[Any], int], ...] = (
    *(itemgetter(0), itemgetter(1)),
    *(attrgetter("stateful"), attrgetter("weight"), attrgetter("state_bytes")),
)
Steps = Generator[None, None, T]
Copies = Mapping[TaskId, Mapping[str, int]]


class TaskColumns(msgspec.Struct, frozen=True, array_like=True):
    """All tasks, a column for each thing that is known of them."""

    subtopology: bytes
    partition: bytes
    stateful: bytes
    weight: bytes
    state_bytes: bytes


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A view. `tasks` None: those of the request before. A member is (name, instance, capacity, zone, leaving, which of
    `versions` it has, or NOBODY for all tasks). Names are numbers: the members in their order, then `others`."""

    tasks: TaskColumns | None
    members: list[tuple[str, str, int, str, bool, int]]
    others: list[str]
    versions: list[bytes]
    active: bytes  # the owner of every task, or NOBODY
    learners: bytes  # task, member
    ready: bytes
    learner_lags: bytes  # or NOBODY
    standbys: bytes  # task, member
    standby_lags: bytes
    disk: bytes  # task, instance
    disk_lags: bytes
    reserved: bytes
    former: bytes  # task, member
    given_up: bytes  # task, instance
    moving: bytes
    silent: bytes  # members
    protocol: Protocol
    settings: Settings


class Response(msgspec.Struct, frozen=True, array_like=True):
    """A target assignment, as what differs from its view. `owned`: how many tasks have an owner in it."""

    owned: int
    reassigned: bytes
    moved: bytes  # tasks with another owner than in the view, and which
    owners: bytes
    dropped: bytes  # tasks that had an owner in the view
    learners: bytes  # task, member
    copied: bytes  # tasks with other standbys than in the view, how many, and which, one task after the other
    copies: bytes
    standbys: bytes


_request = msgspec.msgpack.Decoder(Request)
_response = msgspec.msgpack.Decoder(Response)


class Names(dict[str | None, int]):
    """Name -> number; a new name gets the next one."""

    def __init__(self, members: Iterable[str]) -> None:
        self.names = list(members)
        super().__init__(zip(self.names, range(len(self.names)), strict=True))
        self[None] = NOBODY

    def __missing__(self, name: str | None) -> int:
        assert name is not None
        number = self[name] = len(self.names)
        self.names.append(name)
        return number


class RequestEncoder:
    """The coordinator's side: requests to one process, each after the answer to the one before. An error, or a request
    that was not sent, is the end of it: what the process has kept is not known then."""

    def __init__(self) -> None:
        self._tasks: Mapping[TaskId, Task] | None = None
        self._sent: TaskColumns | None = None
        self._ids: list[TaskId] = []
        self._number: dict[TaskId, int] = {}
        self._names: list[str] = []

    def request(self, view: View) -> Iterator[bytes | None]:
        """Pauses now and then (None); the request comes last. OverflowError where a number is beyond 64 bits."""
        tasks = None
        if view.tasks is not self._tasks:
            tasks = yield from self._see_tasks(view.tasks)
        names = Names(view.members)
        self._names = names.names
        members, versions = yield from self._members(view.members)
        active = array("i")
        for some in chunks(self._ids):
            active.extend(map(names.__getitem__, map(view.active.get, some)))
            yield None
        learners = yield from self._pairs(((t, it.member) for t, it in view.learners.items()), names)
        ready = array("b", (it.ready for t, it in view.learners.items() if t in self._number))
        lags = (view.learner_lags.get(t, NOBODY) for t in view.learners if t in self._number)
        learner_lags = array("q", lags)
        standbys, standby_lags = yield from self._copies(view.standbys, names)
        disk, disk_lags = yield from self._copies(view.disk, names)
        reserved = yield from self._numbers(view.reserved)
        former = yield from self._pairs(view.former.items(), names)
        given_up = yield from self._pairs(view.given_up, names)
        moving = yield from self._numbers(view.moving)
        silent = array("i", (names[name] for name in view.silent if name in view.members))
        request = Request(
            tasks,
            members,
            names.names[len(members) :],
            versions,
            active.tobytes(),
            learners,
            ready.tobytes(),
            learner_lags.tobytes(),
            standbys,
            standby_lags,
            disk,
            disk_lags,
            reserved,
            former,
            given_up,
            moving,
            silent.tobytes(),
            view.protocol,
            view.settings,
        )
        yield msgspec.msgpack.encode(request)

    def _see_tasks(self, tasks: Mapping[TaskId, Task]) -> Steps[TaskColumns | None]:
        """Number the tasks; their columns, where anything differs from those that the process has."""
        kinds = (array("i"), array("i"), array("b"), array("q"), array("q"))
        ids: list[TaskId] = []
        for some in chunks(tasks.items()):
            of_chunk, known = zip(*some, strict=True)
            ids.extend(of_chunk)
            for kind, part, value in zip(kinds, (of_chunk, of_chunk, known, known, known), TASK_VALUES, strict=True):
                kind.extend(map(value, part))
            yield
        columns = TaskColumns(*(column.tobytes() for column in kinds))
        self._tasks = tasks
        if columns == self._sent:
            return None
        self._sent, self._ids, self._number = columns, ids, {}
        for some_ids in chunks(ids):
            begin = len(self._number)
            self._number.update(zip(some_ids, range(begin, begin + len(some_ids)), strict=True))
            yield
        return columns

    def _members(
        self, members: Mapping[str, MemberView]
    ) -> Steps[tuple[list[tuple[str, str, int, str, bool, int]], list[bytes]]]:
        found: list[tuple[str, str, int, str, bool, int]] = []
        numbers: dict[int, int] = {}  # of a version, by the identity of its set: members of a version share it
        versions: list[bytes] = []
        for some in chunks(members.values()):
            for m in some:
                version = NOBODY
                if m.knows is not None:
                    version = numbers.setdefault(id(m.knows), len(versions))
                    if version == len(versions):
                        versions.append((yield from self._numbers(m.knows)))
                found.append((m.name, m.instance, m.capacity, m.zone, m.leaving, version))
            yield
        return found, versions

    def _numbers(self, tasks: Iterable[TaskId]) -> Steps[bytes]:
        """A task that is not in the view's table means nothing to the task assignor."""
        found = array("i")
        for some in chunks(tasks):
            found.extend(number for task in some if (number := self._number.get(task)) is not None)
            yield
        return found.tobytes()

    def _pairs(self, pairs: Iterable[tuple[TaskId, str]], names: Names) -> Steps[bytes]:
        found = array("i")
        for some in chunks(pairs):
            for task, name in some:
                if (number := self._number.get(task)) is not None:
                    found.append(number)
                    found.append(names[name])
            yield
        return found.tobytes()

    def _copies(self, copies: Copies, names: Names) -> Steps[tuple[bytes, bytes]]:
        found, lags = array("i"), array("q")
        for some in chunks(copies.items()):
            for task, held in some:
                if (number := self._number.get(task)) is not None:
                    for name, lag in held.items():
                        found.append(number)
                        found.append(names[name])
                        lags.append(lag)
            yield
        return found.tobytes(), lags.tobytes()

    def target(self, view: View, answer: bytes) -> Iterator[TargetAssignment | None]:
        """What the answer says of the view that was asked about: pauses, and the target assignment last. Raises ProtocolError."""
        try:
            yield from self._target(view, _response.decode(answer))
        except MALFORMED as error:
            raise ProtocolError(f"not a target assignment for this group: {error!r}") from None

    def _target(self, view: View, response: Response) -> Iterator[TargetAssignment | None]:
        active = dict(view.active)
        for task in self._known(column("i", response.dropped)):
            del active[task]
        moved, owners = column("i", response.moved), column("i", response.owners)
        for begin in range(0, len(moved), STEP):
            some = slice(begin, begin + STEP)
            active.update(zip(self._known(moved[some]), self._named(owners[some]), strict=True))
            yield None
        if len(active) != response.owned:  # owners of tasks that are not in the table
            active = {task: owner for task, owner in active.items() if task in self._number}
        if len(active) != response.owned:
            raise ValueError(f"{len(active)} tasks with owners, and not {response.owned}")
        reassigned: set[TaskId] = set()
        for part in chunks(column("i", response.reassigned)):
            reassigned.update(self._known(part))
            yield None
        learning = column("i", response.learners)
        learners = dict(zip(self._known(learning[::2]), self._named(learning[1::2]), strict=True))
        standbys: dict[TaskId, tuple[str, ...]] = {}
        for copies in chunks(view.standbys.items()):
            standbys.update((t, tuple(sorted(names))) for t, names in copies if names and t in self._number)
            yield None
        yield from self._change(standbys, response)
        yield TargetAssignment(active, learners, standbys, frozenset(reassigned))

    def _change(self, standbys: dict[TaskId, tuple[str, ...]], response: Response) -> Iterator[None]:
        held, begin = column("i", response.standbys), 0
        for some in chunks(zip(column("i", response.copied), column("i", response.copies), strict=True)):
            for number, count in some:
                (task,) = self._known([number])
                if count:
                    standbys[task] = tuple(self._named(held[begin : begin + count]))
                    begin += count
                else:
                    del standbys[task]
            yield

    def _known(self, numbers: Iterable[int]) -> Iterator[TaskId]:
        return map(self._ids.__getitem__, counted(numbers))

    def _named(self, numbers: Iterable[int]) -> Iterator[str]:
        return map(self._names.__getitem__, counted(numbers))


class ResponseEncoder:
    """The process's side: keeps the tasks of the last request, in their order."""

    def __init__(self) -> None:
        self._ids: list[TaskId] = []
        self._tasks: dict[TaskId, Task] | None = None

    def answer(self, request: bytes) -> bytes:
        """The target assignment for a request. Raises ProtocolError for what is none."""
        try:
            view = self._view(_request.decode(request))
        except MALFORMED as error:
            raise ProtocolError(f"not a request for an assignment: {error!r}") from None
        return msgspec.msgpack.encode(self._response(view, assign_tasks(view)))

    def _view(self, q: Request) -> View:
        if q.tasks is not None:
            numbers = zip(column("i", q.tasks.subtopology), column("i", q.tasks.partition), strict=True)
            self._ids = [TaskId(*number) for number in numbers]
            known = (column("b", q.tasks.stateful), column("q", q.tasks.weight), column("q", q.tasks.state_bytes))
            rows = zip(self._ids, *known, strict=True)
            # Sorted, as the task assignor wants them: it finds at once that nothing is to be sorted.
            self._tasks = {t: Task(t, bool(stateful), weight, size) for t, stateful, weight, size in sorted(rows)}
        if self._tasks is None:
            raise ValueError("the first request must bring the tasks")
        ids = self._ids
        names = [*(member[0] for member in q.members), *q.others]
        versions = [frozenset(ids[n] for n in counted(column("i", version))) for version in q.versions]
        members = {
            name: MemberView(name, instance, capacity, zone, leaving, None if version == NOBODY else versions[version])
            for name, instance, capacity, zone, leaving, version in q.members
        }
        owners = zip(ids, column("i", q.active), strict=True)
        learners = list(zip(self._pairs(q.learners, names), column("b", q.ready), strict=True))
        lags = zip(learners, column("q", q.learner_lags), strict=True)
        return View(
            self._tasks,
            members,
            {task: names[owner] for task, owner in owners if owner != NOBODY},
            {task: LearnerView(member, bool(ready)) for (task, member), ready in learners},
            {task: lag for ((task, _), _), lag in lags if lag != NOBODY},
            self._copies(q.standbys, q.standby_lags, names),
            self._copies(q.disk, q.disk_lags, names),
            frozenset(ids[n] for n in counted(column("i", q.reserved))),
            dict(self._pairs(q.former, names)),
            frozenset(self._pairs(q.given_up, names)),
            frozenset(ids[n] for n in counted(column("i", q.moving))),
            frozenset(names[n] for n in counted(column("i", q.silent))),
            q.protocol,
            q.settings,
        )

    def _pairs(self, data: bytes, names: list[str]) -> list[tuple[TaskId, str]]:
        both = column("i", data)
        return [(self._ids[n], names[m]) for n, m in zip(counted(both[::2]), counted(both[1::2]), strict=True)]

    def _copies(self, data: bytes, lags: bytes, names: list[str]) -> dict[TaskId, dict[str, int]]:
        found: dict[TaskId, dict[str, int]] = {}
        for (task, name), lag in zip(self._pairs(data, names), column("q", lags), strict=True):
            found.setdefault(task, {})[name] = lag
        return found

    def _response(self, view: View, target: TargetAssignment) -> Response:
        tasks = {task: number for number, task in enumerate(self._ids)}
        names = {name: number for number, name in enumerate(view.members)}
        moved = [t for t in target.reassigned if t in target.active and target.active[t] != view.active.get(t)]
        copied = [
            t
            for t in view.standbys.keys() | target.standbys.keys()
            if target.standbys.get(t, ()) != tuple(sorted(view.standbys.get(t, ())))
        ]

        def numbers(table: Mapping[T, int], some: Iterable[T]) -> bytes:
            return array("i", map(table.__getitem__, some)).tobytes()

        return Response(
            owned=len(target.active),
            reassigned=numbers(tasks, target.reassigned),
            moved=numbers(tasks, moved),
            owners=numbers(names, (target.active[t] for t in moved)),
            dropped=numbers(tasks, view.active.keys() - target.active.keys()),
            learners=array("i", (n for t, m in target.learners.items() for n in (tasks[t], names[m]))).tobytes(),
            copied=numbers(tasks, copied),
            copies=array("i", (len(target.standbys.get(t, ())) for t in copied)).tobytes(),
            standbys=numbers(names, (m for t in copied for m in target.standbys.get(t, ()))),
        )


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """As many at a time as take about a millisecond."""
    rest = iter(items)
    while some := list(islice(rest, STEP)):
        yield some


def column(kind: str, data: bytes) -> array[int]:
    """ValueError where the length does not fit."""
    found = array(kind)
    found.frombytes(data)
    return found


def counted(numbers: Iterable[int]) -> Iterable[int]:
    """The numbers, none of which is below 0: lists would take that for a place from their end. Raises ValueError."""
    some = numbers if isinstance(numbers, (list, array)) else list(numbers)
    if some and min(some) < 0:
        raise ValueError(f"a count below zero: {min(some)}")
    return some
