"""The learner assignor: where tasks belong. A pure function of tasks, members, copies and settings.

One rule: smooth transition before balance (learner-task seed, version 1.0). The order is active, learner, standby;
the numbers in the comments are those of the seed. How the group gets there safely is not decided here (group/reconcile.py).
The eager and cooperative protocols use the same choices, only without a learner in between.
Every phase is a generator that yields after about a thousand tasks, so that its caller can do other work in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.task_assignor.balance import balance_hosts
from orchestrator.task_assignor.builder import AssignmentBuilder
from orchestrator.task_assignor.standbys import assign_standbys
from orchestrator.task_assignor.view import TargetAssignment, View


def assign_tasks(view: View) -> TargetAssignment:
    """Where every task belongs now. Deterministic; the identity when nothing is to be improved."""
    target = [*assign_in_steps(view)][-1]
    assert target is not None
    return target


def assign_in_steps(view: View) -> Iterator[TargetAssignment | None]:
    """`assign_tasks`, which pauses now and then (None); the target assignment comes last."""
    if not view.members:
        yield TargetAssignment({}, {}, {})
        return
    builder = AssignmentBuilder(view)
    yield from builder.assign_actives()
    builder.keep_learners()
    yield from builder.assign_cold()
    yield from builder.empty_leavers()
    yield from balance_hosts(builder)
    builder.balance_workers()
    yield from assign_standbys(builder)
    yield TargetAssignment(
        builder.active,
        builder.learners,
        {task: tuple(sorted(members)) for task, members in sorted(builder.standbys.items()) if members},
        frozenset(builder.reassigned),
    )
