"""A fleet: the instances that one `orchestrator run` started, on a host (processes here, or Spark executors).

One rule: a host gives slots, the coordinator gives tasks. The fleet starts instances, starts one that crashed again,
adds some when `scale-up` asks for them, and lets those go that left.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from orchestrator.errors import RefusedBySafety
from state.errors import DirectoryUnusable, StateError
from state.log.protocol import Log
from workers.journal import wall_ms
from workers.spec import InstanceSpec, encode_spec
from workers.worker_main import FAILED_APP

log = logging.getLogger("orchestrator.fleet")
FLEET, WISH, GRANTED = "fleet", "wish-", "granted-"
LOOK_S, RESTART_S = 0.25, 0.5
SHUT_DOWN_S, LEAVE_S = 20.0, 600.0


def started(pid: int) -> str | None:
    """What tells a process from a later one with its number: the kernel's start time of it. None where it is gone,
    or where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


class Handle(Protocol):
    """A started instance."""

    async def wait(self) -> int:
        """Its exit code: 0 left or stopped, below 0 killed by that signal, else failed."""

    def stop(self) -> None:
        """SIGTERM: a bounce, or with on_stop=leave it hands everything over first."""

    def bounce(self) -> None:
        """A bounce, whatever SIGTERM means to it."""

    def kill(self) -> None:
        """At once."""


class Host(Protocol):
    """Where instances live. `restarts`: the host itself starts a crashed instance again (a Spark task's retry)."""

    restarts: bool

    async def start(self, spec: InstanceSpec) -> Handle: ...


class ProcessHandle:
    """An instance as a child process; its pipe is its leash: when this process is gone, the instance stops."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        return await self._process.wait()

    def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()

    def bounce(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # the leash ends

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


class ProcessHost:
    """Instances as processes on this machine."""

    restarts = False

    async def start(self, spec: InstanceSpec) -> ProcessHandle:
        home = str(Path(__file__).resolve().parent.parent)
        paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "workers.instance",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C goes to the fleet, which stops its instances in order
        )
        assert process.stdin is not None
        process.stdin.write(encode_spec(spec).encode() + b"\n")
        return ProcessHandle(process)


@dataclass(slots=True)
class Slot:
    """One instance of the fleet."""

    spec: InstanceSpec
    handle: Handle | None = None
    stopped: bool = False
    watcher: asyncio.Task[None] | None = field(default=None)


class Fleet:
    """Runs until every instance has ended, or `stop`."""

    def __init__(self, host: Host, log_: Log, base: InstanceSpec, say: Callable[[str], None]) -> None:
        self._host = host
        self._log = log_
        self._base = base
        self._say = say
        self._slots: dict[str, Slot] = {}
        self._next = 1
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None
        self._lock: int | None = None
        self.code = 0

    def claim(self) -> None:
        """One fleet of an application in a state directory. Raises RefusedBySafety."""
        folder = Path(self._base.state_dir) / self._base.application
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "fleet.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DirectoryUnusable(
                f"the state folder {folder} cannot be made or written ({error.strerror}); choose another with --state-dir"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise RefusedBySafety(
                f"'{self._base.application}' is run already by process {holder}, with state in {folder}; add instances "
                f"with `orchestrator scale-up {self._base.application} --by N`, or stop that one first"
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    async def announce(self) -> None:
        """Tell in the log that this fleet runs the application. Raises RefusedBySafety where another one does, with
        state elsewhere: both would have an instance i1."""
        found = await self._log.note(self._base.application, FLEET, "fleet")
        other = json.loads(found) if found else {}
        if other and other["pid"] != os.getpid() and other.get("started") and started(other["pid"]) == other["started"]:
            raise RefusedBySafety(
                f"'{self._base.application}' is run already by process {other['pid']}, with state in "
                f"{other['state_dir']}; add instances with `orchestrator scale-up {self._base.application} --by N`, or "
                "stop that one first"
            )
        await self._register()

    async def run(self, count: int) -> int:
        """Start `count` instances and look after them. `claim` and `announce` come first."""
        for _ in range(count):
            if not self._stopping:
                await self._add()
        await self._register()
        try:
            while any(slot.watcher is not None and not slot.watcher.done() for slot in self._slots.values()):
                await asyncio.sleep(LOOK_S)
                if not self._stopping:
                    await self._look_for_wishes()
        finally:
            if self._ending is not None:
                self._ending.cancel()
            await self._forget()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
        return self.code

    async def _forget(self) -> None:
        try:
            await self._log.put_note(self._base.application, FLEET, "fleet", None)
        except StateError as error:  # the log may be what failed; its reader looks whether the process lives
            log.info("the fleet's note stays: %s", error)

    def instances(self) -> list[str]:
        return [name for name, slot in self._slots.items() if not slot.stopped]

    async def _add(self) -> str:
        name = f"i{self._next}"
        self._next += 1
        slot = Slot(msgspec.structs.replace(self._base, instance=name))
        self._slots[name] = slot
        await self._start(slot)
        slot.watcher = asyncio.create_task(self._watch(name, slot))
        return name

    async def _start(self, slot: Slot) -> None:
        slot.handle = await self._host.start(slot.spec)
        if self._stopping:  # told while it was being started
            slot.handle.bounce()

    async def _watch(self, name: str, slot: Slot) -> None:
        while True:
            assert slot.handle is not None
            code = await slot.handle.wait()
            if code == 0 or self._stopping:
                slot.stopped = True
                if not self._stopping:
                    await self._register()
                return
            if code > 0:
                slot.stopped = True
                self.code = 1 if code == FAILED_APP else code
                self._say(f"{name} failed; the fleet stops")
                self.stop()
                return
            self._say(f"{name} was killed by signal {-code}; it is started again")
            if not await self._start_again(slot):
                slot.stopped = True
                return

    async def _start_again(self, slot: Slot) -> bool:
        """After a pause, unless the fleet was told to stop during it."""
        await asyncio.sleep(RESTART_S)
        if self._stopping:
            return False
        slot.spec = msgspec.structs.replace(slot.spec, attempt=slot.spec.attempt + 1)
        await self._start(slot)
        return True

    # ---- scale-up

    async def _register(self) -> None:
        facts = {
            "pid": os.getpid(),
            "started": started(os.getpid()),
            "state_dir": self._base.state_dir,
            "instances": self.instances(),
            "after_leave": self._base.after_leave,
            "at_ms": wall_ms(),
        }
        await self._log.put_note(self._base.application, FLEET, "fleet", json.dumps(facts).encode())

    async def _look_for_wishes(self) -> None:
        for key, found in (await self._log.notes(self._base.application, FLEET)).items():
            if not key.startswith(WISH):
                continue
            await self._log.put_note(self._base.application, FLEET, key, None)
            added = [await self._add() for _ in range(int(json.loads(found)["add"]))]
            await self._register()
            answer = json.dumps({"added": added}).encode()
            await self._log.put_note(self._base.application, FLEET, GRANTED + key.removeprefix(WISH), answer)

    # ---- the end

    def stop(self) -> None:
        """Bounce every instance, or with on_stop=leave let them hand over to those of others, if there are any. What
        does not end in time is killed; a second call kills at once."""
        if self._stopping:
            self.kill()
            return
        self._stopping = True
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        leave = self._base.on_stop == "leave" and await self._are_others()
        for slot in self._slots.values():
            if slot.handle is not None and not slot.stopped:
                slot.handle.stop() if leave else slot.handle.bounce()
        await asyncio.sleep(LEAVE_S if leave else SHUT_DOWN_S)
        self.kill()

    async def _are_others(self) -> bool:
        """Whether instances that are not of this fleet run tasks."""
        try:
            owners = (await self._log.owners(self._base.application)).values()
        except StateError:
            return False
        return any(o.writer and o.member.partition(".")[0] not in self._slots for o in owners)

    def kill(self) -> None:
        for slot in self._slots.values():
            if slot.handle is not None and not slot.stopped:
                slot.handle.kill()
