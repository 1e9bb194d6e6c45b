"""A worker's connection to the coordinator on a loop of its own, in a thread: it lasts beside a call that holds the worker's loop.

One rule: the worker's loop decides where it runs. Where calls hold it, the last status is sent again (uplink.py), and a
coordinator that has another after it is followed: the instance, whose process runs no user code, knows from the lease where
that one listens, and the member joins there as it is. Nothing of the worker changes while its loop is held, so its last
status is as true as one that is late. The messages that come meanwhile wait for the loop. A loop that wakes between two calls,
for as long as a commit takes, is held all the same: to find a coordinator and to join takes several of its moments.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from orchestrator.coordinator import messages
from orchestrator.coordinator.connection import ConnectionEnded
from orchestrator.errors import OrchestratorError
from orchestrator.model import JoinRequest, MemberStatus
from workers.connection.asking import Place, coordinator_place
from workers.connection.uplink import Caller, LoopUplink, open_on_loop

log = logging.getLogger("orchestrator.session")
T = TypeVar("T")
FREE_S = 0.1  # a loop that answers so soon is free,
FREE_FOR_S = 0.06  # and one that is for so long sees to its connection itself;
FREE_AGAIN_S = 1.0  # so long where a call has held it: between two calls it is free for as long as a commit takes
APART_S = 0.5  # what answers further apart have between them is not known to be free: a coordinator that hangs was asked to answer
PAUSE_S = 0.02
HELD_LATELY_S = 10.0
AGAIN_S = 0.2  # candidates look at the lease about as often
ANSWER_S = 2.0  # of the instance, and as long of the coordinator: both are within the rejoin grace


class ThreadLine:
    """Connections on a loop in a thread, which begins with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, place: Place, caller: Caller) -> ThreadUplink:
        return ThreadUplink(self, caller, await self.call(open_on_loop(place, caller)))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def soon(self, work: Callable[..., Any], *args: Any) -> None:
        """Have the thread do it, without waiting."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work, *args)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do it, and wait for the answer."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="uplink", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class ThreadUplink:
    """An uplink whose connection lives in the thread of a ThreadLine. What begins with `_` and is no field runs there."""

    def __init__(self, line: ThreadLine, caller: Caller, uplink: LoopUplink) -> None:
        self._line = line
        self._caller = caller
        self._uplink = uplink
        self._joined: tuple[str, JoinRequest] | None = None
        self._held_s = -math.inf  # when a call was last seen to hold the worker's loop
        self._is_over = False  # closed, or ended by the coordinator's own word
        self._looking: asyncio.Task[None] | None = None
        self._received: asyncio.Queue[messages.Down | Exception] = asyncio.Queue()
        self._home = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        line.soon(self._begin)

    # ---- for the worker's loop

    @property
    def term(self) -> int:
        return self._uplink.term

    def join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        self._line.soon(self._join, application, request, status)

    def understands_changes(self, changes: bool) -> None:
        self._line.soon(lambda: self._uplink.understands_changes(changes))

    def publish(self, status: MemberStatus) -> None:
        self._line.soon(lambda: self._uplink.publish(status))

    async def receive(self) -> messages.Down:
        message = await self._received.get()
        if isinstance(message, Exception):
            self._received.put_nowait(message)
            raise message
        return message

    async def close(self) -> None:
        await self._line.call(self._close())

    # ---- in the thread

    def _begin(self) -> None:
        self._uplink.on_quiet = self._look_soon
        self._pump = asyncio.get_running_loop().create_task(self._receive_all(), name="receive")

    def _join(self, application: str, request: JoinRequest, status: MemberStatus) -> None:
        self._joined = application, request
        self._uplink.join(application, request, status)

    async def _close(self) -> None:
        self._is_over = True
        await self._uplink.close()

    def _at_home(self, work: Callable[..., Any], *args: Any) -> None:
        self._home.call_soon_threadsafe(work, *args, context=self._context)

    async def _receive_all(self) -> None:
        try:
            while True:
                try:
                    message = await self._uplink.receive()
                except ConnectionEnded:
                    if await self._is_followed():
                        continue
                    raise
                self._is_over = self._is_over or isinstance(message, messages.Closed)
                self._at_home(self._received.put_nowait, message)
        except Exception as error:  # noqa: BLE001 - it is raised where messages are received
            ended = error if error.args else ConnectionEnded("the connection ended")
            self._at_home(self._received.put_nowait, ended)

    # ---- in the thread, while a call holds the worker's loop

    async def _is_followed(self) -> bool:
        """Whether the member has joined again, where a coordinator is now; False once the worker's loop can see to it."""
        now, answer, free_since, free_at = asyncio.get_running_loop().time, None, None, -math.inf
        enough_s = FREE_AGAIN_S if now() - self._held_s < HELD_LATELY_S else FREE_FOR_S
        while self._joined is not None and not self._is_over:
            answer = answer or self._asked_to_answer()
            try:
                async with asyncio.timeout(FREE_S):
                    await answer.wait()
            except TimeoutError:
                free_since, enough_s = None, FREE_AGAIN_S
            else:
                answer, before, free_at = None, free_at, now()
                free_since = free_at if free_since is None or free_at - before > APART_S else free_since
                if free_at - free_since >= enough_s:
                    return False
                if enough_s == FREE_FOR_S:
                    await asyncio.sleep(PAUSE_S)
                    continue
            try:
                if await self._has_joined_where_it_is():
                    return True
            except OrchestratorError as error:
                log.debug("session, beside a call: %s", error)
            await asyncio.sleep(AGAIN_S)
        return False

    def _asked_to_answer(self) -> asyncio.Event:
        """What the worker's loop sets, as soon as it runs."""
        here, answered = asyncio.get_running_loop(), asyncio.Event()
        self._at_home(lambda: here.call_soon_threadsafe(answered.set))
        return answered

    async def _has_joined_where_it_is(self) -> bool:
        caller = self._caller
        place = await coordinator_place(caller.instance, caller.credentials, ANSWER_S)
        if place is None:
            return False
        uplink = await open_on_loop(place, caller, ANSWER_S)
        if self._is_over or self._joined is None:
            await uplink.close()
            return False
        log.info("asking the coordinator of term %d, while a call goes on", place.term)
        uplink.on_quiet = self._look_soon
        former, self._uplink = self._uplink, uplink
        uplink.join(*self._joined, former.status)  # as they are now: the loop may have run meanwhile
        await former.close()
        return True

    def _look_soon(self) -> None:
        self._held_s = asyncio.get_running_loop().time()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_another(), name="look for another")

    async def _look_for_another(self) -> None:
        """A coordinator that hangs keeps its connections, and the loop of a worker in a call does not look at the lease."""
        uplink = self._uplink
        try:
            place = await coordinator_place(self._caller.instance, self._caller.credentials, ANSWER_S)
        except OrchestratorError as error:
            log.debug("session, beside a call: %s", error)
            return
        if place is not None and place.term > uplink.term:
            await uplink.close()
