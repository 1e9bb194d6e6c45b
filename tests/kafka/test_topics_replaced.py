"""A topic on which a running app rests is deleted, or deleted and created again: the app ends before a task that moves is restored
from a changelog that is not its own, and nothing makes the topic anew beside the state that came from the one before."""

from __future__ import annotations

import asyncio
import json

import pytest

from state.log.protocol import Partition, TopicSpec
from tests.kafka.test_refusals import CHANGES, Bank, bank
from tests.kafka.test_refused_batches import set_

__all__ = ["bank"]
pytestmark = [pytest.mark.kafka, pytest.mark.processes]


def pay(bank: Bank, *accounts: str) -> int:
    lines = [json.dumps({"key": one, "value": {"account": one, "amount": 5}}) for one in accounts]
    return bank.console("produce", "bank:app", "payments", stdin="\n".join(lines)).code


def counted(bank: Bank, account: str) -> None:
    bank.console.until("the payment", lambda: bank.console("query", "bank", "balances", account).out == "5\n")


@pytest.mark.parametrize("topic", [CHANGES, "payments"])
async def test_a_topic_that_is_deleted_and_created_again_ends_the_app(bank: Bank, topic: str) -> None:
    """With nothing to process: no read and no commit finds out."""
    fleet = bank.console.start("run", "bank:app", "--instances", "2", name="run")
    assert bank.console("wait", "bank", "--instances", "2", "--timeout", "60s").code == 0
    assert pay(bank, "ann", "bob") == 0
    counted(bank, "ann")
    await bank.again(topic, "changelog" if topic == CHANGES else "plain")
    assert await asyncio.to_thread(fleet.wait, 30) == 1, bank.console.said("run")
    said = bank.console.said("run")
    assert "Traceback" not in said and f"topics accept bank {topic}`" in said, said
    bank.refused(f"{topic} was deleted and created again since the app ran")


async def test_a_changelog_that_is_deleted_is_not_made_anew_by_a_command(bank: Bank) -> None:
    """`produce` made it, and a task that moved was restored from it: all of its keys but those of new records were gone."""
    fleet = bank.console.start("run", "bank:app", "--instances", "2", name="run")
    assert bank.console("wait", "bank", "--instances", "2", "--timeout", "60s").code == 0
    assert pay(bank, "ann", "bob") == 0
    counted(bank, "ann")
    await bank.log.delete_topic(CHANGES)
    done = bank.console(
        "produce", "bank:app", "payments", stdin='{"key": "ann", "value": {"account": "ann", "amount": 1}}'
    )
    assert done.code == 3 and f"changelog {CHANGES} was deleted since the app ran" in done.err, done
    assert await bank.log.topics([CHANGES]) == {}
    moved = bank.console("scale-down", "bank", "--to", "1", "--wait", "--timeout", "30s")
    assert moved.code != 0, moved
    assert await asyncio.to_thread(fleet.wait, 30) == 1, bank.console.said("run")
    assert f"changelog {CHANGES} was deleted while the app ran" in bank.console.said("run")
    bank.refused(f"changelog {CHANGES} was deleted since the app ran")


async def test_a_worker_that_comes_back_finds_another_changelog(bank: Bank) -> None:
    """It is refused, where it wiped its store and went on with an empty table."""
    fleet = bank.console.start("run", "bank:app", name="run")
    assert bank.console("wait", "bank", "--instances", "1", "--timeout", "60s").code == 0
    assert pay(bank, "ann") == 0
    counted(bank, "ann")
    await bank.log.delete_topic(CHANGES)
    bank.kill_worker()
    assert await asyncio.to_thread(fleet.wait, 30) in (1, 3), bank.console.said("run")
    assert f"changelog {CHANGES} was deleted" in bank.console.said("run")
    assert await bank.log.topics([CHANGES]) == {}
    await bank.log.create_topic(TopicSpec(CHANGES, 8, "changelog"))
    bank.refused(f"changelog {CHANGES} was deleted and created again since the app ran")


async def emptied(bank: Bank) -> None:
    """Of all that the changelog held, as by a cleanup.policy of delete for a while; it is compacted again behind that."""
    kept = {"cleanup_policy": "compact", "segment_ms": "604800000"}
    await set_(bank.place, CHANGES, **{**kept, "cleanup_policy": "compact,delete"})
    changes = [Partition(CHANGES, number) for number in range(8)]
    await bank.log.trim(await bank.log.ends(changes, settled=True))
    await set_(bank.place, CHANGES, **kept)
    assert (await bank.log.topics([CHANGES]))[CHANGES].kind == "changelog"
    assert sum((await bank.log.starts(changes)).values()) > 0


async def test_a_changelog_that_was_emptied_wipes_no_store_and_fills_none(bank: Bank) -> None:
    """Each store stood a marker before where its changelog began then: it was wiped, and the tables went on with nothing. A
    scale-up restored from what was left, and took tasks from the owner that had all."""
    fleet = bank.console.start("run", "bank:app", "--log-level", "WARNING", name="run")
    assert bank.console("wait", "bank", "--instances", "1", "--timeout", "60s").code == 0
    assert pay(bank, *(f"a{n}" for n in range(30))) == 0
    bank.console.until(
        "all payments", lambda: len(bank.console("table", "scan", "bank", "balances").out.splitlines()) == 30
    )
    await emptied(bank)
    grown = bank.console("scale-up", "bank", "--by", "1", "--wait", "--timeout", "12s")
    assert grown.code == 4, grown
    assert f"changelog {CHANGES}-" in bank.console.said("run") and "no store lies here" in bank.console.said("run")
    assert len(bank.console("table", "scan", "bank", "balances").out.splitlines()) == 30
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 30) in (0, 143)
    refused = bank.console("repartition", "bank:app", "--to", "12")
    assert refused.code == 3 and f"changelog {CHANGES}-0 begins at" in refused.err, refused

    again = bank.console.start("run", "bank:app", name="again")
    bank.console.until("a line", lambda: f"topics accept bank {CHANGES}`" in bank.console.said("again"))
    bank.console.until("why", lambda: " does not run: table balances, " in bank.console("status", "bank").out)
    again.terminate()
    await asyncio.to_thread(again.wait, 30)
    taken = bank.console("topics", "accept", "bank", CHANGES)
    assert taken.code == 0 and "30 entries that it lacked were written back" in taken.out, taken
    bank.console.start("run", "bank:app", name="taken")
    assert bank.console("wait", "bank", "--instances", "1", "--timeout", "60s").code == 0
    grown = bank.console("scale-up", "bank", "--by", "1", "--wait", "--timeout", "60s")
    assert grown.code == 0, grown
    assert pay(bank, *(f"a{n}" for n in range(30))) == 0
    for n in range(30):
        bank.console.until("both", lambda n=n: bank.console("query", "bank", "balances", f"a{n}").out == "10\n")


async def test_an_input_that_others_give_more_partitions_ends_the_app_and_a_repartition_goes_on(bank: Bank) -> None:
    """It went on with a warning, and counted keys where their state was not as soon as producers knew of the new partitions."""
    fleet = bank.console.start("run", "bank:app", "--instances", "2", name="run")
    assert bank.console("wait", "bank", "--instances", "2", "--timeout", "60s").code == 0
    assert pay(bank, *(f"a{n}" for n in range(30))) == 0
    counted(bank, "a29")
    await bank.log.grow_topic("payments", 12)
    assert await asyncio.to_thread(fleet.wait, 30) == 1, bank.console.said("run")
    said = bank.console.said("run")
    assert (
        "Traceback" not in said
        and "topic payments was given 12 partitions while the app ran, and state lies by 8" in said
    ), said
    bank.refused("`orchestrator repartition MODULE:APP --to` their number")
    done = await asyncio.to_thread(bank.console, "repartition", "bank:app", "--to", "12")
    assert done.code == 0 and "8 -> 12 partitions" in done.out, done
    bank.console.start("run", "bank:app", "--instances", "2", name="again")
    assert bank.console("wait", "bank", "--instances", "2", "--timeout", "60s").code == 0
    assert pay(bank, *(f"a{n}" for n in range(30))) == 0
    for n in range(30):
        bank.console.until(
            "both payments", lambda n=n: bank.console("query", "bank", "balances", f"a{n}").out == "10\n"
        )


PRICED = """
from collections.abc import Mapping

from orchestrator import App, Record, Sink

app = App("bank", partitions=1)
orders = app.topic("orders", key=str, value=str)
priced = app.topic("priced", key=str, value=str)
rates = app.global_table(app.topic("rates", key=str, value=int))


@app.processor(orders, rates, priced)
def price(order: Record[str, str], rates: Mapping[str, int], priced: Sink[str, str]) -> None:
    priced.send(order.key, f"{order.value} {rates.get(order.value)}")
"""


async def test_the_topic_of_a_global_table_that_is_created_again_ends_the_app(bank: Bank) -> None:
    """Its rows were those of the topic before, and lacked as many of the new one as had been read."""
    bank.console.write("bank.py", PRICED)

    def priced(order: str, value: str) -> None:
        done = bank.console("produce", "bank:app", "orders", stdin=json.dumps({"key": order, "value": value}))
        assert done.code == 0, done
        bank.console.until(order, lambda: f'"{order}"' in bank.console("consume", "bank", "priced").out)

    def rate(**rates: int) -> None:
        lines = [json.dumps({"key": key, "value": value}) for key, value in rates.items()]
        done = bank.console("produce", "bank:app", "rates", stdin="\n".join(lines))
        assert done.code == 0, done

    fleet = bank.console.start("run", "bank:app", name="run")
    assert bank.console("wait", "bank", "--instances", "1", "--timeout", "60s").code == 0
    rate(eur=1, usd=2)
    priced("one", "usd")
    await bank.log.delete_topic("rates")
    await bank.log.create_topic(TopicSpec("rates", 1))
    assert await asyncio.to_thread(fleet.wait, 30) == 1, bank.console.said("run")
    said = bank.console.said("run")
    assert "topic rates of a global table was deleted" in said and "start it again" in said, said
    fleet = bank.console.start("run", "bank:app", name="run")
    assert bank.console("wait", "bank", "--instances", "1", "--timeout", "60s").code == 0
    rate(chf=3)
    priced("two", "chf")
    priced("three", "usd")
    out = bank.console("consume", "bank", "priced").out
    assert all(text in out for text in ("usd 2", "chf 3", "usd None")), out
