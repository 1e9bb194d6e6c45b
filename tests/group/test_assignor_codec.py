"""A view goes to another process and its plan comes back: the same plan, whatever was asked before; and nonsense ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.coordinator.assignor_codec import RequestEncoder, ResponseEncoder
from orchestrator.errors import ProtocolError
from orchestrator.model import Task, TaskId
from orchestrator.task_assignor.assign import assign_tasks
from orchestrator.task_assignor.view import STEP, MemberView, TargetAssignment, View
from tests.group.test_task_assignor import views

T = TypeVar("T")
STRANGERS = [TaskId(7, n) for n in range(3)]  # tasks that are gone, and still named here and there


def last(steps: Iterator[T | None]) -> T:
    found = [*steps][-1]
    assert found is not None
    return found


def there_and_back(asking: RequestEncoder, encoder: ResponseEncoder, view: View) -> TargetAssignment:
    return last(asking.target(view, encoder.answer(last(asking.request(view)))))


@st.composite
def any_views(draw: st.DrawFn) -> View:
    """Views as the assignor is tested with, and in them everything else that a view can hold."""
    view = draw(views())
    tasks, some = sorted(view.tasks), st.sampled_from([*sorted(view.tasks), *STRANGERS])
    names = st.sampled_from([*sorted(view.members), "gone.0"])
    instances = st.sampled_from([*sorted({m.instance for m in view.members.values()}), "gone"])
    lags = st.dictionaries(instances, st.integers(0, 1 << 40), max_size=3)
    orphans = draw(st.dictionaries(some, names, max_size=4))
    return replace(
        view,
        tasks={
            t: msgspec.structs.replace(task, state_bytes=draw(st.integers(0, 1 << 40)))
            for t, task in view.tasks.items()
        },
        members={} if draw(st.integers(0, 20)) == 0 else view.members,
        active={
            **{t: owner for t, owner in view.active.items() if t not in orphans},
            **draw(st.dictionaries(some, names, max_size=2)),
        },
        standbys={
            **view.standbys,
            **draw(st.dictionaries(some, st.dictionaries(names, st.integers(0, 99)), max_size=2)),
        },
        disk=draw(st.dictionaries(some, lags, max_size=5)),
        former=orphans,
        reserved=frozenset(t for t in orphans if draw(st.booleans())),
        given_up=draw(st.frozensets(st.tuples(some, instances), max_size=3)),
        moving=draw(st.frozensets(st.sampled_from([*tasks, *STRANGERS]), max_size=3)),
    )


@given(
    st.lists(st.tuples(any_views(), st.sampled_from(["others", "kept", "alike", "heavier"])), min_size=1, max_size=4)
)
@settings(max_examples=100, deadline=None)
def test_the_plan_that_comes_back_is_the_one_of_the_view(sequence: list[tuple[View, str]]) -> None:
    asking, encoder = RequestEncoder(), ResponseEncoder()
    tasks = sequence[0][0].tasks
    for view, how in sequence:
        if how == "others":
            tasks = view.tasks
        elif how == "alike":  # a table of its own that says the same
            tasks = {t: msgspec.structs.replace(task) for t, task in tasks.items()}
        elif how == "heavier":
            tasks = {t: msgspec.structs.replace(task, weight=task.weight + 1) for t, task in tasks.items()}
        now = replace(view, tasks=tasks, learners={t: it for t, it in view.learners.items() if t in tasks})
        try:
            wanted = assign_tasks(now)
        except ValueError:
            continue  # owners that never had their task: no group gives such a view
        assert there_and_back(asking, encoder, now) == wanted


def at_rest(count: int) -> View:
    tasks = {TaskId(n % 3, n // 3): Task(TaskId(n % 3, n // 3)) for n in range(count)}
    members = {name: MemberView(name, name) for name in ("A", "B", "C")}
    return replace(View(tasks, members), active=assign_tasks(View(tasks, members)).active)


def test_more_tasks_than_one_step_takes() -> None:
    asking, encoder, view = RequestEncoder(), ResponseEncoder(), at_rest(2 * STEP + 7)
    lost = replace(
        view,
        members={name: member for name, member in view.members.items() if name != "B"},
        active={t: name for t, name in view.active.items() if name != "B"},
        former={t: name for t, name in view.active.items() if name == "B"},
        standbys={t: {"A" if name == "C" else "C": 3} for t, name in view.active.items()},
    )
    fresh = replace(view, active={})
    for one in (view, lost, fresh):
        assert there_and_back(asking, encoder, one) == assign_tasks(one)


def test_tasks_travel_once() -> None:
    asking, encoder, view = RequestEncoder(), ResponseEncoder(), at_rest(600)
    first, second = (last(asking.request(view)) for _ in range(2))
    assert len(second) < len(first) / 2
    alike = replace(view, tasks={t: msgspec.structs.replace(task) for t, task in view.tasks.items()})
    assert len(last(asking.request(alike))) == len(second)
    with pytest.raises(ProtocolError, match="the first request must bring the tasks"):
        encoder.answer(second)


def test_what_is_no_question_is_refused() -> None:
    view = at_rest(60)
    request = msgspec.msgpack.decode(last(RequestEncoder().request(view)))
    whole = msgspec.msgpack.encode(request)
    odd = msgspec.msgpack.encode([*request[:4], b"abc", *request[5:]])
    unknown = msgspec.msgpack.encode([*request[:4], b"\x63\0\0\0" * 60, *request[5:]])
    for nonsense in (b"", b"hello", whole[:-1], odd, unknown):
        with pytest.raises(ProtocolError, match="not a request for an assignment"):
            ResponseEncoder().answer(nonsense)


def test_what_is_no_plan_is_refused() -> None:
    asking, view = RequestEncoder(), at_rest(60)
    answer = ResponseEncoder().answer(last(asking.request(view)))
    owned, *rest = msgspec.msgpack.decode(answer)
    assert last(asking.target(view, answer)) == assign_tasks(view)
    encode = msgspec.msgpack.encode
    negative = encode([owned, b"\xff\xff\xff\xff", *rest[1:]])
    beyond = encode([owned, b"\xff\0\0\0", *rest[1:]])
    for nonsense in (b"", answer[:-1], encode([owned + 1, *rest]), negative, beyond):
        with pytest.raises(ProtocolError, match="not a target assignment for this group"):
            last(asking.target(view, nonsense))
