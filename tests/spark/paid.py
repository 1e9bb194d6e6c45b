"""Payments of a bank, what the Driver makes of them, and what the changelog of a log has: what jobs on clusters are compared by."""

from __future__ import annotations

import asyncio
import json
import random

from examples import bank
from orchestrator.clocks import wall_ms
from orchestrator.testing import Driver
from workers.commands.consume import read_all
from workers.log.logs import open_log

Paid = list[tuple[str, int]]


def paid(count: int) -> Paid:
    """Accounts and amounts."""
    choice = random.Random(16)
    return [(f"account-{choice.randrange(200)}", choice.randrange(-50, 60)) for _ in range(count)]


def driven(rows: Paid) -> dict[str, int]:
    """The balances by the Driver."""
    with Driver(bank.app) as here:
        for account, amount in rows:
            here.send(bank.payments, account, bank.Payment(account, amount))
        return dict(here.table(bank.balances))


def balances(url: str) -> dict[str, int]:
    """The balances as a changelog has them. Not for a running event loop."""
    return asyncio.run(_balances(url))


async def _balances(url: str) -> dict[str, int]:
    found: dict[str, int] = {}
    log = await open_log(url, create=False)
    try:
        for _, record in await read_all(log, "bank-balances-changelog"):
            found[record.key.decode()] = bank.balances.value_codec.decode(record.value)
    finally:
        await log.close()
    return found


def lines(rows: Paid) -> str:
    """As a file of history has them: of today, as a broker removes outputs that are older than its topics keep them."""
    begun = wall_ms() - len(rows)
    return "".join(
        f"{json.dumps({'key': account, 'value': {'account': account, 'amount': amount}, 'timestamp_ms': begun + at})}\n"
        for at, (account, amount) in enumerate(rows, 1)
    )
