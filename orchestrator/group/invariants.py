"""What must hold of a group at every moment. One function, used by tests, simulation and, behind a setting, production.

One rule: it reads only; a breach raises InvariantBroken with every fact that is wrong.
"""

from __future__ import annotations

from orchestrator.errors import InvariantBroken
from orchestrator.group.assignor_view import restoring
from orchestrator.group.state import GroupState
from orchestrator.group.topology_versions import can_run
from orchestrator.model import TaskId


def breaches(group: GroupState) -> list[str]:
    """Every rule that does not hold, as sentences; empty when all is well."""
    found: list[str] = []
    holders: dict[TaskId, list[str]] = {}
    for member in group.members:
        if member.sent is None or member.fenced:
            continue
        for task, epoch in member.sent.active.items():
            owner = group.owners.get(task)
            if owner is None or owner.epoch < epoch:
                found.append(f"{member.name} was granted {task} at epoch {epoch} without an owner record")
            elif owner.epoch == epoch and owner.writer and owner.writer != member.join_request.writer:
                found.append(f"{member.name} was granted {task} at epoch {epoch}, which is {owner.member}'s")
            elif owner.epoch == epoch and owner.writer:
                holders.setdefault(task, []).append(member.name)
    found += [f"{task} has two owners: {', '.join(names)}" for task, names in holders.items() if len(names) > 1]
    wanted = max(group.settings.standbys, group.standbys_agreed)
    for task, names in sorted(group.standbys.items()):
        if len(names) > wanted + (task in group.spreading):
            found.append(f"{task} has {len(names)} standbys, {wanted} are wanted")
    found += _copies_beside_each_other(group)
    found += _learner_budget(group)
    found += _unknown_tasks(group)
    found += _agreed(group)
    found += _assigned_twice(group)
    found += _learned_twice(group)
    return found


def _learned_twice(group: GroupState) -> list[str]:
    """At most one learner per task: also while the owner of a task does not answer, and a move to a learner waits for it."""
    learners: dict[TaskId, list[str]] = {}
    for member in group.members:
        if member.sent is not None and member.session is not None and not member.fenced:
            for task in member.sent.learners:
                learners.setdefault(task, []).append(member.name)
    return [f"{task} is learned by {' and '.join(names)}" for task, names in learners.items() if len(names) > 1]


def _assigned_twice(group: GroupState) -> list[str]:
    """No two workers of an instance are assigned the same task: they share its folder."""
    holders: dict[tuple[str, TaskId], list[str]] = {}
    for member in group.members:
        if member.sent is None or member.session is None or member.fenced:
            continue
        for task in (*member.sent.active, *member.sent.learners, *member.sent.standbys):
            names = holders.setdefault((member.join_request.instance, task), [])
            if member.name not in names:
                names.append(member.name)
    return [
        f"{' and '.join(names)} of one instance are told to hold {task}"
        for (_, task), names in holders.items()
        if len(names) > 1
    ]


def _agreed(group: GroupState) -> list[str]:
    """What is agreed names members that are there, epochs that follow, and weights that weigh something."""
    found = [
        f"{name} learns {task} and is no member" for task, name in group.learners.items() if not group.members.get(name)
    ]
    for task, names in group.standbys.items():
        found += [f"{name} keeps a standby of {task} and is no member" for name in names if not group.members.get(name)]
    for task, record in group.recording.items():
        before = group.owners.get(task)
        if record.epoch != (before.epoch if before is not None else 0) + 1:
            found.append(f"epoch {record.epoch} of {task} is being recorded, and does not follow the one before it")
    for member in group.members:
        if member.sent is None or member.session is None or member.fenced:
            continue  # nothing is sent to it any more
        for task, epoch in member.sent.active.items():
            proof = member.status.released.get(task)
            if proof is not None and proof.epoch == epoch:
                found.append(f"{member.name} is told to run {task} at epoch {epoch}, which it has given up")
            if task not in group.tasks:
                found.append(f"{member.name} is told to run {task}, which no version of the app has any more")
    found += [f"{task} weighs {weight}" for task, weight in group.weights.items() if weight < 1]
    return sorted(found)


def _unknown_tasks(group: GroupState) -> list[str]:
    """No member is given a task that its version of the app does not have."""
    found: list[str] = []
    for member in group.members:
        if member.sent is None:
            continue
        given = [*member.sent.active, *member.sent.learners, *member.sent.standbys]
        strange = [t for t in given if not can_run(member.join_request, t, group.declared)]
        found += [f"{member.name} was given {task}, which its version of the app does not have" for task in strange]
    return found


def _copies_beside_each_other(group: GroupState) -> list[str]:
    """No instance holds a task twice."""
    found: list[str] = []
    instances = {m.name: m.join_request.instance for m in group.members}
    for task in sorted(group.tasks):
        names = [*group.standbys.get(task, ())]
        if task in group.learners:
            names.append(group.learners[task])
        owner = group.effective_owner(task)
        move = group.moves.get(task)
        # Where the target of a move is gone, the copies that were planned beside its source are only agreed, and not sent.
        if owner is not None and (move is None or move.target == owner):
            names.append(owner)
        hosts = [instances[name] for name in dict.fromkeys(names) if name in instances]
        if len(hosts) != len(set(hosts)):
            found.append(f"two copies of {task} in one instance: {', '.join(names)}")
    return found


def _learner_budget(group: GroupState) -> list[str]:
    """No instance restores more than it may; those that it restored when settings changed are finished first."""
    found: list[str] = []
    for host, count in sorted(restoring(group).items()):
        limit = max(group.settings.max_learners_per_instance, group.finishing.get(host, 0))
        if count > limit:
            found.append(f"{host} restores {count} learners, {limit} are allowed")
    return found


def check(group: GroupState) -> None:
    """Raise InvariantBroken if anything is wrong."""
    found = breaches(group)
    if found:
        raise InvariantBroken("; ".join(found))
