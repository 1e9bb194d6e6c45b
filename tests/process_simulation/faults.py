"""What each kind of fault does to a life at its moment.

One rule: a fault acts from outside, as an operating system, a network or an operator would; one that finds nothing to
act on does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.coordinator import messages
from orchestrator.coordinator.requests import Request, ScaleDownRequest
from orchestrator.coordinator.transport import connect
from orchestrator.errors import OrchestratorError
from tests.process_simulation.fates import FATES_OF_LIFE
from tests.process_simulation.plan import Fault
from tests.process_simulation.process import DEAD, Process
from tests.process_simulation.snapshots import FORGED, Snapshots
from workers.fleet.fleet import REQUEST
from workers.fleet.presence import FLEET

if TYPE_CHECKING:
    from tests.process_simulation.life import Life


def begin(life: Life, fault: Fault) -> None:
    if life.stopping or life.broken:
        return
    life.loop.tell(f"FAULT {fault.kind} {fault.for_ms or ''} {fault.pick}")
    ACTS[fault.kind](life, fault)


def _instances(life: Life) -> list[Process]:
    return [p for p in life.processes if p.state != DEAD and p.parent is not None and p.parent.name == "fleet"]


def _workers(life: Life) -> list[Process]:
    return [p for p in life.processes if p.state != DEAD and "." in p.name]


def _signal(number: int) -> Callable[[Life, Fault], None]:
    def act(life: Life, fault: Fault) -> None:
        there = _instances(life)
        if there:
            there[fault.pick % len(there)].signal(number)

    return act


def _end_in_order(number: int) -> Callable[[Life, Fault], None]:
    """An instance is stopped; another joins in its place."""

    def act(life: Life, fault: Fault) -> None:
        there = _instances(life)
        if there:
            there[fault.pick % len(there)].signal(number)
            _another_joins(life, fault, len(there) > 1)

    return act


def _another_joins(life: Life, fault: Fault, others: bool | None = None) -> None:
    """In the place of an instance that was told to stop; where there are no others, the fleet ends and is started again."""
    life.asked = True
    life.until = max(life.until, life.loop.time() + 3.0)
    if others if others is not None else len(_instances(life)) > 1:
        life.loop.call_later(1.0, _join, life, fault, context=contextvars.Context())


def _kill_worker(life: Life, fault: Fault) -> None:
    there = _workers(life)
    if there:
        there[fault.pick % len(there)].signal(signal.SIGKILL)


def _term_at_a_step(life: Life, fault: Fault) -> None:
    """At any await: between two steps of a worker, or of its instance."""
    there = [p for p in life.processes if p.state != DEAD and p.name != "fleet" and p.parent is not None]
    if there:
        hit = there[fault.pick % len(there)]
        instance = hit if "." not in hit.name else hit.parent
        assert instance is not None

        def act() -> None:
            if instance.state != DEAD and not life.stopping:
                instance.signal(signal.SIGTERM)
                _another_joins(life, fault)

        hit.steps_left, hit.after_steps = 1 + fault.pick, act


def _kill_at_a_step(life: Life, fault: Fault) -> None:
    there = [p for p in life.processes if p.state != DEAD and p.name != "fleet" and p.parent is not None]
    if there:
        hit = there[fault.pick % len(there)]
        hit.steps_left, hit.after_steps = 1 + fault.pick, lambda: life.stopping or hit.signal(signal.SIGKILL)


def _kill_coordinator(life: Life, fault: Fault) -> None:
    lease = life.log._leases.get(life.plan.application)
    for process in _instances(life):
        if lease is not None and process.name == lease.holder:
            process.signal(signal.SIGKILL)


def _freeze(who: Callable[[Life], list[Process]], children: bool) -> Callable[[Life, Fault], None]:
    def act(life: Life, fault: Fault) -> None:
        there = who(life)
        if not there:
            return
        hit = there[fault.pick % len(there)]
        life.until = max(life.until, life.loop.time() + fault.for_ms / 1000 + 3.0)
        group = [hit, *hit.children] if children else [hit]
        for process in group:
            process.signal(signal.SIGSTOP)
            life.loop.call_later(fault.for_ms / 1000, process.signal, signal.SIGCONT)

    return act


def _restart_fleet(life: Life, fault: Fault) -> None:
    """`orchestrator run` is stopped in order, and started again (by the controller, once it has ended)."""
    if life.fleet_process.state != DEAD:
        life.asked = True
        life.loop.call_soon(life.fleet.stop, context=life.fleet_process.context)
        life.until = max(life.until, life.loop.time() + 3.0)


def _join(life: Life, fault: Fault) -> None:
    asked = life.log.put_metadata(
        life.plan.application, FLEET, REQUEST + life.new_id(), json.dumps({"add": 1}).encode()
    )
    life.loop.create_task(asked)


def _leave(life: Life, fault: Fault) -> None:
    life.loop.create_task(_scale_down(life))


async def _scale_down(life: Life) -> None:
    """One instance less, by the coordinator, if there is more than one."""
    if len(_instances(life)) > 1:
        life.until = max(life.until, life.loop.time() + 3.0)
        life.loop.tell(f"scale-down: {await ask(life, ScaleDownRequest(by='1', timeout_ms=20_000))}")


async def ask(life: Life, request: Request) -> Any:
    """What the coordinator answers to a command that is run once; None where nobody answers, or it refuses."""
    lease = await life.log.lease(life.plan.application)
    if lease is None:
        return None
    answers: list[Any] = []

    async def client() -> int:
        with contextlib.suppress(OrchestratorError, TimeoutError):
            connection = await connect(lease.address, life.credentials())
            connection.send(messages.ask(1, request))
            async with asyncio.timeout(5):
                answers.append(await connection.receive_down())
            await connection.close()
        return 0

    process = Process(life.loop, "client")
    life.processes.append(process)
    process.start(client())
    await process.wait()
    return answers[0].body if answers else None


def _lock(life: Life, fault: Fault) -> None:
    """One lock at a time: whoever waits for it comes first once it is free."""
    if life.weather.locked_until <= life.loop.time():
        life.weather.locked_until = life.loop.time() + fault.for_ms / 1000
        life.blast.log_is_away(fault.for_ms / 1000)


def _full(life: Life, fault: Fault) -> None:
    life.weather.full_until = life.loop.time() + fault.for_ms / 1000
    life.blast.log_is_away(fault.for_ms / 1000)


def _away(life: Life, fault: Fault) -> None:
    life.weather.away_until = life.loop.time() + fault.for_ms / 1000
    life.blast.log_is_away(fault.for_ms / 1000)
    life.loop.call_later(fault.for_ms / 1000, life.blast.look_whether_it_gave_up, life.fleet_process, fault.for_ms)


def _unknown(life: Life, fault: Fault) -> None:
    life.weather.unknown += 1


def _refuse(life: Life, fault: Fault) -> None:
    life.weather.refused += 1


def _fence(life: Life, fault: Fault) -> None:
    life.weather.fenced += 1


def _damaged_read(life: Life, fault: Fault) -> None:
    life.weather.damaged += 1


def _damaged_store(life: Life, fault: Fault) -> None:
    there = sorted(life.disk.tables)
    if there:
        life.disk.tables[there[fault.pick % len(there)]].damaged = True


def _failed_write(life: Life, fault: Fault) -> None:
    life.disk.failing += 1


def _link(act: str) -> Callable[[Life, Fault], None]:
    def hit(life: Life, fault: Fault) -> None:
        links = life.loop.network.open_links()
        if not links:
            return
        end = links[fault.pick % len(links)][fault.pick % 2]
        if act == "stall":
            end.silent_until = life.loop.time() + fault.for_ms / 1000
        else:
            getattr(end, act)()

    return hit


def _clock(life: Life, fault: Fault) -> None:
    there = _instances(life)
    if there:
        name = there[fault.pick % len(there)].name
        life.jumps[name] = life.jumps.get(name, 0) + (fault.pick - 500) * 1_000


def _grow(life: Life, fault: Fault) -> None:
    """`orchestrator topics grow`: an input where state does not lie by it, else the outputs."""
    life.loop.create_task(
        life.grow("payments" if life.plan.application == "forwarding" else "receipts", 1 + fault.pick % 2)
    )


def _retain(life: Life, fault: Fault) -> None:
    """Retention takes the first half of what waits in a partition; they are lost to the application, as it was set up. At
    times the workers are away meanwhile, and begin behind their positions."""
    if not life.plan.troubles:
        for process in _workers(life) if fault.pick % 2 else ():
            process.signal(signal.SIGKILL)
        life.loop.create_task(life.retain(fault.pick % life.partitions))


def _lose_note(life: Life, fault: Fault) -> None:
    life.disk.losing += 1
    life.blast.notes_lost += 1


def _tear_note(life: Life, fault: Fault) -> None:
    life.disk.tearing += 1
    life.blast.notes_lost += 1


def _client_away(life: Life, fault: Fault) -> None:
    FATES_OF_LIFE.away_until = life.loop.time() + fault.for_ms / 1000


def _lose_disk(life: Life, fault: Fault) -> None:
    """A host is gone: its processes at once, and all that lay on its disk. Another is set up in its place, empty."""
    there = _instances(life)
    if there:
        hit = there[fault.pick % len(there)]
        for process in (hit, *hit.children):
            process.signal(signal.SIGKILL)
        life.disk.lose(Path(life.base.state_dir) / life.plan.application / hit.name)


def _compact(life: Life, fault: Fault) -> None:
    changelog = life.app.tables["balances"].changelog
    if changelog in life.log._topics:
        life.loop.create_task(life.log.compact(changelog))


def _of_snapshots(act: Callable[[Snapshots, Fault], None]) -> Callable[[Life, Fault], None]:
    def hit(life: Life, fault: Fault) -> None:
        if life.snapshots is not None:
            act(life.snapshots, fault)

    return hit


ACTS: dict[str, Callable[[Life, Fault], None]] = {
    "term": _end_in_order(signal.SIGTERM),
    "interrupt": _end_in_order(signal.SIGINT),
    "kill": _signal(signal.SIGKILL),
    "kill-worker": _kill_worker,
    "kill-coordinator": _kill_coordinator,
    "stop-instance": _freeze(_instances, True),
    "stop-worker": _freeze(_workers, False),
    "restart-fleet": _restart_fleet,
    "join": _join,
    "leave": _leave,
    "lock": _lock,
    "lock-long": _lock,
    "full": _full,
    "away": _away,
    "unknown": _unknown,
    "refuse": _refuse,
    "fence": _fence,
    "damaged-read": _damaged_read,
    "damaged-store": _damaged_store,
    "failed-write": _failed_write,
    "reset": _link("reset"),
    "half-close": _link("half_close"),
    "stall": _link("stall"),
    "clock": _clock,
    "term-step": _term_at_a_step,
    "kill-step": _kill_at_a_step,
    "grow": _grow,
    "retain": _retain,
    "lose-note": _lose_note,
    "tear-note": _tear_note,
    "client-away": _client_away,
    "lost-disk": _lose_disk,
    "compact": _compact,
    "snapshot": _of_snapshots(lambda found, fault: found.take()),
    "snapshot-cut": _of_snapshots(lambda found, fault: found.take(1 + fault.pick % 40)),
    "snapshot-damaged": _of_snapshots(lambda found, fault: found.damage(fault.pick)),
    "prune": _of_snapshots(lambda found, fault: found.prune(1)),
    **{kind: _of_snapshots(lambda found, fault: found.forge(fault.kind)) for kind in FORGED},
}
