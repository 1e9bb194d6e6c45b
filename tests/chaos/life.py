"""One life: brokers, machines and a producer are started, the plan's events come, everything is mended, the end is judged.

One rule: an event only breaks, and mends what it broke; nothing that an instance does by itself is helped, but for what a
supervisor does: it starts an instance again that could not begin because its broker was away.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from state.log.kafka import broker
from state.log.protocol import GroupLog
from tests.chaos import judge
from tests.chaos.breaking import Breaking
from tests.chaos.plan import Plan
from tests.chaos.watch import Watch
from tests.chaos.world import APP, Outcome, World
from workers.log.logs import open_log

AT_ONCE = 3
SUPERVISED_S = 0.2


class Life:
    """See the module text."""

    def __init__(self, plan: Plan, folder: Path, version: str = broker.VERSION) -> None:
        self._world = World(plan, folder, version)
        self._outcome = self._world.outcome
        self._under_way: dict[asyncio.Task[None], str] = {}

    async def live(self) -> Outcome:
        """What it ended with; nothing of it runs any more."""
        await self._world.brokers.start()
        log = await open_log(self._world.brokers.url, create=True)
        keeping: list[asyncio.Task[None]] = []
        try:
            self._world.write_input()
            self._world.produce()
            for machine in self._world.machines[: self._world.plan.machines]:
                machine.start()
            inputs = await judge.begun(log)
            watch = Watch(
                *(log, APP, inputs, lambda: list(self._under_way.values())),
                *(lambda: self._world.is_broker_away, self._world.note),
            )
            keeping = [asyncio.create_task(watch.run()), asyncio.create_task(self._supervise())]
            await self._events(Breaking(self._world, log))
            await self._come_to_rest(log)
            self._outcome.stall = watch.longest
            self._outcome.problems += await judge.differences(self._world, log)
        except AssertionError as error:
            self._outcome.problems.append(str(error))
        finally:
            left = [*keeping, *self._under_way]
            for task in left:
                task.cancel()
            results = await asyncio.gather(*left, return_exceptions=True)
            self._outcome.problems += [f"{one!r}" for one in results if isinstance(one, Exception)]
            await log.close()
            await self._world.close()
        return self._outcome

    # ---- the events

    async def _events(self, breaking: Breaking) -> None:
        for event in self._world.plan.events:
            await asyncio.sleep(event.after_s)
            while len(self._under_way) >= AT_ONCE:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(breaking.meet(event))
            self._under_way[task] = event.kind
            task.add_done_callback(self._over)
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _over(self, task: asyncio.Task[None]) -> None:
        kind = self._under_way.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._outcome.problems.append(f"{kind}: {error or type(error).__name__}")

    async def _supervise(self) -> None:
        """Starts what could not begin, as systemd does; what ends by itself after it began is a problem of its own."""
        while True:
            for machine in self._world.machines:
                if machine.is_busy or (code := machine.ended()) is None:
                    continue
                if machine.has_begun():
                    self._outcome.problems.append(f"{machine.name} ended by itself with {code}; see {machine.log}")
                self._outcome.starts_again += 1
                machine.start()
            await asyncio.sleep(SUPERVISED_S)

    # ---- the end

    async def _come_to_rest(self, log: GroupLog) -> None:
        """The input ends, all of it is processed, and the group says that it is stable."""
        producer = self._world.producer
        assert producer is not None
        began = time.monotonic()
        self._world.note("the input ends")
        producer.send_signal(signal.SIGTERM)
        await asyncio.to_thread(producer.wait)
        await judge.processed(self._world, log)
        self._world.note("all of it is processed")
        running = sum(machine.is_up for machine in self._world.machines)
        waiting = self._world.asked("wait", APP, "--instances", str(running), "--timeout", "120s", out="wait")
        code = await asyncio.to_thread(waiting.wait)
        assert code == 0, f"the group does not come to rest ({code}): {self._world.said('wait')}"
        self._outcome.rest_s = time.monotonic() - began
