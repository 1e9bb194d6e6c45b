"""Rules removed one at a time: patches applied by the test, never flags in the core. Each must be caught by some seed.

One rule: a mutation removes exactly one rule; if no seed notices, the simulation is too weak or the rule not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

import msgspec

from orchestrator.group import (
    assignments,
    assignor_view,
    fencing,
    hand_overs,
    membership,
    partition_growth,
    reconcile,
    scale_down,
    state,
    step,
    takeovers,
    timeouts,
)
from orchestrator.group import changes as ch
from orchestrator.group.state import GroupState
from orchestrator.group.step import Group
from orchestrator.member import load_meter, machine
from orchestrator.member.machine import Held, MemberMachine
from orchestrator.model import Ending, Owner, Released, Role, TaskId
from orchestrator.simulator.ledger import Ledger
from orchestrator.task_assignor import assign, standbys
from orchestrator.task_assignor.builder import AssignmentBuilder

Mutation = Callable[[ExitStack], None]


def _patch(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.enter_context(patch.object(owner, name, value))


def no_owner_check(stack: ExitStack) -> None:
    """The log accepts a zombie's commit."""
    _patch(stack, Ledger, "check_owner", lambda self, writer, task, epoch: None)


def no_lease_check(stack: ExitStack) -> None:
    """The log accepts owner records of a deposed coordinator."""
    _patch(stack, Ledger, "check_lease", lambda self, term: None)


def grant_without_release(stack: ExitStack) -> None:
    """An owner record changes although the owner before did not prove its release."""
    _patch(stack, reconcile, "_proven", lambda group, owner: True)


def grant_before_record(stack: ExitStack) -> None:
    """Grants go out before the owner record is in the log."""
    original = assignments.assignment_of

    def early(the_group: Group, who: object, owned: object) -> object:
        given = original(the_group, who, owned)  # type: ignore[arg-type]
        coming = {t: o.epoch for t, o in the_group.recording.items() if o.member == who.name}  # type: ignore[attr-defined]
        return msgspec.structs.replace(given, active={**given.active, **coming})

    _patch(stack, assignments, "assignment_of", early)


def no_fence(stack: ExitStack) -> None:
    """Tasks of a dead member are given away without fencing its writer."""

    def fence(group: GroupState, transactional_id: str) -> ch.Decisions:
        for task, owner in list(group.owners.items()):
            if owner.writer == transactional_id:
                yield ch.OwnerRecorded(Owner(task, owner.epoch, owner.member, "", group.term))
        yield ch.TargetOutdated()

    _patch(stack, fencing, "fence", fence)


def obey_any_term(stack: ExitStack) -> None:
    """A member obeys a coordinator of a lower term."""
    original = MemberMachine._assigned

    def assigned(self: MemberMachine, assignment: object) -> object:
        self.term = 0
        return original(self, assignment)  # type: ignore[arg-type]

    _patch(stack, MemberMachine, "_assigned", assigned)


def any_ending(stack: ExitStack) -> None:
    """An owner receives the ending of an owner that is not the one it follows."""

    def ending(group: GroupState, task: TaskId, epoch: int) -> Ending | None:
        hand_over = group.hand_overs.get(task)
        return None if hand_over is None or hand_over.proof is None else hand_over.proof.ending

    _patch(stack, hand_overs, "ending", ending)


def forget_release_proof(stack: ExitStack) -> None:
    """A member does not repeat the proof of a release."""
    original = MemberMachine.status

    def status(self: MemberMachine) -> object:
        return msgspec.structs.replace(original(self), released={})

    _patch(stack, MemberMachine, "status", status)


def ignore_status_changes(stack: ExitStack) -> None:
    """A change in a heartbeat does not make the group think again."""
    _patch(stack, membership, "matters", lambda before, after: False)


def no_rejoin_grace(stack: ExitStack) -> None:
    """A new coordinator fences silent owners at once."""
    original = timeouts.watch

    def watch(the_group: Group, now_ms: int) -> ch.Decisions:
        yield from original(the_group, now_ms)
        yield from timeouts._fence_absent(the_group)

    _patch(stack, step, "watch", watch)


def welcome_fenced_writers(stack: ExitStack) -> None:
    """Whoever comes back under a writer that was fenced, and is no member any more, may go on with it."""

    def refused(group: GroupState, writer: str, name: str) -> bool:
        known = group.members.get(name)
        return known is not None and known.fenced and known.join_request.writer == writer

    _patch(stack, membership, "refused", refused)


def no_session_timeout(stack: ExitStack) -> None:
    """A silent member is waited for."""
    _patch(stack, timeouts, "_watch_members", lambda group, now_ms: iter(()))


def never_give_up_learners(stack: ExitStack) -> None:
    """A learner without progress keeps its place."""
    _patch(stack, timeouts, "_give_up_learners", lambda group, member, now_ms: iter(()))


def no_balance(stack: ExitStack) -> None:
    """Loads are not balanced."""
    _patch(stack, assign, "balance_hosts", lambda builder: iter(()))


def no_emptying(stack: ExitStack) -> None:
    """Leaving instances keep their tasks."""
    _patch(stack, AssignmentBuilder, "empty_leavers", lambda self: iter(()))


def bounce_learners(stack: ExitStack) -> None:
    """Current learners are not kept until finished."""
    _patch(stack, AssignmentBuilder, "keep_learners", lambda self: None)


def ignore_ready(stack: ExitStack) -> None:
    """A ready learner does not take over."""
    _patch(stack, assignor_view, "_ready", lambda group, member, task: False)


def forget_standbys(stack: ExitStack) -> None:
    """No standbys are placed."""
    _patch(stack, assign, "assign_standbys", lambda builder: iter(()))


def standby_beside_copy(stack: ExitStack) -> None:
    """A standby may sit beside another copy in one instance."""
    _patch(stack, standbys, "_taken", lambda builder, task: set())


def no_learner_budget(stack: ExitStack) -> None:
    """An instance restores as many learners as come."""
    _patch(stack, AssignmentBuilder, "funded", lambda self, task, host: True)


def cold_before_warm(stack: ExitStack) -> None:
    """A task whose owner is gone goes to anybody, not to its best copy."""
    original = AssignmentBuilder.assign_actives

    def place(self: AssignmentBuilder) -> Iterator[None]:
        self.view = replace(self.view, learners={}, standbys={}, disk={}, former={})
        return original(self)

    _patch(stack, AssignmentBuilder, "assign_actives", place)


def learner_before_warm(stack: ExitStack) -> None:
    """A task that nobody runs goes to its learner, however far that is, beside a copy that is close."""
    original = AssignmentBuilder._best_copy

    def best(self: AssignmentBuilder, task: TaskId, learner: str | None) -> str | None:
        return learner or original(self, task, learner)

    _patch(stack, AssignmentBuilder, "_best_copy", best)


def forget_resumed_operation(stack: ExitStack) -> None:
    """A new coordinator calls a scale-down done before its leavers could come back."""
    original = scale_down.mark

    def leave(the_group: Group, event: object) -> ch.Decisions:
        return original(the_group, msgspec.structs.replace(event, resumed=False))  # type: ignore[type-var]

    _patch(stack, scale_down, "mark", leave)


def leave_with_tasks(stack: ExitStack) -> None:
    """A leaver is told to shut down at once."""
    original = assignments.assignment_of

    def early(the_group: Group, who: object, owned: object) -> object:
        given = original(the_group, who, owned)  # type: ignore[arg-type]
        return msgspec.structs.replace(given, active={}, release={}, shutdown=True) if given.leaving else given

    _patch(stack, assignments, "assignment_of", early)


def announce_too_early(stack: ExitStack) -> None:
    """A worker announces ready before it has restored."""
    _patch(stack, MemberMachine, "_is_finished", lambda self, holding: True)


def start_before_caught_up(stack: ExitStack) -> None:
    """A granted task processes before its state is whole."""
    from tests.simulation.nodes import Worker

    original = Worker.opened

    def opened(self: Worker, task: object, role: Role, epoch: int, ending: object) -> None:
        original(self, task, role, epoch, ending)  # type: ignore[arg-type]
        if role is Role.ACTIVE:
            self.position[task] = self.world.log.positions.get(task, 0)  # type: ignore[index, call-overload]
            self.machine.held[task].state = Held.RUNNING  # type: ignore[index]

    _patch(stack, Worker, "opened", opened)


def believe_any_proof(stack: ExitStack) -> None:
    """A release proof of an older epoch counts."""

    def is_released(owner: object, who: object) -> bool:
        proof: Released | None = who.status.released.get(owner.task)  # type: ignore[attr-defined]
        return proof is not None

    for place in (assignments, state, reconcile, assignor_view):
        _patch(stack, place, "is_released", is_released)


def stale_target(stack: ExitStack) -> None:
    """A plan that was computed by the assignor process is used whatever has changed meanwhile."""
    _patch(stack, reconcile, "still_valid", lambda plan, asked, now: plan)


def run_given_up_epochs(stack: ExitStack) -> None:
    """A member runs an epoch again that it has given up."""
    original = MemberMachine._take

    def take(self: MemberMachine, task: TaskId, epoch: int) -> object:
        self.released.pop(task, None)
        return original(self, task, epoch)

    _patch(stack, MemberMachine, "_take", take)


def forget_to_ask(stack: ExitStack) -> None:
    """A proof is no longer asked for as soon as it is there, so that it is forgotten before the log has a new owner."""
    original = assignments.assignment_of

    def assignment_of(the_group: Group, who: object, owned: object) -> object:
        given = original(the_group, who, owned)  # type: ignore[arg-type]
        proven = who.status.released  # type: ignore[attr-defined]
        return msgspec.structs.replace(given, release={t: e for t, e in given.release.items() if t not in proven})

    _patch(stack, assignments, "assignment_of", assignment_of)


def ignore_versions(stack: ExitStack) -> None:
    """Tasks are placed on members whose version of the app does not have them."""
    _patch(stack, assignor_view, "_knows", lambda group, member: None)


def keep_gone_tasks(stack: ExitStack) -> None:
    """A task that no version has any more keeps its owner."""
    _patch(stack, step, "retire", lambda group: iter(()))


def trust_the_clock(stack: ExitStack) -> None:
    """A coordinator whose clock jumped takes the jump for its members' silence."""
    _patch(stack, step, "pause_before", lambda group, now_ms: 0)


def learn_while_it_moves(stack: ExitStack) -> None:
    """A learner begins while another one waits for the same task to be handed over to it."""
    _patch(stack, assignments, "waits_for_hand_over", lambda group, task: False)


def copies_beside_workers(stack: ExitStack) -> None:
    """A worker is told to keep a copy of what another worker of its instance runs."""
    _patch(stack, assignments, "_beside", lambda group, member: set())


def follow_noise(stack: ExitStack) -> None:
    """Measured weights have no band."""
    _patch(stack, load_meter, "BAND", 0.0)
    _patch(stack, machine, "weigh", lambda before, measured, unit: max(1, round(measured / unit)))


# What is seldom met among all kinds of faults is looked for among those that lead to it.
DIRECTED: dict[str, tuple[str, ...]] = {
    "never_give_up_learners": ("stuck", "stuck", "join", "leave", "undo"),
}


def forget_cut_off_leavers(stack: ExitStack) -> None:
    """A leaver whose connection ended is given up at once."""
    original = assignor_view.build_view

    def build(the_group: Group) -> object:
        gone = [m for m in the_group.members if m.session is None and m.is_leaving and not m.shut_down]
        for who in gone:
            who.shut_down = True
        try:
            return original(the_group)
        finally:
            for who in gone:
                who.shut_down = False

    _patch(stack, reconcile, "build_view", build)


def keep_moves_to_fenced(stack: ExitStack) -> None:
    """A task goes to whom it was promised, whatever became of it."""
    _patch(stack, fencing, "call_off", lambda group, member: iter(()))


def ignore_who_tells_last(stack: ExitStack) -> None:
    """Nothing follows when a member sends its join request again, also when it was the last that new tasks waited for."""
    _patch(stack, partition_growth, "only_adds_pending", lambda group, before, now: True)


def take_everybody_for_gone(stack: ExitStack) -> None:
    """Where a coordinator died, all who are not back at once are taken for dead with it."""
    _patch(stack, takeovers, "_is_worker_of", lambda name, instance: True)


def hold_what_is_free(stack: ExitStack) -> None:
    """A cooperative rebalance hands nothing out before everything has been given up."""
    _patch(stack, reconcile, "_unowned", lambda group, free: [])


def keep_standbys_together(stack: ExitStack) -> None:
    """Standbys stay where they are, whoever joins."""
    _patch(stack, standbys, "_spread", lambda builder, tasks, wanted, copies: iter(()))


MUTATIONS: dict[str, Mutation] = {
    made.__name__: made
    for made in (
        no_owner_check,
        no_lease_check,
        grant_without_release,
        grant_before_record,
        no_fence,
        obey_any_term,
        any_ending,
        forget_release_proof,
        ignore_status_changes,
        no_rejoin_grace,
        welcome_fenced_writers,
        forget_cut_off_leavers,
        keep_moves_to_fenced,
        take_everybody_for_gone,
        hold_what_is_free,
        keep_standbys_together,
        no_session_timeout,
        never_give_up_learners,
        no_balance,
        no_emptying,
        bounce_learners,
        ignore_ready,
        forget_standbys,
        standby_beside_copy,
        no_learner_budget,
        cold_before_warm,
        learner_before_warm,
        forget_resumed_operation,
        leave_with_tasks,
        stale_target,
        run_given_up_epochs,
        forget_to_ask,
        ignore_versions,
        keep_gone_tasks,
        ignore_who_tells_last,
        trust_the_clock,
        copies_beside_workers,
        learn_while_it_moves,
        follow_noise,
        start_before_caught_up,
        believe_any_proof,
    )
}
