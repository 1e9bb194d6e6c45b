"""The commit machine: laws over random lives, and its tables.

Laws: what a task hands to a commit is in no other until the outcome is known; a task is released, halted or stopped only
with nothing under way and everything it completed in the log; an orderly stop comes to its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from orchestrator.model import TaskId
from workers.tasks import commit_machine as cm
from workers.tasks.commit_machine import SHARE_LIFE, WORK_LIFE, CommitMachine, Share, Work

TASKS = [TaskId(0, n) for n in range(3)]
A, B = TASKS[:2]


class Lives(RuleBasedStateMachine):
    """A worker whose tasks complete numbered records; `fresh` are not taken yet, `log` has what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = CommitMachine()
        self.running: set[TaskId] = set()
        self.in_calls: set[TaskId] = set()
        self.fresh: Counter[TaskId] = Counter()
        self.taken: dict[TaskId, int] | None = None
        self.over: set[TaskId] = set()  # released, halted or stopped
        self.stopping = self.stopped = False

    def tell(self, event: cm.Event) -> None:
        for effect in self.machine.step(event):
            match effect:
                case cm.BeginCommit(tasks):
                    assert self.taken is None, "one commit at a time"
                    assert tasks and set(tasks) <= self.running
                    self.taken = {task: self.fresh.pop(task, 0) for task in tasks}
                case cm.Released(task) | cm.Halted(task):
                    self.ended(task)
                case cm.Stopped():
                    assert self.taken is None and not self.in_calls
                    assert not any(self.fresh.values()), "everything whole is committed"
                    self.stopped = True

    def ended(self, task: TaskId) -> None:
        assert task in self.running and task not in self.in_calls
        assert not self.fresh[task] and not (self.taken or {}).get(task), "nothing is left behind"
        self.running.discard(task)
        self.over.add(task)

    @rule(task=st.sampled_from(TASKS))
    def start(self, task: TaskId) -> None:
        if task not in self.running and not (self.taken or {}).get(task):
            self.running.add(task)
            self.tell(cm.Started(task))

    @rule(task=st.sampled_from(TASKS))
    def complete(self, task: TaskId) -> None:
        if task in self.running and (task in self.in_calls or self.machine.processes(task)):
            self.fresh[task] += 1
            self.tell(cm.Completed(task))

    @rule(task=st.sampled_from(TASKS))
    def call(self, task: TaskId) -> None:
        if self.machine.processes(task):
            self.in_calls.add(task)
            self.tell(cm.CallsBegan(task))

    @rule(task=st.sampled_from(TASKS), fails=st.booleans())
    def call_ends(self, task: TaskId, fails: bool) -> None:
        if task in self.in_calls:
            self.in_calls.discard(task)
            self.tell(cm.CallsEnded(task, bool(self.fresh[task]), fails))

    @rule(task=st.sampled_from(TASKS))
    def lose(self, task: TaskId) -> None:
        if task in self.running:
            self.running.discard(task)
            self.in_calls.discard(task)
            self.fresh.pop(task, None)
            if self.taken is not None:
                self.taken.pop(task, None)
            self.tell(cm.Lost(task))

    @rule(task=st.sampled_from(TASKS))
    def release(self, task: TaskId) -> None:
        self.tell(cm.ReleaseAsked(task))

    @rule()
    def due(self) -> None:
        self.tell(cm.CommitDue())

    @precondition(lambda self: self.taken is not None)
    @rule(lost=st.sets(st.sampled_from(TASKS)))
    def commit_ends(self, lost: set[TaskId]) -> None:
        assert self.taken is not None
        for task in lost & set(self.taken) & self.running:
            self.lose(task)
        through, self.taken = frozenset(self.taken), None
        self.tell(cm.CommitEnded(through))

    @rule()
    def stop(self) -> None:
        self.stopping = True
        self.tell(cm.StopAsked())

    def teardown(self) -> None:
        """Whatever happened: an orderly stop ends once calls end and the log answers."""
        self.stop()
        for _ in range(10):
            for task in TASKS:
                self.call_ends(task, False)
            if self.taken is not None:
                self.commit_ends(set())
        assert self.stopped


TestLives: Any = Lives.TestCase
TestLives.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def started(*tasks: TaskId) -> CommitMachine:
    """Tasks that have committed before."""
    machine = CommitMachine()
    for task in tasks:
        assert machine.step(cm.Started(task)) == []
        assert machine.step(cm.Completed(task)) == [cm.BeginCommit((task,))]
        assert machine.step(cm.CommitEnded(frozenset({task}))) == []
    return machine


def test_what_a_task_has_done_first_is_committed_at_once() -> None:
    """Whoever waited while it moved waits for that; it waits for no interval, and the next one does."""
    machine = started(A)
    assert machine.step(cm.Started(B)) == [] == machine.step(cm.Completed(A))
    assert machine.step(cm.Completed(B)) == [cm.BeginCommit((A, B))]
    assert machine.step(cm.Completed(B)) == [] == machine.step(cm.CommitEnded(frozenset({A, B})))
    assert machine.step(cm.CommitDue()) == [cm.BeginCommit((B,))]


def test_a_commit_waits_for_its_time_and_for_the_one_before_it() -> None:
    machine = started(A, B)
    assert machine.step(cm.Completed(A)) == []
    assert machine.step(cm.CommitDue()) == [cm.BeginCommit((A,))]
    assert machine.step(cm.Completed(B)) == [] == machine.step(cm.CommitDue())
    assert machine.step(cm.CommitEnded(frozenset({A}))) == [cm.BeginCommit((B,))]


def test_a_release_is_committed_at_once_and_waits_for_no_other_task() -> None:
    machine = started(A, B)
    machine.step(cm.CallsBegan(B))
    machine.step(cm.Completed(B))
    machine.step(cm.Completed(A))
    assert machine.step(cm.ReleaseAsked(A)) == [cm.BeginCommit((A, B))]
    assert machine.step(cm.CommitEnded(frozenset({A, B}))) == [cm.Released(A)]


def test_a_release_waits_for_the_call_under_way() -> None:
    machine = started(A)
    machine.step(cm.CallsBegan(A))
    assert machine.step(cm.ReleaseAsked(A)) == []
    assert machine.step(cm.CallsEnded(A, completed=True)) == [cm.BeginCommit((A,))]
    assert machine.step(cm.CommitEnded(frozenset({A}))) == [cm.Released(A)]


def test_a_stop_takes_what_was_completed_during_the_commit_under_way() -> None:
    machine = started(A)
    machine.step(cm.Completed(A))
    machine.step(cm.CommitDue())
    machine.step(cm.Completed(A))
    assert machine.step(cm.StopAsked()) == []
    assert machine.step(cm.CommitEnded(frozenset({A}))) == [cm.BeginCommit((A,))]
    assert machine.step(cm.CommitEnded(frozenset({A}))) == [cm.Stopped()]


def test_after_a_failed_call_what_was_completed_is_committed_and_gaps_are_not_trusted() -> None:
    machine = started(A)
    machine.step(cm.CommitDue())
    assert machine.trusts_gaps(A)
    assert machine.step(cm.CallsEnded(A, completed=True, failed=True)) == [cm.BeginCommit((A,))]
    assert not machine.trusts_gaps(A) and not machine.processes(A)
    assert machine.step(cm.CommitEnded(frozenset({A}))) == [cm.Halted(A)]


def test_every_state_can_be_reached_and_left() -> None:
    works = {after for after in WORK_LIFE.values() if after is not None}
    assert works == set(Work) == {work for (work, _), after in WORK_LIFE.items() if work is not None and after is None}
    assert set(SHARE_LIFE.values()) == set(Share) == {share for share, _ in SHARE_LIFE}
