"""The loop of virtual time keeps the promises of an operating system: what dies does nothing more, what is stopped waits,
bytes arrive in order or not at all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.process_simulation.chance import Order
from tests.process_simulation.loop import Stuck, VirtualLoop
from tests.process_simulation.process import DEAD, Process


@pytest.fixture(params=[0.0, 1.0], ids=["in order", "drawn"])
def loop(request: pytest.FixtureRequest) -> VirtualLoop:
    return VirtualLoop(7, Order(7, request.param))


def run(loop: VirtualLoop, main: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(main)


def test_time_passes_when_nothing_is_ready(loop: VirtualLoop) -> None:
    async def main() -> float:
        began = loop.time()
        await asyncio.gather(asyncio.sleep(3_600), asyncio.sleep(60))
        return loop.time() - began

    assert 3_600 <= run(loop, main()) < 3_601


def test_what_waits_for_ever_is_told(loop: VirtualLoop) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(loop, main())


def test_a_process_that_computes_holds_up_itself_and_nobody_else(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def ticks(name: str, busy: float) -> int:
        began = loop.time()
        loop.spend(busy)
        await asyncio.sleep(0)
        seen.append((name, round(loop.time() - began)))
        return 0

    async def main() -> None:
        slow, quick = Process(loop, "slow"), Process(loop, "quick")
        slow.start(ticks("slow", 5.0))
        quick.start(ticks("quick", 0.0))
        assert [await slow.wait(), await quick.wait()] == [0, 0]

    run(loop, main())
    assert seen == [("quick", 0), ("slow", 5)]


def test_a_killed_process_does_nothing_more_and_a_stopped_one_goes_on_later(loop: VirtualLoop) -> None:
    done: list[str] = []

    async def work(name: str) -> int:
        try:
            await asyncio.sleep(1)
            done.append(name)
        finally:
            done.append(f"end of {name}")
        return 0

    async def main() -> tuple[int, int]:
        killed, stopped = Process(loop, "killed"), Process(loop, "stopped")
        for process in (killed, stopped):
            process.start(work(process.name))
        await asyncio.sleep(0.5)
        killed.signal(signal.SIGKILL)
        stopped.signal(signal.SIGSTOP)
        await asyncio.sleep(10)
        assert done == []
        stopped.signal(signal.SIGCONT)
        return await killed.wait(), await stopped.wait()

    assert run(loop, main()) == (-9, 0)
    assert done == ["stopped", "end of stopped"]


def test_bytes_arrive_in_order_and_a_dead_end_is_seen(loop: VirtualLoop) -> None:
    heard, ends = bytearray(), []

    class Hearing(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            heard.extend(data)

        def eof_received(self) -> None:
            ends.append("end")

    async def serve(address: list[int]) -> int:
        server = await loop.create_server(Hearing, "127.0.0.1", 0)
        address.append(server.sockets[0].getsockname()[1])
        await asyncio.sleep(60)
        return 0

    async def send(address: list[int]) -> int:
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", address[0])
        for number in range(200):
            transport.write(number.to_bytes(2, "big") * 3)
            await asyncio.sleep(0.001)
        await asyncio.sleep(60)
        return 0

    async def main() -> None:
        address: list[int] = []
        server, client = Process(loop, "server"), Process(loop, "client")
        server.start(serve(address))
        await asyncio.sleep(0.1)
        client.start(send(address))
        await asyncio.sleep(5)
        assert bytes(heard) == b"".join(n.to_bytes(2, "big") * 3 for n in range(200)) and not ends
        client.signal(signal.SIGKILL)
        await asyncio.sleep(1)
        assert ends == ["end"]
        server.signal(signal.SIGKILL)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(asyncio.Protocol, "127.0.0.1", address[0])
        assert server.state == DEAD

    run(loop, main())


def test_a_thread_ends_its_call_when_the_caller_is_cancelled(loop: VirtualLoop) -> None:
    done: list[int] = []

    async def main() -> None:
        for number in range(20):
            task = loop.create_task(asyncio.to_thread(done.append, number))
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(1)

    run(loop, main())
    assert sorted(done) == sorted(set(done)) and len(done) >= 10
