"""The brokers of a life: one, or three with three replicas of everything, and a listener of their own for each machine.

One rule: a broker tells its clients the addresses of the listener that they came over, so each machine speaks to every
broker through its own proxies, and the harness, which is never partitioned, past them.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from state.log.kafka import broker
from state.log.kafka.broker import Broker
from tests.chaos.link import Link
from tests.kafka.three_replicas import REPLICAS


class Brokers:
    """Prepared and not started. `machines` are the names of those that get a link."""

    def __init__(self, folder: Path, count: int, machines: list[str], version: str, choice: random.Random) -> None:
        taken: set[int] = set()
        ports = [_port(taken) for _ in range(count)]
        pairs = {name: [(port + 1, port) for port in (_port(taken) for _ in range(count))] for name in machines}
        self.links = {name: Link(pairs[name], choice) for name in machines}
        cluster = broker.identity()
        voters = ",".join(f"{number}@127.0.0.1:{port + 1}" for number, port in enumerate(ports, 1))
        self.nodes: list[Broker] = []
        for number, port in enumerate(ports, 1):
            settings = {"node.id": str(number), "controller.quorum.voters": voters, **(REPLICAS if count > 1 else {})}
            settings |= _listeners(port, {name: pairs[name][number - 1] for name in machines})
            self.nodes.append(
                broker.prepare(folder / f"broker{number}", port, version=version, settings=settings, cluster=cluster)
            )

    @property
    def url(self) -> str:
        return f"kafka://{','.join(node.address for node in self.nodes)}"

    def url_of(self, machine: str) -> str:
        return f"kafka://{','.join(self.links[machine].addresses)}"

    async def start(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.launch) for node in self.nodes))
        for link in self.links.values():
            await link.open()

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()
        for node in self.nodes:
            node.stop(kill=True)


def _port(taken: set[int]) -> int:
    while (found := broker.free_port()) in taken:
        continue
    taken.add(found)
    return found


def _listeners(port: int, machines: dict[str, tuple[int, int]]) -> dict[str, str]:
    """One for each machine behind its proxy, beside the plain one and the controller's."""
    own = f"PLAINTEXT://127.0.0.1:{port}"
    behind = {name.upper(): (near, far) for name, (near, far) in machines.items()}
    return {
        "listeners": ",".join(
            [own, f"CONTROLLER://127.0.0.1:{port + 1}", *(f"{n}://127.0.0.1:{far}" for n, (_, far) in behind.items())]
        ),
        "advertised.listeners": ",".join([own, *(f"{n}://127.0.0.1:{near}" for n, (near, _) in behind.items())]),
        "listener.security.protocol.map": ",".join(f"{n}:PLAINTEXT" for n in ("PLAINTEXT", "CONTROLLER", *behind)),
    }
