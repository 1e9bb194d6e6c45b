"""A life that broke, made small: fewer faults, instances and tasks, as long as it still breaks; then written down.

One rule: a plan that is left over breaks in the same way: with the same class of error. What scenario words can say is written as
commands that run, the rest as comments with their times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from orchestrator.model import Settings
from tests.simulation.plan import Fault, Plan
from tests.simulation.world import World

T = TypeVar("T")
Breaks = Callable[[Plan], str | None]


def breaks(plan: Plan) -> str | None:
    """What is wrong with the life of a plan; None where nothing is."""
    try:
        World(plan).live()
    except Exception as error:  # noqa: BLE001 - whatever breaks is what is looked for
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(plan: Plan, broken: Breaks = breaks, lives: int = 400) -> Plan:
    """The smallest plan found in so many lives that still breaks: faults first, then instances, tasks, and again."""
    budget = [lives]
    kind = _kind(broken(plan))
    if kind is None:
        raise ValueError(f"seed {plan.seed} does not break, so there is nothing to shrink")

    def still(candidate: Plan) -> bool:
        budget[0] -= 1
        return budget[0] >= 0 and _kind(broken(candidate)) == kind

    while True:
        before = plan
        faults = fewer(plan.faults, lambda kept, p=plan: still(replace(p, faults=kept)))  # type: ignore[misc]
        plan = replace(plan, faults=faults)
        instances = fewer(plan.instances, lambda kept, p=plan: bool(kept) and still(replace(p, instances=kept)))  # type: ignore[misc]
        plan = replace(plan, instances=instances)
        tasks = fewer(plan.tasks, lambda kept, p=plan: bool(kept) and still(p.with_tasks(kept)))  # type: ignore[misc]
        plan = plan.with_tasks(tasks)
        single = tuple(replace(one, workers=1) for one in plan.instances)
        if single != plan.instances and still(replace(plan, instances=single)):
            plan = replace(plan, instances=single)
        if plan == before or budget[0] <= 0:
            return plan


def _kind(error: str | None) -> str | None:
    return None if error is None else error.partition(":")[0]


def fewer(items: Sequence[T], still: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Delta debugging: leave out halves, quarters, ... single ones, while `still` holds for what is left."""
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    while kept:
        start, less = 0, False
        while start < len(kept):
            candidate = kept[:start] + kept[start + size :]
            if still(candidate):
                kept, less = candidate, True
            else:
                start += size
        if size == 1 and not less:
            break
        size = max(1, size // 2)
    return kept


# ---- written down


def written(plan: Plan, error: str, commit: str) -> str:
    """The plan as a scenario file."""
    lines = [
        f"# seed {plan.seed} at commit {commit}: {error}".replace("\n", " "),
        "# The shrunk life of a simulation. Delays, clocks and broken connections are no words of scenarios: they stand as",
        "# comments, and the file shows the order of events; `python -m tests.simulation --from SEED --seeds 1 --trace`",
        "# replays the whole life.",
        f"# delays up to {plan.delay_max} ms, restores of {plan.restore_rate} records a turn",
    ]
    changed = [f"{f.name.removesuffix('_ms')}={_value(plan.settings, f.name)}" for f in _changed(plan.settings)]
    lines += [f"config {' '.join(changed)}"] if changed else []
    tasks = [f"{t.id}={t.weight}" if t.weight != 1 else str(t.id) for t in plan.tasks if t.id not in plan.coming]
    lines += [f"group {' '.join(tasks)}"]
    stateless = [str(t.id) for t in plan.tasks if not t.stateful]
    lines += [f"# without state: {' '.join(stateless)}"] if stateless else []
    versions = {one.name: one.version for one in plan.instances}
    for one in plan.instances:
        lines += _joins(plan, one.name, one.workers, one.zone, one.version)
        lines += [f"# {one.name} knows eager and cooperative only"] if one.old_protocols else []
    now = 0
    waiting = sorted((entry for fault in plan.faults for entry in _steps(plan, fault)), key=lambda entry: entry[0])
    gone: set[str] = set()
    for at_ms, command in waiting:
        if at_ms > now:
            lines.append(f"tick {at_ms - now}ms")
            now = at_ms
        lines += _said(plan, command, versions, gone)
    return "\n".join([*lines, f"tick {max(1, 60_000 - now)}ms", "ready *", "tick 60s", ""])


def _changed(settings: Settings) -> list[object]:
    return [f for f in fields(Settings) if getattr(settings, f.name) != getattr(Settings(), f.name)]


def _value(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    return f"{value}ms" if name.endswith("_ms") else str(getattr(value, "value", value))


def _members(plan: Plan, instance: str) -> list[str]:
    found = next((one for one in [*plan.instances, *plan.later] if one.name == instance), None)
    return [f"{instance}.{number}" for number in range(found.workers)] if found is not None else []


def _knows(plan: Plan, version: str) -> str:
    known = [task for task in plan.tasks_of(version) if task.id not in plan.coming]
    return (
        ""
        if len(known) == len(plan.tasks) - len(plan.coming) or not known
        else f" knows={','.join(str(t.id) for t in known)}"
    )


def _joins(plan: Plan, name: str, workers: int, zone: str, version: str) -> list[str]:
    where = f" zone={zone}" if zone else ""
    return [f"join {name}.{n} instance={name}{where}{_knows(plan, version)}" for n in range(workers)]


def _steps(plan: Plan, fault: Fault) -> Iterator[tuple[int, tuple[str, Fault]]]:
    """A fault as what begins with it and what ends with it."""
    yield fault.at_ms, ("begin", fault)
    if fault.kind in ("crash", "stall", "upgrade"):
        yield fault.at_ms + fault.for_ms, ("end", fault)


def _said(plan: Plan, step: tuple[str, Fault], versions: dict[str, str], gone: set[str]) -> list[str]:
    """The step in words; a comment where there are none, or where it hits nobody."""
    when, fault = step
    if fault.instance not in versions and fault.kind in ("crash", "stall", "upgrade"):
        return [f"# {fault.kind} of {fault.instance}, which is not there"]
    members = _members(plan, fault.instance)
    match when, fault.kind:
        case "begin", "crash" | "upgrade":
            hit = [m for m in members if m not in gone]
            gone.update(hit)
            if fault.kind == "upgrade":
                versions[fault.instance] = "new" if versions[fault.instance] == "old" else "old"
            disk = [f"# its disk is {fault.way}"] if fault.way in ("wiped", "old") else []
            return [*disk, *(f"crash {m}" for m in hit)]
        case "end", "crash" | "upgrade":
            back = [m for m in members if m in gone]
            gone.difference_update(back)
            return [f"rejoin {m}{_knows(plan, versions[fault.instance])}" for m in back]
        case "begin", "stall":
            return [f"stall {m}" for m in members if m not in gone]
        case "end", "stall":
            return [f"resume {m}" for m in members if m not in gone]
        case _, "coordinator" | "blind":
            return [f"# {fault.kind} for {fault.for_ms} ms", "restart coordinator"]
        case _, "config":
            return [f"config {fault.way}", "restart coordinator"]
        case _, "grow":
            before = sum(int(f.way) for f in plan.faults if f.kind == "grow" and f.at_ms < fault.at_ms)
            new = sorted(plan.coming)[before : before + int(fault.way)]
            return [f"grow {' '.join(map(str, new))}"] if new else []
        case _, "undo":
            return ["scale-down --undo"]
        case _, "leave":
            return [f"scale-down --by {fault.way}"]
        case _, "join":
            new = next((one for one in plan.later if one.name not in versions), None)
            if new is None:
                return []
            versions[new.name] = new.version
            return _joins(plan, new.name, new.workers, new.zone, new.version)
    return [f"# at {fault.at_ms} ms: {fault.kind} of {fault.member} for {fault.for_ms} ms {fault.way}".rstrip()]


def save(folder: Path, plan: Plan, error: str, commit: str) -> Path:
    """Write the file; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed_{plan.seed}.txt"
    path.write_text(written(plan, error, commit))
    return path
