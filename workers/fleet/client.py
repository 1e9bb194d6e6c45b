"""A client of a running group: finds the coordinator through the lease and asks it.

One rule: a client never creates a log, and adds nothing: it prints what the coordinator answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.clocks import monotonic_ms
from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.handshake import Credentials, NothingProven
from orchestrator.coordinator.requests import Request, StatusRequest
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.transport import connect
from orchestrator.errors import RefusedBySafety, TimedOut, WrongUse
from state.log.group_store import GroupStore
from state.log.protocol import GroupLog
from workers.connection.asking import Unanswered, ask_over
from workers.connection.credentials import client_credentials
from workers.fleet.presence import is_here, may_be_looked_after
from workers.log.logs import log_path, log_url, open_log
from workers.prepare import DESCRIPTION

FIND_S, ALONE_S, ELSEWHERE_S = 8.0, 1.5, 5.0


def application_of(app: str) -> str:
    """APP as given: MODULE:APP is imported for its id, anything else is the id."""
    if ":" in app:
        from pipeline.loading import load

        return load(app).id
    return app


@asynccontextmanager
async def log_of(args: Any) -> AsyncIterator[tuple[str, GroupLog, str]]:
    """(application id, its log, the log's URL) from the options of a command. Raises WrongUse where there is none."""
    application = application_of(args.app)
    found = log_url(args, application, existing=True)
    log = await open_log(found, create=False)
    try:
        yield application, log, found
    finally:
        await log.close()


@asynccontextmanager
async def client_of(args: Any) -> AsyncIterator[tuple[str, GroupLog, Client]]:
    """(application id, its log, a client of its group) from the options of a command. Raises WrongUse where there is no
    log; the secret is read when the group is asked."""
    async with log_of(args) as (application, log, url):
        client = Client(log, application, lambda: client_credentials(application, url, args), url)
        try:
            yield application, log, client
        finally:
            await client.close()


async def description(log: GroupStore, application: str) -> dict[str, Any]:
    """What the log knows of the application. Raises WrongUse for one it does not know."""
    if (found := await _kept(log, application)) is not None:
        return found
    raise WrongUse(f"the log knows no application '{application}'; start it with `orchestrator run MODULE:APP`")


async def described_topics(log: GroupStore, application: str, app: str) -> dict[str, Any]:
    """The same for a command that reads topics, `app` as it was given: of an app that was reset, or has not run, as its code declares
    it. Raises WrongUse for one that neither has."""
    if (found := await _kept(log, application)) is not None:
        return found
    if ":" in app:
        from pipeline.loading import load

        return load(app).describe()
    raise WrongUse(
        f"the log knows no application '{application}': it has not run, or was reset; give MODULE:APP in place of the id to read its "
        "topics, or start it with `orchestrator run MODULE:APP`"
    )


async def _kept(log: GroupStore, application: str) -> dict[str, Any] | None:
    found = await log.metadata(application, DESCRIPTION, "app")
    return None if found is None else json.loads(found)


def table_of(described: Mapping[str, Any], table: str) -> dict[str, Any]:
    """What `description` has of a table. Raises WrongUse for one that is not there, or is of no task."""
    found: dict[str, Any] | None = described["tables"].get(table)
    if found is not None:
        return found
    if described["topics"].get(table, {}).get("is_global"):
        raise WrongUse(
            f"'{table}' is a global table, which each worker of '{described['id']}' has in memory and none is asked for: "
            f"`orchestrator consume {described['id']} {table}` prints the records that it is of"
        )
    known = ", ".join(sorted(described["tables"])) or "none"
    raise WrongUse(f"'{described['id']}' has no table '{table}'; it has {known}")


class Client:
    """Questions to the coordinator; finds it again when it moves."""

    def __init__(
        self, log: GroupStore, application: str, credentials: Callable[[], Credentials], log_url: str = ""
    ) -> None:
        self.log_url = log_url
        self._log = log
        self._application = application
        self._credentials = credentials  # read with the first connection: before that there may be no secret
        self._connection: Connection | None = None
        self._instances: dict[str, Connection] = {}  # by address

    async def ask(self, request: Request, *, retry_s: float = FIND_S) -> Any:
        """The answer, or the error that the coordinator gave with its exit code. Raises RefusedBySafety where no
        coordinator can be found within `retry_s`, TimedOut where one may yet do what it was asked for."""
        begun_ms = monotonic_ms()
        while True:
            try:
                return await self._ask(request)
            except Unanswered as error:
                await self.close()
                who = f"the coordinator of '{self._application}' {error}"
                if request.alters:  # it has been sent, and may wait for the log
                    raise TimedOut(
                        f"{who}; it may do it yet, so look at `orchestrator status {self._application}` before you try again"
                    ) from None
                if monotonic_ms() - begun_ms >= 1000 * retry_s:  # else another one may have taken its place
                    raise RefusedBySafety(f"{who}; try again") from None
            except ConnectionEnded as error:
                await self.close()
                # With instances, a coordinator will be found in a moment; without any, there will be none.
                waited = (monotonic_ms() - begun_ms) / 1000
                app = self._application
                is_alone = waited >= ALONE_S and not await may_be_looked_after(self._log, app)
                if waited >= retry_s or is_alone:
                    if isinstance(error, NothingProven):
                        raise RefusedBySafety(
                            f"the coordinator of '{app}' does not take this connection: {error}"
                        ) from None
                    advice = (
                        f"instances were started, and none coordinates yet: wait for them with `orchestrator wait {app}`"
                        if waited >= ALONE_S and not is_alone
                        else "start it with `orchestrator run`"
                    )
                    raise RefusedBySafety(f"'{app}' has no coordinator ({error}); {advice}") from None
                await asyncio.sleep(0.1)

    async def _ask(self, request: Request) -> Any:
        if self._connection is None:
            lease = await self._log.lease(self._application)
            if lease is None:
                raise ConnectionEnded("it never had one")
            if (
                not lease.address
            ):  # of a backfill, which answers no requests, or a copy of the log, on which nobody has run
                raise ConnectionEnded("nobody that answers requests had its lease last")
            self._connection = await connect(lease.address, self._credentials())
        return await ask_over(self._connection, request)

    async def ask_instance(self, address: str, request: Request) -> Any:
        """What the instance that listens at `address` answers. Raises ConnectionEnded, and what it answers as an error."""
        connection = self._instances.get(address)
        if connection is None:
            connection = self._instances[address] = await connect(address, self._credentials())
        try:
            return await ask_over(connection, request)
        except ConnectionEnded:
            del self._instances[address]
            await connection.close()
            raise

    def require(self, right: Right) -> None:
        """For what a command does beside the coordinator. Raises RefusedBySafety."""
        self._credentials().secret.key_of(right)

    async def close(self) -> None:
        for connection in self._instances.values():
            await connection.close()
        self._instances.clear()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


async def host_elsewhere(client: Client, names: Collection[str]) -> str | None:
    """The other machine on which the group has an instance of one of these names; None where it has none, or the group has no
    coordinator."""
    try:
        async with asyncio.timeout(ELSEWHERE_S):
            status = await client.ask(StatusRequest(), retry_s=0.0)
    except (RefusedBySafety, TimeoutError, OSError):
        return None
    hosts = (row["host"] for row in status["instances"] if row["id"] in names and not is_here(row))
    return next(hosts, None)


async def elsewhere(client: Client, names: Collection[str]) -> str | None:
    """The same for who begins instances of such names, and asks no more."""
    if log_path(client.log_url) is not None:
        return None  # an embedded log is one machine's
    try:
        return await host_elsewhere(client, names)
    finally:
        await client.close()
