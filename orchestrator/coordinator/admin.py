"""What the coordinator answers to requests: status, scale-down and its plan, explain, where a task is.

One rule: an answer is plain data in the shapes that the command line prints; a request becomes one event of the group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator import live_settings
from orchestrator.coordinator.instance_facts import instances, versions
from orchestrator.coordinator.live_settings import SetSettingsRequest, SettingsRequest
from orchestrator.coordinator.operation_facts import KEPT, operation_facts
from orchestrator.coordinator.requests import (
    ExplainRequest,
    Handler,
    HandOversRequest,
    InstancesRequest,
    LocateRequest,
    PlanRequest,
    Request,
    ScaleDownRequest,
    StableRequest,
    StatusRequest,
    UndoRequest,
)
from orchestrator.coordinator.shell import Coordinator
from orchestrator.errors import OrchestratorError, RefusedBySafety, WrongUse
from orchestrator.explain.task import explain_task
from orchestrator.group import events as ev
from orchestrator.group.convergence import holder_of, is_stable
from orchestrator.group.scale_plan import choose, parse_amount, running
from orchestrator.group.state import GroupState, Operation
from orchestrator.model import Role, TaskId
from orchestrator.names import natural
from orchestrator.settings import named_in

AMOUNTS = ("to", "by", "instances")
PLANS_KEPT = 100


async def status(coordinator: Coordinator, request: StatusRequest) -> dict[str, Any]:
    """The whole group, as `status --json` prints it (the caller adds application and log)."""
    await coordinator.gathered.wait()
    group = coordinator.group
    if request.counted:
        running(group)
    rates = coordinator.rates
    since = request.hand_overs_since if request.of_term in (0, group.term) else 0
    return {
        "generation": group.generation,
        "protocol": group.protocol.value,
        "term": group.term,
        "stable": is_stable(group),
        "scale": scale(group),
        "scales": [one_scale(group, operation) for operation in group.operations.values()],
        "scale_since": coordinator.scale_since,
        "instances": instances(group),
        "leavers": group.leavers,
        "tasks": [{**task_facts(group, task), "records_per_s": rates.of(task)} for task in sorted(group.tasks)],
        "versions": versions(group),
        "hand_overs": hand_over_facts(coordinator, since),
        "last_outcome": list(next(reversed(coordinator.outcomes.items()))) if coordinator.outcomes else None,
        "outcomes": coordinator.outcomes,
    }


def scale(group: GroupState) -> dict[str, Any] | None:
    """All scale-downs that run, as one; the first of them gives it its name."""
    found = [one_scale(group, operation) for operation in group.operations.values()]
    if not found:
        return None
    leaving = {instance for one in found for instance in one["leaving"]}
    return {
        "id": found[0]["id"],
        "leaving": sorted(leaving, key=natural),
        "deadline_s": min((left for one in found if (left := one["deadline_s"]) is not None), default=None),
        "moves_left": _tasks_on(group, leaving),
    }


def one_scale(group: GroupState, operation: Operation) -> dict[str, Any]:
    deadline = operation.deadline_ms
    return {
        "id": operation.id,
        "leaving": sorted(operation.instances, key=natural),
        "deadline_s": None if deadline is None else max(0, (deadline - monotonic_ms()) / 1000),
        "moves_left": _tasks_on(group, operation.instances),
    }


def _tasks_on(group: GroupState, instances: Collection[str]) -> int:
    return sum(1 for o in group.owners.values() if o.writer and _instance(group, o.member) in instances)


def _instance(group: GroupState, member: str) -> str | None:
    known = group.members.get(member)
    return known.join_request.instance if known is not None else None


def task_facts(group: GroupState, task: TaskId) -> dict[str, Any]:
    owner = group.owners.get(task)
    holder = holder_of(group, task)
    known = holder.status.facts_of(task) if holder is not None else None
    learners, standbys = [], []
    for member in sorted(group.members.reporting(task), key=lambda m: natural(m.name)):
        copy = member.status.copies.get(task)
        if copy is None or member.fenced:  # no copy that may take over, and its instance has no row
            continue
        if copy.role is Role.LEARNER:
            eta_s = None if copy.eta_ms is None else copy.eta_ms / 1000
            learners.append({"instance": member.join_request.instance, "restore_lag": copy.lag, "eta_s": eta_s})
        else:
            standbys.append({"instance": member.join_request.instance, "restore_lag": copy.lag})
    return {
        "id": str(task),
        "active": holder.join_request.instance if holder is not None else None,
        "worker": holder.name if holder is not None else None,
        "epoch": owner.epoch if owner is not None else 0,
        "topics": [],
        "state_bytes": None if known is None else known.state_bytes,
        "input_lag": None if known is None else known.input_lag,
        "records": None if known is None else known.records,
        "weight": group.weight(task),
        "pause_max_ms": None if known is None else known.pause_max_ms,
        "learners": learners,
        "standbys": standbys,
    }


def hand_over_facts(coordinator: Coordinator, since: int = 0) -> dict[str, Any]:
    """Pauses of the hand-overs after the first `since` that this coordinator saw."""
    skipped = max(0, since - (coordinator.hand_over_count - len(coordinator.hand_overs)))
    kept = list(coordinator.hand_overs.values())[skipped:]
    gaps = sorted(h.pause_ms for h in kept if h.pause_ms is not None)

    def at(share: float) -> int | None:
        return gaps[min(len(gaps) - 1, int(len(gaps) * share))] if gaps else None

    return {
        "count": coordinator.hand_over_count - since,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": gaps[-1] if gaps else None,
    }


async def hand_overs(coordinator: Coordinator, request: HandOversRequest) -> list[dict[str, Any]]:
    """The last hand-overs, oldest first."""
    return [
        {"task": str(h.task), "from": h.source, "to": h.target, "gap_ms": h.gap_ms, "pause_ms": h.pause_ms}
        for h in coordinator.hand_overs.values()
    ]


async def plan(coordinator: Coordinator, request: PlanRequest) -> dict[str, Any]:
    """Who would leave and what would move; changes nothing."""
    await coordinator.gathered.wait()
    made = make_plan(coordinator.group, request, coordinator.host)
    coordinator.plans.pop(made["plan"], None)
    # Who leaves is the plan's: sizes, by which they were chosen, change with every record.
    chosen = {**dict.fromkeys(AMOUNTS), "instances": ",".join(made["leaving"])} if made["leaving"] else None
    coordinator.plans[made["plan"]] = chosen or {name: getattr(request, name) for name in AMOUNTS}
    while len(coordinator.plans) > PLANS_KEPT:
        del coordinator.plans[next(iter(coordinator.plans))]
    return made


def make_plan(group: GroupState, request: PlanRequest | ScaleDownRequest, host: str | None) -> dict[str, Any]:
    """The plan of a scale-down: its id stands for the group as it is now, so an older plan does not fit later.
    Raises WrongUse."""
    given = [name for name in AMOUNTS if getattr(request, name)]
    if len(given) != 1:
        raise WrongUse("give one of --to, --by, --instances")
    chosen = choose(
        group,
        to=parse_amount(str(request.to), "--to") if "to" in given else None,
        by=parse_amount(str(request.by), "--by") if "by" in given else None,
        instances=str(request.instances).split(",") if "instances" in given else (),
        current=request.current,
        last=host,
    )
    leaving = chosen.leaving
    moves = _moves(group, set(leaving))
    # Neither bytes nor lags: they change with every record, and the plan stays the same plan.
    known = f"{sorted(group.operations)}|{chosen.before}|{chosen.staying}"
    facts = f"{group.generation}|{known}|{leaving}|{[(move['task'], move['from']) for move in moves]}"
    return {
        "plan": hashlib.blake2b(facts.encode(), digest_size=6).hexdigest(),
        "from": chosen.before,
        "to": len(chosen.staying),
        "leaving": leaving,
        "staying": chosen.staying,
        "moves": moves,
        "outcome": "planned" if leaving else "nothing to do",
    }


def _moves(group: GroupState, leaving: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for task in sorted(group.tasks):
        holder = holder_of(group, task)
        if holder is None or holder.join_request.instance not in leaving:
            continue
        copies = [
            (copy.lag, m.join_request.instance)
            for m in group.members.reporting(task)
            if (copy := m.status.copies.get(task)) is not None and m.join_request.instance not in leaving
        ]
        warm = min(copies, default=None)
        ready = warm is not None and warm[0] <= group.settings.acceptable_recovery_lag
        rows.append(
            {
                "task": str(task),
                "from": holder.join_request.instance,
                "to": warm[1] if warm else None,
                "bytes": None if (known := holder.status.facts_of(task)) is None else known.state_bytes,
                "ready_copy": ready,
            }
        )
    return rows


async def scale_down(coordinator: Coordinator, request: ScaleDownRequest) -> dict[str, Any]:
    """Mark the leavers, beside those of scale-downs that run. The operation is written down before any member is sent its
    part; a second request that comes meanwhile waits for that, and counts the instances that stay."""
    await coordinator.gathered.wait()
    async with coordinator.operations_lock:
        known = coordinator.requested.get(request.request)
        if known is not None:  # its answer did not arrive
            return _begun(coordinator.group, known)
        return await _scale_down(coordinator, request)


def _begun(group: GroupState, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a scale-down that this coordinator, or the one before, has written down."""
    answer = {name: facts[name] for name in KEPT}
    return {**answer, "plan": facts["id"], "moves": _moves(group, set(facts["leaving"])), "outcome": "running"}


async def _scale_down(coordinator: Coordinator, request: ScaleDownRequest) -> dict[str, Any]:
    wanted = request.plan
    if wanted and not any(getattr(request, name) for name in AMOUNTS):
        if wanted not in coordinator.plans:
            raise RefusedBySafety(f"there is no plan {wanted} here, or its coordinator is gone; make one with --plan")
        request = msgspec.structs.replace(request, **coordinator.plans[wanted])
    made = _fitting_plan(coordinator, request)
    if not made["leaving"]:
        return made
    timeout_ms, force, name = request.timeout_ms, request.force, str(made["plan"])
    deadline_wall = None if timeout_ms is None else coordinator.wall_ms() + timeout_ms
    answer = {**made, "outcome": "running", "since": coordinator.hand_over_count, "term": coordinator.group.term}
    facts = operation_facts(
        coordinator.group, answer, request.request, deadline_wall, timeout_ms=timeout_ms, force=force
    )
    await coordinator.keep_operation(facts)
    deadline = None if timeout_ms is None else monotonic_ms() + timeout_ms
    coordinator.scale_since = answer["since"]
    coordinator.event(ev.Leaving(name, tuple(made["leaving"]), deadline, force))
    return answer


def _fitting_plan(coordinator: Coordinator, request: ScaleDownRequest) -> dict[str, Any]:
    """Raises RefusedBySafety where the request is of a plan, and the group is another than the plan was made for."""
    wanted = request.plan
    try:
        made = make_plan(coordinator.group, request, coordinator.host)
    except WrongUse:
        if not wanted:
            raise
        made = {}
    if wanted and wanted != made.get("plan"):
        raise RefusedBySafety(f"plan {wanted} does not fit: the group has changed since; make a new one with --plan")
    return made


async def undo(coordinator: Coordinator, request: UndoRequest) -> dict[str, Any]:
    """Take the marks of all scale-downs that run back."""
    async with coordinator.operations_lock:  # one that is being written down is taken back, too
        if coordinator.group.operations:  # a coordinator that comes after this answer must not go on with them
            await coordinator.forget_operations()
        running_now = list(coordinator.group.operations)
        if not running_now:
            return {"outcome": "nothing to do"}
        coordinator.event(ev.UndoLeaving())
        return {"outcome": "rolled back", "plan": running_now[0]}


async def explain(coordinator: Coordinator, request: ExplainRequest) -> dict[str, Any]:
    """Why a task is where it is."""
    group = coordinator.group
    task = _task(group, request.task)
    why, waiting = explain_task(group, task)
    holder = holder_of(group, task)
    return {
        "task": str(task),
        "active": holder.join_request.instance if holder is not None else None,
        "why": why,
        "waiting_for": waiting,
        "settings": named_in([*why, *waiting], group.settings),
    }


def _task(group: GroupState, text: str) -> TaskId:
    try:
        task = TaskId.parse(text)
    except ValueError:
        task = TaskId(-1, -1)
    if task not in group.tasks:
        raise WrongUse(f"no task '{text}'; there are {', '.join(str(t) for t in sorted(group.tasks)[:20])}")
    return task


async def locate(coordinator: Coordinator, request: LocateRequest) -> dict[str, Any]:
    """Which instance runs a task, and where it listens: it is asked itself for what is in its stores.
    Raises OrchestratorError."""
    group = coordinator.group
    task = _task(group, request.task)
    holder = holder_of(group, task)
    if holder is None or holder.session is None:
        raise OrchestratorError(f"{task} has no active instance at the moment; try again, or ask `explain {task}`")
    return {
        "task": str(task),
        "instance": holder.join_request.instance,
        "member": holder.name,
        "address": holder.join_request.address,
    }


async def addresses(coordinator: Coordinator, request: InstancesRequest) -> list[dict[str, str]]:
    """Each instance that has a session: its name, where it listens, and its host."""
    await coordinator.gathered.wait()
    found = {
        member.join_request.instance: member.join_request
        for member in coordinator.group.members
        if member.session is not None and not member.fenced
    }
    return [
        {"instance": name, "address": found[name].address, "host": found[name].host}
        for name in sorted(found, key=natural)
    ]


async def wait_generation(coordinator: Coordinator, request: StableRequest) -> dict[str, Any]:
    """A light request: has anything changed, is it stable."""
    return {"generation": coordinator.group.generation, "stable": is_stable(coordinator.group)}


HANDLERS: dict[type[Request], Handler] = {
    StatusRequest: status,
    PlanRequest: plan,
    ScaleDownRequest: scale_down,
    UndoRequest: undo,
    ExplainRequest: explain,
    LocateRequest: locate,
    InstancesRequest: addresses,
    HandOversRequest: hand_overs,
    StableRequest: wait_generation,
    SettingsRequest: live_settings.show,
    SetSettingsRequest: live_settings.change,
}
