"""Connections to the brokers of one cluster, named by purpose; who the brokers are, and which one coordinates what.

One rule: a request is sent over the connection of its purpose and broker, and waits behind no other purpose's: a broker
answers the requests of one connection in their order, so a long poll would hold a commit back. aiokafka gives the
connection itself (framing, TLS, SASL); requests come from `requests.py` and `fetch.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1

from state.errors import LogUnavailable, LogUnusable, StateError, UnfitRecord, UnknownTopic
from state.log.kafka import rights
from state.log.kafka.access import Access, AccessRefused, Connection
from state.log.kafka.codes import RETRIED, KafkaRefused, Then, Unreachable, check
from state.log.kafka.lookout import Lookout
from state.log.kafka.properties import BadClientConfig
from state.log.kafka.quotas import Quotas
from state.log.kafka.requests import metadata
from state.log.kafka.rights import on
from state.log.protocol import MayWrite, always

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1  # kinds of coordinators, as FindCoordinator numbers them
ANSWER_WITHIN_S = 30.0  # how long a request is tried again: longer than a broker's restart
_OTHERS_AT_ONCE = 4
_SHUNNED_S = 1.0  # how long another broker is asked rather than one that was away
_STARTING_S = 10.0  # how long a broker that answers may know of none
_PAUSE_S, _PAUSE_MAX_S, _PAUSE_UNREACHABLE_S = 0.001, 0.020, 0.100


class TooLate(Exception):
    """The sender may write no more by its own clock: this request was not sent; what was sent before may have arrived."""


class NotSpoken(LogUnusable):
    """The broker does not know a request, or not in the version that is needed."""


def is_answer(error: Exception) -> bool:
    """Whether brokers have answered what ended with this error, or were never sent it. What else ends a request, an address that does
    not let this client in, say, tells nothing of an earlier try."""
    return isinstance(error, KafkaRefused | NotSpoken | UnfitRecord | UnknownTopic)


class _Ended(Exception):
    """A broker ended a connection that it had spoken over."""


def _why(error: Exception) -> str:
    silent = isinstance(error, TimeoutError)  # its text is empty
    return "nothing answers" if silent else str(error) or type(error).__name__


class _Exact:
    """Has aiokafka send a request in the version that it is written for. `address`: of the broker, for the error."""

    def __init__(self, request: Any, address: str) -> None:
        self._request = request
        self._address = address

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        key, version = self._request.API_KEY, self._request.API_VERSION
        lowest, highest = versions.get(key, (0, -1))
        if not lowest <= version <= highest:
            what = f"request {key} ({type(self._request).__name__.partition('Request')[0]})"
            spoken = f"speaks versions {lowest} to {highest} of {what}" if key in versions else f"does not speak {what}"
            raise NotSpoken(
                f"the Kafka broker at {self._address} {spoken}, and version {version} is needed: use a broker of Kafka 3.9 or 4.x"
            )
        return self._request


class Connections:
    """See the module text. Raises Unreachable where nothing answers; nothing is tried twice here but in `retried`."""

    def __init__(self, bootstrap: Sequence[tuple[str, int]], access: Access) -> None:
        self._bootstrap = list(bootstrap)
        self._access = access
        self._let_in: set[tuple[str, int]] = set()  # addresses that have taken these credentials
        self._nodes: dict[int, tuple[str, int]] = {}
        self._open: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Lock] = {}
        self._had: set[tuple[int, str]] = set()
        self.made_anew = 0  # connections that had ended
        self.when_made_anew: Callable[[], None] | None = None
        self._shunned: dict[int, float] = {}  # until when, by the loop's clock
        self._lookout = Lookout(self._known_to_others)
        self._quotas = Quotas()
        self._coordinators: dict[tuple[int, str], int] = {}
        self.cluster_id = ""
        self.closed = False

    @property
    def where(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._bootstrap)

    async def start(self) -> None:
        """Find the brokers. Raises LogUnavailable where none of those named answers."""
        failed: list[str] = []
        refused: AccessRefused | None = None
        for host, port in self._bootstrap:
            try:
                try:
                    await self._begin(host, port)
                except _Ended:
                    await self._begin(host, port, again=True)
                return
            except AccessRefused as error:
                refused = refused or error
            except (OSError, KafkaError, TimeoutError, Unreachable) as error:
                failed.append(f"{host}:{port}: {_why(error)}")
        if refused is not None:
            raise refused
        raise self._no_answer(failed)

    def _no_answer(self, failed: list[str]) -> LogUnavailable:
        return LogUnavailable(
            f"no Kafka broker answers ({'; '.join(failed)}): start it, or check the address, and the protocol and "
            "credentials it asks for"
        )

    async def reach(self) -> None:
        """Connect to one of the brokers by the address that they tell: it need not be one that was named, nor one that leads anywhere
        from here. Raises LogUnavailable where none of them answers, AccessRefused."""
        first, *others = random.sample(self.nodes(), len(self._nodes))
        failed = [await self._missed(first)]
        if failed[0] is not None:
            failed += await asyncio.gather(*map(self._missed, others[:_OTHERS_AT_ONCE]))
        missed = [error for error in failed if error is not None]
        if len(missed) < len(failed):
            return
        for error in missed:
            if isinstance(error, AccessRefused):
                raise error
        if self._let_in.issuperset(self._nodes.values()):  # each was connected to a moment ago
            raise self._no_answer(list(map(str, missed))) from missed[0]
        raise LogUnavailable(
            f"kafka://{self.where} answers, and names its brokers at addresses that cannot be reached from here "
            f"({'; '.join(map(str, missed))}): correct advertised.listeners of the brokers, or make these addresses lead to them"
        ) from missed[0]

    async def _missed(self, node: int) -> Exception | None:
        """Why a broker cannot be connected to; None where it can."""
        try:
            await self._to(node, "quick")
        except AccessRefused as error:
            return error
        except (OSError, KafkaError, TimeoutError, Unreachable) as error:
            return Unreachable(f"{self._address(node)}: {_why(error)}")
        return None

    def _address(self, node: int) -> str:
        host, port = self._nodes.get(node, ("?", 0))
        return f"{host}:{port}"

    async def _begin(self, host: str, port: int, *, again: bool = False) -> None:
        """Learn of the brokers from the one at this address. Raises AccessRefused, what says that it is away, and _Ended
        where that is not clear yet: a broker that stops ends connections, too."""
        connection = await self._connect(host, port)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _STARTING_S
        try:
            request = _Exact(metadata([]), f"{host}:{port}")
            self.learn(await connection.send(request))
            while not self._nodes and loop.time() < deadline:  # one that has just started knows of none
                await asyncio.sleep(_PAUSE_UNREACHABLE_S)
                self.learn(await connection.send(request))
        except (OSError, KafkaError, TimeoutError) as error:
            why = await self._access.refusal(error, host, port, spoke=True)
            if why is None:
                raise
            raise AccessRefused(why) if again else _Ended from error
        finally:
            connection.close()
        self._let_in.add((host, port))
        if not self._nodes:
            raise ConnectionError("it answers, and knows of no broker of its cluster")

    def learn(self, answer: Any) -> None:
        """Take brokers and the cluster's id from a metadata answer."""
        if answer.brokers:
            self._nodes = {node: (host, port) for node, host, port, _, _ in answer.brokers}
            self.cluster_id = answer.cluster_id or ""

    def held_back_s(self) -> float:
        """See Quotas."""
        return self._quotas.held_back_s()

    async def close(self) -> None:
        self.closed = True
        self._lookout.close()
        for connection in self._open.values():
            connection.close()
        self._open.clear()
        await asyncio.sleep(0)  # their transports close in the next round of the loop

    def close_purpose(self, purpose: str) -> None:
        """Close the connections of one purpose: of a reader that ends."""
        for key in [key for key in self._open if key[1] == purpose]:
            self._open.pop(key).close()
            self._had.discard(key)
        for key in [key for key, lock in self._opening.items() if key[1] == purpose and not lock.locked()]:
            del self._opening[key]

    async def _connect(self, host: str, port: int) -> Connection:
        """Raises AccessRefused where the broker does not let this client in, what says that it is away, and before one let it in
        BadClientConfig and LogUnavailable where there is no token."""
        try:
            made = Connection(host, port, **self._access.options())
            await made.connect()
            return made
        except (BadClientConfig, LogUnavailable) as error:
            if not self._let_in:
                raise
            raise Unreachable(str(error)) from error  # it was there before, and may be written anew right now
        except (OSError, KafkaError, TimeoutError) as error:
            why = await self._access.refusal(error, host, port, spoke=False)
            if why is None:
                raise
            raise AccessRefused(why) from error

    async def _to(self, node: int, purpose: str) -> Connection:
        key = (node, purpose)
        found = self._open.get(key)
        if found is not None and found.connected():
            return found
        async with self._opening.setdefault(key, asyncio.Lock()):
            found = self._open.get(key)
            if found is None or not found.connected():
                if self.closed:
                    raise LogUnusable(f"the log kafka://{self.where} was closed by this process: open it again")
                if node not in self._nodes:
                    raise Unreachable(f"no broker {node} is known")
                address = self._nodes[node]
                try:
                    was_open = key in self._had
                    self._open[key] = found = await self._connect(*address)
                    self._had.add(key)
                    self.made_anew += was_open
                    if was_open and self.when_made_anew is not None:
                        self.when_made_anew()
                except AccessRefused as error:
                    if address not in self._let_in:
                        raise
                    raise Unreachable(str(error)) from error  # its credentials may be about to change
                self._let_in.add(address)
                self._shunned.pop(node, None)
        return found

    # ------------------------------------------------------------------ requests

    async def send(self, node: int, request: Any, purpose: str, may_write: MayWrite = always) -> Any:
        """The answer of one broker. Requests of one purpose are sent in the order of their calls, once it is open.
        `may_write` is asked last: nothing is waited for between its answer and the sending. Raises Unreachable, TooLate."""
        key = (node, purpose)
        scope = self._lookout.begin(node)
        try:
            async with scope:
                connection = self._open.get(key)
                if connection is None or not connection.connected():
                    connection = await self._to(node, purpose)
                if not may_write():
                    raise TooLate
                answer = await connection.send(_Exact(request, self._address(node)))
                self._quotas.look(node, self._address(node), answer)
                return answer
        except (OSError, KafkaError, TimeoutError, AssertionError) as error:
            if (broken := self._open.pop(key, None)) is not None:
                broken.close()
            self._shunned[node] = asyncio.get_running_loop().time() + _SHUNNED_S
            why = "the others do not know it any more" if scope.expired() else str(error) or type(error).__name__
            raise Unreachable(f"broker {node} at {self._address(node)} does not answer: {why}") from error
        finally:
            self._lookout.end(scope)

    async def _known_to_others(self, slow: Collection[int]) -> Collection[int] | None:
        """The brokers of the cluster, as one that is not slow has them; None where none answers."""
        others = [node for node in self._nodes if node not in slow]
        if not others:
            return None
        try:
            self.learn(await self.send(random.choice(others), metadata([]), "lookout"))
        except (Unreachable, StateError):
            return None
        return self.nodes()

    async def ask_any(self, request: Any, purpose: str = "quick") -> Any:
        """The answer of any broker."""
        return await self.send(self.any_node(), request, purpose)

    def nodes(self) -> list[int]:
        """The numbers of all brokers."""
        return list(self._nodes)

    def any_node(self) -> int:
        """A broker's number: of one that was not away a moment ago, where there is one."""
        now = asyncio.get_running_loop().time()
        there = [node for node in self._nodes if self._shunned.get(node, 0.0) <= now]
        return random.choice(there or list(self._nodes))

    async def metadata(self, names: Sequence[str] | None) -> Any:
        """Topics by name (all: None), from any broker."""
        answer = await self.ask_any(metadata(None if names is None else list(names)))
        self.learn(answer)
        return answer

    async def coordinator(self, kind: int, key: str) -> int:
        """The broker that coordinates a group or a transactional id; remembered until `forget`."""
        found = self._coordinators.get((kind, key))
        if found is None:
            answer = await self.ask_any(FindCoordinatorRequest_v1(key, kind))
            resource = rights.GROUP if kind == GROUP else rights.TRANSACTIONAL_ID
            check(
                f"the coordinator of {key}", answer.error_code, answer.error_message, on(resource, rights.DESCRIBE, key)
            )
            found = self._coordinators[kind, key] = answer.coordinator_id
        return found

    def forget(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def forget_if_moved(self, kind: int, key: str, refused: KafkaRefused) -> None:
        if refused.then is Then.COORDINATOR:
            self.forget(kind, key)

    async def coordinated(self, kind: int, key: str, request: Any, purpose: str, may_write: MayWrite = always) -> Any:
        """The answer of the coordinator of `key`; an answer with a code is the caller's."""
        node = await self.coordinator(kind, key)
        try:
            return await self.send(node, request, purpose, may_write)
        except Unreachable:
            self.forget(kind, key)
            raise

    async def retried(self, what: str, attempt: Callable[[], Awaitable[T]], *, within_s: float = ANSWER_WITHIN_S) -> T:
        """The answer of `attempt`, made again while brokers ask for it or are away. Raises what they refuse for good, LogUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        pause = _PAUSE_S
        while True:
            try:
                return await attempt()
            except KafkaRefused as error:
                if error.then not in RETRIED:
                    raise
                if loop.time() >= deadline:
                    raise LogUnavailable(str(error)) from error
                await asyncio.sleep(pause)
                pause = min(pause * (1.1 if error.then is Then.AGAIN else 1.5), _PAUSE_MAX_S)
            except Unreachable as error:
                if self.closed or loop.time() >= deadline:
                    raise LogUnavailable(
                        f"kafka://{self.where}: {what} was not answered for {within_s:.0f} s ({error}): start the "
                        "broker, or check the network; the request was given up"
                    ) from error
                await asyncio.sleep(_PAUSE_UNREACHABLE_S)
                await self._look_around()

    async def _look_around(self) -> None:
        """The brokers may be others by now."""
        try:
            await self.metadata([])
        except Unreachable:
            try:
                await self.start()
            except (LogUnavailable, AccessRefused):
                return
