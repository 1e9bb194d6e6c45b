"""The real coordinator on loopback: heartbeats per CPU second, and the longest pause of its loop while a large group
changes. One rule: the server runs in a process of its own, and tells its own CPU time.

`python -m benchmarks.heartbeats serve|rival ...` are the servers; benchmarks/group.py starts them and plays the clients.
Most members have no connection: their events go to the coordinator from inside, as its connections would hand them in.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import Connection
from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.requests import Request
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret
from orchestrator.coordinator.services import Services
from orchestrator.coordinator.shell import Coordinator
from orchestrator.group import events as ev
from orchestrator.model import MemberStatus, Settings, TaskId
from orchestrator.simulator.ledger import KeptLedger
from orchestrator.simulator.round import Round

HEAD = "POST /beat HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "


CREDENTIALS = Credentials("bench", Secret(Right.JOIN, bytes(KEY_BYTES)))


class Look(Request, tag="look", frozen=True):
    """What a test or benchmark wants to know."""


class Measured(Request, tag="measured", frozen=True):
    """CPU time, the longest pause, heartbeats taken."""


class Settled(Request, tag="settled", frozen=True):
    """Whether nothing moves."""


class Watch(Request, tag="watch", frozen=True):
    """Begin to look at the loop's pauses."""


class Crash(Request, tag="crash", frozen=True):
    """A member is gone."""

    member: str


async def listening(coordinator: Coordinator, credentials: Credentials = CREDENTIALS) -> tuple[Services, str]:
    """A listener of its own for a coordinator; `close` it."""
    services = Services(credentials)
    coordinator.listen(services)
    return services, await services.open()


class Counting(Coordinator):
    """Counts the heartbeats that it has taken."""

    beats = 0

    def event(self, event: ev.Event) -> None:
        self.beats += isinstance(event, ev.Heartbeat)
        super().event(event)


class Pauses:
    """The gaps between turns of the loop, as somebody who waits for nothing sees them."""

    def __init__(self) -> None:
        self.turns: list[float] = []
        self.wanted = asyncio.Event()  # not while heartbeats are counted: to look costs something, too

    async def watch(self) -> None:
        await self.wanted.wait()
        while True:
            self.turns.append(time.perf_counter())
            await asyncio.sleep(0.001)

    def longest_ms(self) -> float:
        gaps = [(b - a) * 1000 for a, b in pairwise(self.turns)]
        self.turns.clear()
        return max(gaps, default=0.0)


def status_of(tasks: Sequence[TaskId], beat: int = 0) -> MemberStatus:
    """What a busy worker that runs these tasks says with its nth heartbeat: every end and every fact has changed."""
    return MemberStatus(
        generation=1,
        term=1,
        active=dict.fromkeys(tasks, 1),
        ends={task: 1_000_000 + 211 * beat + n for n, task in enumerate(tasks)},
        facts={
            task: (17 + (beat + n) % 50, 5_000_000 + 4_096 * beat + n, 123_456 + 211 * beat + n, 12 + (beat + n) % 30)
            for n, task in enumerate(tasks)
        },
    )


async def serve(instances: int, tasks: int, connections: int) -> None:
    """A coordinator with a large group at rest; prints its address, then does what it is asked."""
    made = Round(instances, tasks, at_rest=True)
    pauses = Pauses()
    placed = list(made.group.owners.values())
    per_writer = {w: sorted(made.group.by_transactional_id.of(w)) for w in made.group.by_transactional_id}

    async def measured(coordinator: Coordinator, request: Measured) -> dict[str, Any]:
        return {"cpu": time.process_time(), "pause_ms": pauses.longest_ms(), "beats": counting.beats}

    async def settled(coordinator: Coordinator, request: Settled) -> dict[str, Any]:
        group = coordinator.group
        work = bool(group.moves or group.recording or group.fencing or group.computing or group.dirty)
        return {"settled": not work, "generation": group.generation, "owned": len(group.by_transactional_id)}

    async def crash(coordinator: Coordinator, request: Crash) -> None:
        coordinator.event(ev.Expired(request.member))

    async def watch(coordinator: Coordinator, request: Watch) -> None:
        pauses.wanted.set()

    handlers: dict[type[Request], Any] = {Watch: watch, Measured: measured, Settled: settled, Crash: crash}
    settings = Settings(session_timeout_ms=3_600_000, rejoin_grace_ms=3_600_000)
    counting = coordinator = Counting("bench", settings, KeptLedger(placed), made.group.tasks.values(), handlers)
    print((await listening(coordinator))[1], flush=True)
    gc.collect()
    async with asyncio.TaskGroup() as group:
        group.create_task(coordinator.serve())
        group.create_task(pauses.watch())
        for number in range(connections, instances):
            await asyncio.sleep(0)
            join_request = made.nodes[number].join_request
            coordinator.event(ev.Joined(1_000_000 + number, join_request, status_of(per_writer[join_request.writer])))


async def rival() -> None:
    """The same heartbeats as JSON over aiohttp."""
    from aiohttp import web

    last: dict[str, Any] = {}

    async def beat(request: web.Request) -> web.Response:
        status = msgspec.json.decode(await request.read())
        last[status["member"]] = status
        return web.Response(body=b'{"ok":true}', content_type="application/json")

    async def measured(request: web.Request) -> web.Response:
        return web.json_response({"cpu": time.process_time()})

    application = web.Application()
    application.add_routes([web.post("/beat", beat), web.get("/measured", measured)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    print(f"127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


@dataclass
class Server:
    """A server of ours in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    @staticmethod
    def start(*args: object) -> Server:
        command = [sys.executable, "-m", "benchmarks.heartbeats", *map(str, args)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return Server(process, process.stdout.readline().strip())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


async def ask(connection: Connection, request: Request) -> Any:
    connection.send(messages.ask(1, request))
    while True:
        answer = await connection.receive_down()
        if isinstance(answer, messages.Answer):
            return answer.body


async def beats_of_rival(address: str, connections: int, tasks: Sequence[TaskId], seconds: float) -> float:
    """Heartbeats per CPU second of the aiohttp server."""
    host, _, port = address.rpartition(":")

    @cache
    def frame(beat: int) -> bytes:
        plain = status_of(tasks, beat)
        body = msgspec.json.encode(
            {
                "member": "stream-00001",
                **{f: {str(t): v for t, v in getattr(plain, f).items()} for f in ("active", "ends", "facts")},
                **{f: getattr(plain, f) for f in ("generation", "term", "leaving", "bounce")},
                **{f: {} for f in ("copies", "disk", "released", "started")},
            }
        )
        return f"{HEAD}{len(body)}\r\n\r\n".encode() + body

    async def cpu() -> float:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /measured HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        said = await reader.read()
        writer.close()
        return float(msgspec.json.decode(said.rpartition(b"\r\n\r\n")[2])["cpu"])

    sent = 0
    end = time.monotonic() + seconds

    async def client() -> None:
        nonlocal sent
        reader, writer = await asyncio.open_connection(host, int(port))
        beats = itertools.count(1)
        while time.monotonic() < end:
            writer.write(frame(next(beats)))
            await reader.readuntil(b'{"ok":true}')
            sent += 1
        writer.close()

    before = await cpu()
    await asyncio.gather(*(client() for _ in range(connections)))
    return sent / (await cpu() - before)


if __name__ == "__main__":
    if sys.argv[1] == "rival":
        asyncio.run(rival())
    else:
        asyncio.run(serve(*map(int, sys.argv[2:5])))
