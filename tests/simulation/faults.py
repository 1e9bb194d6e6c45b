"""What each kind of fault does to a world. One rule: the table FAULTS is all there is; a fault draws nothing by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.group import events as ev
from orchestrator.names import natural
from tests.simulation.plan import Fault

if TYPE_CHECKING:
    from tests.simulation.nodes import InstanceProcess, Worker
    from tests.simulation.world import World


def happen(world: World, fault: Fault) -> None:
    """The fault, if what it hits is there."""
    if not world.faulty:
        return
    world.note(f"fault: {fault.kind} {fault.member} {fault.for_ms} ms {fault.way}")
    FAULTS[fault.kind](world, fault)


def _process(world: World, fault: Fault) -> InstanceProcess | None:
    return world.processes.get(fault.instance)


def _worker(world: World, fault: Fault) -> Worker | None:
    mine = [w for w in world.workers if w.instance == fault.instance]
    return mine[fault.worker % len(mine)] if mine else None


def _crash(world: World, fault: Fault) -> None:
    """The whole instance; its disk is kept, lost, or from an older time (a volume put back from a backup)."""
    process = _process(world, fault)
    if process is None or not process.alive:
        return
    world.kill(process)
    for worker in world.workers:
        if worker.process is process and fault.way == "wiped":
            worker.disk.clear()
        if worker.process is process and fault.way == "old":
            worker.disk.update({task: at // 2 for task, at in worker.disk.items()})
    world.after(fault.for_ms, lambda: world.restart(process))


def _coordinator(world: World, fault: Fault) -> None:
    holder = world.holder()
    if holder is not None:
        _crash(world, replace(fault, instance=holder.process.name, way="kept"))


def _upgrade(world: World, fault: Fault) -> None:
    """A bounce into the other version of the app: tasks come and go with it."""
    process = _process(world, fault)
    if process is None:
        return
    world.kill(process)
    process.version = "new" if process.version == "old" else "old"
    world.after(fault.for_ms, lambda: world.restart(process))


def _stall(world: World, fault: Fault) -> None:
    process = _process(world, fault)
    if process is None or not process.alive or process.stalled:
        return
    process.stalled = True
    world.changes += 1
    world.after(fault.for_ms, lambda: world.resume(process))


def _clock(world: World, fault: Fault) -> None:
    """Its monotonic clock jumps ahead, or stands still for a while (a virtual machine that was moved)."""
    process = _process(world, fault)
    if process is not None and fault.way == "jumps":
        process.ahead_ms += fault.for_ms
    elif process is not None and process.stands_at is None:
        process.stands_at = process.clock()
        world.after(fault.for_ms, process.goes_on)


def _break(world: World, fault: Fault) -> None:
    worker = _worker(world, fault)
    if worker is not None:
        world.network.end(worker)


def _linger(world: World, fault: Fault) -> None:
    """The connection breaks, and what was on its way arrives all the same: after what the next connection brings."""
    worker = _worker(world, fault)
    link = world.network.faulty(worker.session) if worker is not None else None
    if worker is not None and link is not None:
        link.lingers = True
        worker.report()
        world.network.end(worker)


def _double(world: World, fault: Fault) -> None:
    """It connects again while the old connection is still there: everything it says arrives twice, in any order."""
    worker = _worker(world, fault)
    if worker is None or worker.session is None or not worker.process.alive:
        return
    before = worker.session
    worker.report()
    world.network.join(worker)
    worker.report()
    world.after(fault.for_ms, lambda: world.network.break_link(before))


def _deaf(world: World, fault: Fault) -> None:
    """One direction of a connection goes deaf; a keepalive ends it later."""
    worker = _worker(world, fault)
    link = world.network.faulty(worker.session) if worker is not None else None
    if link is None:
        return
    link.deaf_up, link.deaf_down = fault.way == "up", fault.way == "down"
    world.after(fault.for_ms, lambda: world.network.break_link(link.session))


def _cut(world: World, fault: Fault) -> None:
    worker = _worker(world, fault)
    if worker is None:
        return
    world.cut.add(worker.name)
    world.network.end(worker)
    world.after(fault.for_ms, lambda: world.cut.discard(worker.name))


def _log(world: World, fault: Fault) -> None:
    world.log_down_until = max(world.log_down_until, world.now_ms + fault.for_ms)


def _blind(world: World, fault: Fault) -> None:
    """The coordinator cannot reach the log and does not know that it is deposed meanwhile."""
    holder = world.holder()
    if holder is not None:
        world.candidate(holder).blind_until = world.now_ms + fault.for_ms


def _stuck(world: World, fault: Fault) -> None:
    """Copies that do not come forward, for a while."""
    worker = _worker(world, fault)
    if worker is not None:
        worker.stuck |= {task.id for task in world.tasks}
        world.after(fault.for_ms, worker.stuck.clear)


def _hung(world: World, fault: Fault) -> None:
    """Heartbeats go on, releases do not end."""
    worker = _worker(world, fault)
    if worker is not None:
        worker.hung = True
        world.after(fault.for_ms, lambda: setattr(worker, "hung", False))


def _join(world: World, fault: Fault) -> None:
    new = [one for one in world.plan.later if one.name not in world.processes]
    if new:
        world.add_instance(new[0])


def _leave(world: World, fault: Fault) -> None:
    """Of those whom the coordinator knows, as `scale-down` asks for."""
    holder = world.holder()
    if holder is None:
        return
    present = sorted(
        {m.join_request.instance for m in holder.group.members if not m.is_leaving and not m.fenced}, key=natural
    )
    count = min(int(fault.way), len(present) - 1)
    if count < 1:
        return
    first = present.index(fault.instance) if fault.instance in present else 0
    leaving = tuple(sorted((present[first:] + present[:first])[:count], key=natural))
    world.changes += 1
    name = f"op{world.changes}"
    operation = world.log.operations[name] = ev.Leaving(name, leaving)
    holder.receive(operation)


def _undo(world: World, fault: Fault) -> None:
    holder = world.holder()
    if holder is not None and world.log.operations:
        world.changes += 1
        holder.receive(ev.UndoLeaving())


def _config(world: World, fault: Fault) -> None:
    """Other settings, which the next coordinator goes by: the present one is ended for it, also where it stands still."""
    changed = {key: int(value) for key, value in (word.split("=") for word in fault.way.split())}
    world.settings = replace(world.settings, **changed)  # type: ignore[arg-type]
    world.changes += 1
    for coordinator in world.coordinators():
        _crash(world, replace(fault, instance=coordinator.process.name, way="kept", for_ms=200))


def _grow(world: World, fault: Fault) -> None:
    """A topic gets partitions: workers see it with their next heartbeat and tell, each in its time."""
    world.grow(int(fault.way))


FAULTS: dict[str, Callable[[World, Fault], None]] = {
    "crash": _crash,
    "coordinator": _coordinator,
    "upgrade": _upgrade,
    "stall": _stall,
    "clock": _clock,
    "break": _break,
    "linger": _linger,
    "double": _double,
    "deaf": _deaf,
    "cut": _cut,
    "log": _log,
    "blind": _blind,
    "stuck": _stuck,
    "hung": _hung,
    "join": _join,
    "leave": _leave,
    "undo": _undo,
    "config": _config,
    "grow": _grow,
}
