"""The applications of lives, and what an oracle says of their outputs and tables.

One rule: every input record has an id, and every output names the ids it stands for, so that a lost or a doubled one
has a name. Processors that are slow, or hang, draw on the loop's time and no clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from orchestrator import App, Record, Sink, Table
from tests.process_simulation.fates import FATES_OF_LIFE

CLOSES = 4


class Payment(msgspec.Struct):
    id: int
    amount: int
    shop: str = "s"
    cost_ms: int = 0


def work(payment: Payment) -> None:
    """A call that computes."""
    seconds = payment.cost_ms / 1000 + FATES_OF_LIFE.meet(payment.id)
    if seconds:
        asyncio.get_running_loop().spend(seconds)  # type: ignore[attr-defined]


def settle(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    work(payment.value)
    balances[payment.key] += payment.value.amount
    receipts.send(payment.key, payment.value.id)


def settle_and_close(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    """A balance that comes to a multiple of four is closed: its key is deleted."""
    work(payment.value)
    balances[payment.key] += payment.value.amount
    if balances[payment.key] % CLOSES == 0:
        del balances[payment.key]
    receipts.send(payment.key, payment.value.id)


async def ask(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    before = balances[payment.key]
    try:
        await asyncio.sleep(payment.value.cost_ms / 1000 + FATES_OF_LIFE.meet(payment.value.id))
    except asyncio.CancelledError:
        FATES_OF_LIFE.undo(payment.value.id)
        raise
    balances[payment.key] = before + payment.value.amount
    receipts.send(payment.key, payment.value.id)


def settle_all(payments: Sequence[Record[str, Payment]], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    for payment in payments:
        work(payment.value)
        balances[payment.key] += payment.value.amount
        receipts.send(payment.key, payment.value.id)


def forward(payment: Record[str, Payment], receipts: Sink[str, int]) -> None:
    work(payment.value)
    receipts.send(payment.key, payment.value.id)


async def reach(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    """A call of a client that may be away, before it waits and after."""
    FATES_OF_LIFE.reach_client()
    await ask(payment, balances, receipts)
    FATES_OF_LIFE.reach_client()


def reach_at_once(payment: Record[str, Payment], balances: Table[str, int], receipts: Sink[str, int]) -> None:
    settle(payment, balances, receipts)
    FATES_OF_LIFE.reach_client()


def app_of(
    name: str,
    call: Any,
    *,
    policy: Any = "stop",
    batch: bool = False,
    stateless: bool = False,
    guarantee: Any = "exactly-once",
    **more: Any,
) -> App:
    """`call` reads payments, counts in balances, sends receipts. `policy`: "stop", "skip", or "letters" for dead letters."""
    app = App(name, partitions=4, guarantee=guarantee)
    payments = app.topic("payments", key=str, value=Payment)
    receipts = app.topic("receipts", key=str, value=int)
    places: list[Any] = [] if stateless else [app.table("balances", key=str, value=int, default=int)]
    on_error = app.topic("letters", key=str, value=Payment) if policy == "letters" else policy
    app.processor(payments, *places, receipts, batch=batch, on_error=on_error, **more)(call)
    return app


def shop_app() -> App:
    """The same behind a re-key: payments are added up by shop."""
    app = App("shopping", partitions=3)
    payments = app.topic("payments", key=str, value=Payment)
    by_shop = payments.rekey("by-shop", key=str, by=lambda payment: payment.value.shop)
    shops = app.table("balances", key=str, value=int, default=int)
    receipts = app.topic("receipts", key=str, value=int)
    app.processor(by_shop, shops, receipts)(settle)
    return app


counting = app_of("counting", settle)
asking = app_of("asking", ask)
shopping = shop_app()
batching = app_of("batching", settle_all, batch=True)
skipping = app_of("skipping", settle, policy="skip")
lettering = app_of("lettering", ask, policy="letters")
sifting = app_of("sifting", settle_all, policy="letters", batch=True)
forwarding = app_of("forwarding", forward, stateless=True)
AWAY: Any = {ConnectionError: "wait"}
reaching = app_of("reaching", reach, policy=AWAY, concurrency=3, retries=1, backoff=0.1)
overlapping = app_of("overlapping", ask, policy="letters", concurrency=8)
retrying = app_of("retrying", reach_at_once, policy=AWAY, retries=2, backoff=0.2)

repeating = app_of("repeating", settle, guarantee="at-least-once")

saving = app_of("saving", settle_and_close)

APPS: dict[str, App] = {
    app.id: app
    for app in (
        *(counting, asking, shopping, batching, skipping, lettering, sifting, forwarding),
        *(reaching, overlapping, retrying),
    )
}
AT_LEAST_ONCE = {"repeating": repeating}  # lives of their own: other plans draw from APPS as ever
RESTORING = {"saving": saving}  # lives of their own: they take snapshots, lose disks, and restore
ALL = {**APPS, **AT_LEAST_ONCE, **RESTORING}
ASYNC = ("asking", "lettering", "reaching", "overlapping")
POLICIES = {"skipping": "skip", "lettering": "letters", "sifting": "letters", "overlapping": "letters"}


def policy(application: str) -> str:
    return POLICIES.get(application, "stop")


@dataclass(frozen=True)
class Expected:
    """What a life must end with."""

    ids: frozenset[int]
    balances: dict[str, int]


def expected(
    application: str,
    sent: Sequence[tuple[str, Payment]],
    without: Collection[int] = (),
    again: Mapping[int, int] = MappingProxyType({}),
    before: Mapping[str, int] = MappingProxyType({}),
) -> Expected:
    """`without`: records that no processor has completed, as is right; `again`: how often one was put out once more, which
    its table counts as often: what was put out and what was written stand in one commit. `before`: balances that the life
    began with."""
    sums: Counter[str] = Counter(before)
    done = [(key, payment) for key, payment in sent if payment.id not in without]
    for key, payment in done:
        sums[payment.shop if application == "shopping" else key] += payment.amount * (1 + again.get(payment.id, 0))
        if application in RESTORING and sums[key] % CLOSES == 0:
            del sums[key]
    return Expected(frozenset(payment.id for _, payment in done), {} if application == "forwarding" else dict(sums))
