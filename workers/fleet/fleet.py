"""A fleet: the instances that one `orchestrator run` started, on a host (processes here, or Spark executors).

One rule: a host gives slots, the coordinator gives tasks. The fleet starts instances, starts one that crashed again,
adds some when `scale-up` asks for them, and lets those go that left. The log only carries the fleet's reports and requests:
while it cannot be written the instances go on, and the fleet tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.clocks import wall_ms
from orchestrator.errors import RefusedBySafety
from state.errors import LogReplaced, StateError
from state.log.group_store import GroupStore
from workers.connection.listening import places_in_fleet
from workers.fleet import presence
from workers.fleet.hosts import Handle, Host
from workers.fleet.log_trouble import LogTrouble
from workers.fleet.presence import FLEET, hold, is_here, named_of, names_taken, runs_elsewhere, started, this_process
from workers.fleet.restarts import RESTART_MAX_S, RESTART_S, Then, code_of_fleet, follows, later
from workers.fleet.state_watch import StateWatch
from workers.log.logs import log_path, show_log
from workers.spec import InstanceSpec, how_ended

log = logging.getLogger("orchestrator.fleet")
REQUEST, GRANTED = "wish-", "granted-"  # as they are stored
TAKEN = "taken_by"  # in a request: the fleet that grants it
Elsewhere = Callable[[Collection[str]], Awaitable[str | None]]
WITHDRAWN = json.dumps({"add": 0, TAKEN: ""}).encode()
LOOK_S, SHUT_DOWN_S, LEAVE_S, FORGET_S = 0.25, 20.0, 600.0, 3.0


@dataclass(slots=True)
class Slot:
    """One instance of the fleet."""

    spec: InstanceSpec
    handle: Handle | None = None
    stopped: bool = False
    since: float | None = None  # when its process was started, where it runs
    watcher: asyncio.Task[None] | None = field(default=None)


class Fleet:
    """Runs until every instance has ended, or `stop`. `elsewhere`: the host on which the group has a member of one of these names,
    where that is not this one."""

    after_failure = "; the fleet stops"
    _kind, _key = FLEET, "fleet"  # of its note

    def __init__(
        self, host: Host, log_: GroupStore, base: InstanceSpec, say: Callable[[str], None], elsewhere: Elsewhere
    ) -> None:
        self._host = host
        self._log = log_
        self._base = base
        self._say = say
        self._elsewhere = elsewhere
        self._slots: dict[str, Slot] = {}
        self._next = 1
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._lock: int | None = None
        self._folder = Path(base.state_dir) / base.application
        self._id = secrets.token_hex(4)
        self._changed = asyncio.Event()
        self._note = b""  # as `announce` wrote it
        self._before: bytes | None = None  # what it was written in the place of
        self._registered: list[str] | None = None  # the instances that the log knows of
        self._taken: set[str] = set()  # names that are not for instances of this fleet
        self._answers: dict[str, dict[str, Any]] = {}  # to requests that were taken, until the log has them
        self._trouble = LogTrouble(self._say)
        self._error: BaseException | None = None
        self.code = 0

    def claim(self) -> None:
        """One fleet of an application in a state directory. Raises RefusedBySafety."""
        self._lock = hold(
            self._folder / "fleet.lock",
            f"'{self._base.application}' is run already by process {{holder}}, with state in {self._folder}; add instances "
            f"with `orchestrator scale-up {self._base.application} --by N`, or stop that one first",
        )

    def release_lock(self) -> None:
        """Another fleet of the application may be started here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def check(self) -> None:
        """Raises RefusedBySafety where a fleet runs the application with state elsewhere, or an instance of its name on this machine: a
        note of another one may be of a process that has ended, and who takes the name asks there."""
        found = await self._log.metadata(self._base.application, FLEET, "fleet")
        self._refuse_another(json.loads(found) if found else {})
        named = (await named_of(self._log, self._base.application)).get(self._base.instance)
        if named is not None and is_here(named) and named["pid"] != os.getpid():
            raise RefusedBySafety(
                f"instance '{self._base.instance}' of '{self._base.application}' runs already; stop it first"
            )

    async def announce(self) -> None:
        """Notes in the log that this fleet runs the application. Raises RefusedBySafety where another one does, also of two at one moment."""
        while True:
            found = await self._log.metadata(self._base.application, FLEET, "fleet")
            self._refuse_another(json.loads(found) if found else {})
            await self._refuse_elsewhere(json.loads(found) if found else {})
            self._note, self._before = self._facts([]), found
            if await self._log.replace_metadata(self._base.application, FLEET, "fleet", found, self._note):
                self._registered = []
                self._taken = await names_taken(self._log, self._base.application)
                return

    def _refuse_another(self, other: dict[str, Any]) -> None:
        presence.refuse_beside_command(self._base.application, other)
        if other and other["pid"] != os.getpid() and other.get("started") and started(other["pid"]) == other["started"]:
            raise RefusedBySafety(
                f"'{self._base.application}' is run already by process {other['pid']}, with state in "
                f"{other['state_dir']}; add instances with `orchestrator scale-up {self._base.application} --by N`, or "
                "stop that one first"
            )

    async def _refuse_elsewhere(self, other: dict[str, Any]) -> None:
        """Instances of both would have the same names, and take each other's tasks again and again. A file of a log is one machine's,
        whatever it is called. Raises RefusedBySafety."""
        if not other or is_here(other) or log_path(self._base.log) is not None:
            return
        if await runs_elsewhere(self._log, self._base.application, other, self._elsewhere):
            raise RefusedBySafety(
                f"'{self._base.application}' is run already by a fleet on {other['host']}; add instances here with `orchestrator "
                "run MODULE:APP --name NAME`; where that fleet has ended, try again after the session timeout"
            )

    async def run(self, count: int) -> int:
        """Start `count` instances and look after them, behind `claim` and `announce`. Raises what a host raised that is gone."""
        for _ in range(count):
            self._add()
        state = StateWatch(self._folder) if self._lock is not None else None
        try:
            while self._is_running():
                if not self._stopping:
                    await self._look_after()
                    self._look_at(state)
                await self._pause()
        finally:
            if self._ending is not None:
                self._ending.cancel()
            await self.forget()
            self.release_lock()
            if state is not None:
                state.close()
        if self._error is not None:
            raise self._error
        return self.code

    def _is_running(self) -> bool:
        return any(slot.watcher is not None and not slot.watcher.done() for slot in self._slots.values())

    async def _look_after(self) -> None:
        """`_keep_up`, which a log that is away may hold for long; not beyond the end of the instances of a fleet that stops."""
        self._looking = asyncio.create_task(self._keep_up())
        try:
            await asyncio.wait([self._looking])
            if not self._looking.cancelled():
                self._looking.result()
        finally:
            self._looking.cancel()

    async def _pause(self) -> None:
        """Until an instance has ended, but not for long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()

    def _look_at(self, state: StateWatch | None) -> None:
        """State that was deleted under the instances costs them a restore, and the fleet a line and another lock."""
        try:
            deleted = state.deleted(self.instances()) if state is not None else []
            if deleted:
                folders = ", ".join(map(str, deleted))
                self._say(
                    f"deleted while in use: {folders}; the instances go on, and restore from the log what they held"
                )
            if deleted and self._lock is not None and os.fstat(self._lock).st_nlink == 0:
                os.close(self._lock)
                self._lock = None
                self.claim()
        except (RefusedBySafety, StateError) as error:
            self._error = error
            self.stop()

    async def forget(self) -> None:
        """A log that is away is not waited for: who reads a note that stays looks whether its process lives."""
        await self._briefly(self._remove_note)

    async def withdraw(self) -> None:
        """`forget` where nothing was started after `announce`."""
        await self._briefly(self._put_back)

    async def _briefly(self, change: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(FORGET_S):
                await change()
        except (StateError, TimeoutError) as error:
            log.info("the note of %s stays: %s", self._base.application, str(error) or "the log is away")

    async def _remove_note(self) -> None:
        """Unless another process has written its own."""
        await self._log.replace_metadata(self._base.application, self._kind, self._key, self._note, None)

    async def _put_back(self) -> None:
        """The note that was there before may be of a fleet that runs on another machine."""
        await self._log.replace_metadata(self._base.application, self._kind, self._key, self._note, self._before)

    def instances(self) -> list[str]:
        return [name for name, slot in self._slots.items() if not slot.stopped]

    def _add(self) -> str:
        spec = msgspec.structs.replace(self._base, start=self._id, **self._place())
        name, slot = spec.instance, Slot(spec)
        if self._base.metrics_port and not spec.metrics_port:
            self._say(f"{name} serves no metrics: no port is left behind --metrics-port {self._base.metrics_port}")
        self._slots[name] = slot
        slot.watcher = asyncio.create_task(self._watch(name, slot))
        slot.watcher.add_done_callback(lambda watcher: self._ended(slot, watcher))
        return name

    def _place(self) -> dict[str, Any]:
        """What is the next instance's own: its name, where it listens and is reached, and the port of its metrics."""
        while f"i{self._next}" in self._taken:
            self._next += 1
        self._next += 1
        placed = places_in_fleet(self._base, len(self._slots) + 1)
        return {"instance": f"i{self._next - 1}", "name_returns": False, **placed}

    def _ended(self, slot: Slot, watcher: asyncio.Task[None]) -> None:
        """An instance is over. Where it could not be looked after any more (its host is gone), so is the fleet."""
        slot.stopped = True
        self._changed.set()
        if self._stopping and self._looking is not None and not self._is_running():
            self._looking.cancel()
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            self._error = self._error or error
            if not self._stopping:
                self.stop()

    async def _watch(self, name: str, slot: Slot) -> None:
        pause, clock = RESTART_S, asyncio.get_running_loop().time
        while await self._start(name, slot):
            assert slot.handle is not None
            slot.since = clock()
            code = await slot.handle.wait()
            lasted_s, slot.since = clock() - slot.since, None
            others = [clock() - other.since for other in self._slots.values() if other.since is not None]
            then = Then.OVER if self._stopping else follows(code, lasted_s, others)
            slot.stopped = slot.stopped or then in (Then.LOG_GONE, Then.FAILED)
            if then is Then.LOG_GONE:
                self._log_is_gone()
            if then is Then.FAILED:
                self.code = code_of_fleet(code)
                self._say(f"{name} failed{self.after_failure}")
                self.stop()
            if then not in (Then.AGAIN, Then.LATER):
                return
            self._say(f"{name} {how_ended(code)}; it is started again")
            await self._rest(pause)
            pause = later(pause, then)
            slot.spec = msgspec.structs.replace(slot.spec, attempt=slot.spec.attempt + 1)

    def _log_is_gone(self) -> None:
        """What is written to it now no other process would read: the end."""
        self.code = 1
        if not self._stopping:
            where = log_path(self._base.log) or show_log(self._base.log)
            self._say(
                f"error: the log {where} was deleted or replaced while it was in use, or its -wal or -shm was; the fleet stops: put it back, or run it again"
            )
            self.stop()

    async def _start(self, name: str, slot: Slot) -> bool:
        """False where the fleet was asked to stop. No room for a process is a reason to wait, as a crash is."""
        pause = RESTART_S
        while not self._stopping:
            try:
                slot.handle = await self._host.start(slot.spec)
            except OSError as error:
                hint = "; raise `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
                why = f"{error.strerror or error}{hint}"
                self._say(f"{name} cannot be started now ({why}); it is tried again in {pause:g} s")
                await self._rest(pause)
                pause = min(RESTART_MAX_S, pause * 2)
            else:
                self._stopped_meanwhile(slot.handle)
                return True
        return False

    async def _rest(self, pause_s: float) -> None:
        """Before an instance is tried again; no longer than until the fleet is asked to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop_asked.wait()

    def _stopped_meanwhile(self, handle: Handle) -> None:
        if self._stopping:
            handle.bounce()

    # ---- what the fleet writes to the log, and is asked for

    async def _keep_up(self) -> None:
        """What cannot be written or read now is tried again: the instances need their fleet, not its notes."""
        try:
            if self.instances() != self._registered:
                await self._register()
            await self._look_for_requests()
            await self._answer()
            self._trouble.over()
        except LogReplaced:
            self._log_is_gone()
        except StateError as error:
            self._trouble.met(error)

    async def _register(self) -> None:
        instances = self.instances()
        self._note = self._facts(instances)
        await self._log.put_metadata(self._base.application, FLEET, "fleet", self._note)
        self._registered = instances

    def _facts(self, instances: list[str]) -> bytes:
        facts = {**this_process(), "id": self._id, "state_dir": self._base.state_dir, "instances": instances}
        return json.dumps({**facts, "after_leave": self._base.after_leave, "at_ms": wall_ms()}).encode()

    async def _look_for_requests(self) -> None:
        """A request is taken by a word in the log before anything is started for it, so that it is withdrawn or granted and
        never both; it is granted once, however often the log refuses the answer. One that was made beside other instances than
        there are now (of two operators one is first) is given back, to be counted again."""
        for key, found in (await self._log.metadata_of(self._base.application, FLEET)).items():
            request = key.removeprefix(REQUEST)
            if request == key or request in self._answers:
                continue
            facts = json.loads(found)
            if TAKEN not in facts:
                taken = json.dumps({**facts, TAKEN: self._id}).encode()
                if not await self._log.replace_metadata(self._base.application, FLEET, key, found, taken):
                    continue  # withdrawn
            elif facts[TAKEN] != self._id:
                continue  # by a fleet that has ended
            self._taken = await names_taken(self._log, self._base.application)
            if facts.get("beside", self.instances()) != self.instances():
                self._answers[request] = {"added": [], "changed": True}
            else:
                self._answers[request] = {"added": [self._add() for _ in range(int(facts["add"]))]}

    async def _answer(self) -> None:
        if self._answers and self.instances() != self._registered:
            await self._register()
        for request, answer in list(self._answers.items()):
            await self._log.put_metadata(self._base.application, FLEET, REQUEST + request, None)
            await self._log.put_metadata(self._base.application, FLEET, GRANTED + request, json.dumps(answer).encode())
            del self._answers[request]

    # ---- the end

    def stop(self) -> None:
        """Bounce every instance, or with on_stop=leave let them hand over to those of others, if there are any. What
        does not end in time is killed; a second call kills at once."""
        if self._stopping:
            self.kill()
            return
        self._stopping = True
        self._stop_asked.set()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        leave = self._base.on_stop == "leave" and await self._are_others()
        for slot in self._slots.values():
            if slot.handle is not None and not slot.stopped:
                slot.handle.stop() if leave else slot.handle.bounce()
        if leave:
            await self._hand_over()
        await asyncio.sleep(SHUT_DOWN_S)
        self.kill()

    async def _hand_over(self) -> None:
        """Until there has been time to leave; what is left then is bounced. So are those that have no other member to leave to any
        more: owners that were gone already are known as such only after a session."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAVE_S
        while loop.time() < until and await self._are_others() is not False:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(LOOK_S)
        for slot in self._slots.values():
            if slot.handle is not None and not slot.stopped:
                slot.handle.bounce()

    async def _are_others(self) -> bool | None:
        """Whether instances that are not of this fleet run tasks; None where the log does not say."""
        try:
            owners = (await self._log.owners(self._base.application)).values()
        except StateError:
            return None
        return any(o.transactional_id and o.member.partition(".")[0] not in self._slots for o in owners)

    def kill(self) -> None:
        for slot in self._slots.values():
            if slot.handle is not None and not slot.stopped:
                slot.handle.kill()
