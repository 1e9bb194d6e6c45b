"""Brokers that answer commits as ever and write their markers when a test lets them: the moment that hand-overs must not meet
by luck alone.

One rule: WriteTxnMarkers is held and nothing else, the request by which a transaction's coordinator has a leader write its
marker. A broker sends it to itself, too, over the listener between brokers; that one is advertised behind a proxy. What it
held is given on in order, so a broker sees a slow network and nothing worse.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from state.log.kafka import broker
from state.log.kafka.broker import Broker
from tests.contracts.logs import DEADLINE_S

WRITE_TXN_MARKERS = 27
BROKERS = 2
_CHUNK = 65_536
_head = struct.Struct(">ih")  # length of what follows, key of the request


class Markers:
    """The proxy before the listener between brokers; threads of its own, so that it goes on while a test waits."""

    def __init__(self, near: int, far: int, changed: threading.Condition) -> None:
        self._far = far
        self._changed = changed
        self._holds = False
        self.waiting = 0
        self.delay_s = 0.0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", near))
        self._ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self.release()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def hold(self) -> None:
        """From now on no marker is written."""
        with self._changed:
            self._holds = True

    def release(self) -> None:
        with self._changed:
            self._holds = False
            self._changed.notify_all()

    # ------------------------------------------------------------------ bytes

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._far))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for carry, one, other in ((self._requests, near, far), (self._answers, far, near)):
                    threading.Thread(target=carry, args=(one, other), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError), near.makefile("rb") as frames:
            while len(head := frames.read(_head.size)) == _head.size:
                length, key = _head.unpack(head)
                rest = frames.read(length - 2)
                if key == WRITE_TXN_MARKERS:
                    self._wait()
                far.sendall(head + rest)
        _end(far)

    def _answers(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(_CHUNK):
                near.sendall(data)
        _end(near)

    def _wait(self) -> None:
        with self._changed:
            self.waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._holds)
            self.waiting -= 1
        self._ended.wait(self.delay_s)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class Late:
    """Two brokers without replicas: a transaction's partitions lie on both, and each one's markers can be held alone. `second_votes`
    False: the first one alone decides who of them is there, so that it goes on without the second."""

    def __init__(self, folder: Path, version: str = broker.VERSION, *, second_votes: bool = True) -> None:
        taken: set[int] = set()
        ports = [_port(taken) for _ in range(BROKERS)]
        between = [_port(taken) for _ in range(BROKERS)]
        voting = ports if second_votes else ports[:1]
        voters = ",".join(f"{number}@127.0.0.1:{port + 1}" for number, port in enumerate(voting, 1))
        cluster = broker.identity()
        self.nodes: list[Broker] = []
        for number, (port, near) in enumerate(zip(ports, between, strict=True), 1):
            settings = {"node.id": str(number), "controller.quorum.voters": voters, **_listeners(port, near)}
            if number > len(voting):
                listeners = settings["listeners"].replace(f",CONTROLLER://127.0.0.1:{port + 1}", "")
                settings |= {"process.roles": "broker", "listeners": listeners}
            made = broker.prepare(folder / f"broker{number}", port, version=version, settings=settings, cluster=cluster)
            self.nodes.append(made)
        self._changed = threading.Condition()
        self.markers = [Markers(near, near + 1, self._changed) for near in between]

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def launch(self) -> None:
        with ThreadPoolExecutor() as pool:  # neither answers before both are there
            for launching in [pool.submit(node.launch) for node in self.nodes]:
                launching.result()

    def close(self) -> None:
        for markers in self.markers:
            markers.close()
        for node in self.nodes:
            node.stop(kill=True)

    @contextmanager
    def held(self, *nodes: int) -> Iterator[None]:
        """The markers of the brokers with these numbers (from 1 on), or of all, wait until the end of the block."""
        chosen = [self.markers[node - 1] for node in nodes] or self.markers
        for one in chosen:
            one.hold()
        try:
            yield
        finally:
            for one in chosen:
                one.release()

    def are_held(self) -> None:
        """Waits until markers are."""
        with self._changed:
            waiting = self._changed.wait_for(lambda: any(one.waiting for one in self.markers), DEADLINE_S)
        assert waiting, "no marker was to be written"

    def delay(self, seconds: float) -> None:
        """Each marker is written so much later: every commit is answered before its own."""
        for one in self.markers:
            one.delay_s = seconds


def _port(taken: set[int]) -> int:
    while (found := broker.free_port()) in taken:
        continue
    taken.add(found)
    return found


def _listeners(port: int, near: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1},BETWEEN://127.0.0.1:{near + 1}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},BETWEEN://127.0.0.1:{near}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BETWEEN:PLAINTEXT",
        "inter.broker.listener.name": "BETWEEN",
    }
