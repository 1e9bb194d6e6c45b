"""What an app must not go on with is refused in one line, on a real broker: topics that are others by now, positions that
are gone, facts that were deleted, a topic under a changelog's name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.admin import DeleteGroupsRequest_v1

from state.log.kafka import broker
from state.log.kafka.broker import Broker
from state.log.kafka.connections import GROUP
from state.log.kafka.log import KafkaLog
from state.log.kafka.requests import OffsetCommitRequest_v7
from state.log.protocol import Partition, TopicSpec
from tests import brokers
from tests.cli.console import Console, Done
from tests.contracts.logs import records, until
from tests.kafka.place import Place

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
CHANGES = "bank-balances-changelog"


class Bank:
    """The bank that has run once, with its log."""

    def __init__(self, place: Place, console: Console, log: KafkaLog) -> None:
        self.place, self.console, self.log = place, console, log

    def run(self, payments: int) -> None:
        """From a start to an orderly stop; it processes this many payments."""
        rows = [json.dumps({"key": f"k{n}", "value": {"account": "a", "amount": -1}}) + "\n" for n in range(payments)]
        before = self.console("consume", "bank", "alerts").out.count("overdrawn")
        fleet = self.console.start("run", "bank:app", name="run")
        assert self.console("produce", "bank:app", "payments", stdin="".join(rows)).code == 0
        deadline = time.monotonic() + 60
        while self.console("consume", "bank", "alerts").out.count("overdrawn") < before + payments:
            assert time.monotonic() < deadline and fleet.poll() is None, self.console.said("run")
        fleet.terminate()
        assert fleet.wait(30) == 0, self.console.said("run")

    def refused(self, *texts: str) -> Done:
        done = self.console("run", "bank:app")
        assert done.code == 3 and done.err.count("\n") == 1, done
        assert all(text in done.err for text in texts), done.err
        return done

    async def again(self, topic: str, kind: str = "plain") -> None:
        """Delete the topic and create it anew."""
        await self.log.delete_topic(topic)
        await self.log.create_topic(TopicSpec(topic, 8, kind))

    async def forget_positions(self) -> None:
        group = self.place.prefix + "bank"

        async def gone() -> bool:
            connections = self.log._cluster.connections
            answer = await connections.coordinated(GROUP, group, DeleteGroupsRequest_v1([group]), "quick")
            return answer.results[0][1] in (0, 69)

        await until("the group to be gone", gone)

    async def set_positions(self, position: int) -> None:
        """As Kafka's tool for groups does it."""
        group, topic = self.place.prefix + "bank", self.place.prefix + "payments"
        rows = [(topic, [(number, position, -1, "") for number in range(8)])]
        request = OffsetCommitRequest_v7(group, -1, "", None, rows)
        answer = await self.log._cluster.connections.coordinated(GROUP, group, request, "quick")
        assert {code for _, numbers in answer.topics for _, code in numbers} == {0}

    def kill_worker(self) -> None:
        """Of the one instance."""
        os.kill(self.console("status", "bank", "--json").json["instances"][0]["pid"], signal.SIGKILL)


@pytest.fixture
async def bank(place: Place, tmp_path: Path) -> AsyncIterator[Bank]:
    console = Console(tmp_path / "place").bank()
    console.write("orchestrator.toml", f'log = "kafka://127.0.0.1:{place.port}?prefix={place.prefix}"\n')
    yield Bank(place, console, await place.open())
    console.close()


async def test_topics_that_are_others_by_now(bank: Bank) -> None:
    bank.run(5)
    await bank.again("payments")
    bank.refused("topic payments was deleted and created again since the app ran", "topics accept bank payments")
    assert bank.console("topics", "accept", "bank", "payments").code == 0
    bank.run(4)
    await bank.again(CHANGES, "changelog")
    bank.refused(f"changelog {CHANGES} was deleted and created again", "its table would be empty")
    await bank.log.delete_topic(CHANGES)
    bank.refused(f"changelog {CHANGES} was deleted since the app ran")
    await bank.again("alerts")  # an output is nobody's state
    assert bank.console("topics", "accept", "bank", CHANGES).code == 0
    bank.run(3)


async def test_positions_that_are_gone(bank: Bank) -> None:
    bank.run(20)
    await bank.forget_positions()
    bank.refused("the committed positions in payments-", "are gone", "offsets.retention.minutes")
    assert bank.console("topics", "accept", "bank", "payments").code == 0
    fleet = bank.console.start("run", "bank:app", name="run")
    deadline = time.monotonic() + 60
    while bank.console("consume", "bank", "alerts").out.count("overdrawn") < 40:
        assert time.monotonic() < deadline and fleet.poll() is None, bank.console.said("run")
    fleet.terminate()
    assert fleet.wait(30) == 0


async def test_positions_that_another_program_sets(bank: Bank) -> None:
    """A group without members takes them, also while the app runs: its tasks would count from there on a second time."""
    bank.run(20)
    await bank.set_positions(0)
    bank.refused("another program has set the committed positions in payments-0, ", "topics accept bank payments")
    assert bank.console("topics", "accept", "bank", "payments").code == 0
    bank.run(20)  # with the 20 before them, which are counted again
    assert bank.console("consume", "bank", "alerts").out.count("overdrawn") == 60

    fleet = bank.console.start("run", "bank:app", name="run")
    assert bank.console("wait", "bank", "--instances", "1").code == 0
    await bank.set_positions(0)
    bank.kill_worker()
    assert await asyncio.to_thread(fleet.wait, 30) == 1
    assert "another program has set the committed position in payments-" in bank.console.said("run")
    bank.refused("another program has set the committed positions in payments-0, ")
    assert bank.console("consume", "bank", "alerts").out.count("overdrawn") == 60


async def test_positions_that_are_set_behind_the_end(bank: Bank) -> None:
    """They were taken for those of the app, whose records the input had lost: the advice led past what was unread."""
    bank.run(20)
    await bank.set_positions(1_000)
    bank.refused(
        "another program has set the committed position in payments-0 to 1000, and it ends at ",
        "to where it is to go on",
    )


async def test_positions_that_are_deleted_while_it_runs(bank: Bank) -> None:
    bank.run(20)
    fleet = bank.console.start("run", "bank:app", name="run")
    assert bank.console("wait", "bank", "--instances", "1").code == 0
    await bank.forget_positions()
    bank.kill_worker()
    assert await asyncio.to_thread(fleet.wait, 30) == 1
    said = bank.console.said("run")
    assert "the committed position in payments-" in said and "was deleted while the app ran" in said
    bank.refused("the committed positions in payments-", "are gone")
    assert bank.console("consume", "bank", "alerts").out.count("overdrawn") == 20


async def test_an_input_whose_name_was_mistyped(bank: Bank) -> None:
    """It is not created beside the one that is meant; one that differs by a number is, and so is any with `topics create`."""
    await bank.log.create_topic(TopicSpec("payments", 8))
    text = (bank.console.folder / "bank.py").read_text()
    for name in ("payment", "payments2"):
        bank.console.write(f"{name}.py", text.replace('App("bank"', f'App("{name}"').replace('"payments"', f'"{name}"'))
    record = json.dumps({"key": "ann", "value": {"account": "ann", "amount": 1}})
    for words in (("run", "payment:app"), ("produce", "payment:app", "payment")):
        done = bank.console(*words, stdin=record)
        assert done.code == 2 and done.err.count("\n") == 1, done
        assert "reads topic payment, which is not there; did you mean payments?" in done.err, done
    assert await bank.log.names() == ["payments"]  # nor is the topic of its facts
    for name in ("payment", "payments2"):
        if name == "payment":
            assert bank.console("topics", "create", "payment:app").code == 0
        assert bank.console("produce", f"{name}:app", name, stdin=record).code == 0


async def test_a_first_start_that_does_not_fit_makes_nothing(bank: Bank) -> None:
    await bank.log.create_topic(TopicSpec("bank-balances-changelog", 3, "changelog"))
    done = bank.console("run", "bank:app")
    assert done.code == 3 and "bank-balances-changelog has 3" in done.err, done
    assert await bank.log.names() == ["bank-balances-changelog"]


async def test_a_backfill_of_what_was_mistyped_makes_nothing(bank: Bank) -> None:
    for words, said in (
        (("paymets=history.jsonl",), "'paymets' is no input of 'bank'; its inputs are payments"),
        (("payments=histroy.jsonl",), "no file is called histroy.jsonl"),
        ((), "there is nothing to read"),
    ):
        done = bank.console("backfill", "bank:app", *words)
        assert done.code == 2 and done.err.count("\n") == 1 and said in done.err, done
        assert not await bank.log.names(), words


async def test_an_input_of_a_new_version_is_not_made_by_a_start(bank: Bank) -> None:
    """A name that resembles no topic. What the first start makes is said; `topics create` makes what is meant."""
    first = bank.console.start("run", "bank:app", name="first")
    bank.console.until("it runs", lambda: "1 instance," in bank.console.said("first"))
    assert "topic payments is made now, as nobody has written to it" in bank.console.said("first")
    first.terminate()
    assert first.wait(30) == 0
    text = (bank.console.folder / "bank.py").read_text()
    bank.console.write("bank.py", text.replace('"payments"', '"tx.of.all.accounts"'))
    done = bank.console("run", "bank:app")
    assert done.code == 2 and done.err.count("\n") == 1, done
    assert "reads topic tx.of.all.accounts, which is not there, and nobody writes it" in done.err, done
    assert await bank.log.topics(["tx.of.all.accounts"]) == {}
    assert bank.console("topics", "create", "bank:app").code == 0
    assert (await bank.log.topics(["tx.of.all.accounts"])).keys() == {"tx.of.all.accounts"}


async def test_an_input_that_a_command_beside_run_would_make(bank: Bank) -> None:
    """`produce` makes the topic that it writes; it says which others it makes at first, and makes none for a new version."""
    text = (bank.console.folder / "bank.py").read_text()
    declared = 'payments = app.topic("payments", key=str, value=Payment)'
    assert declared in text

    def also_reads(topic: str) -> None:
        more = f'{declared}\nmore = app.topic("{topic}", key=str, value=Payment)'
        taken = "\n\n@app.processor(more)\ndef also(one: Record[str, Payment]) -> None:\n    pass\n"
        bank.console.write("bank.py", text.replace(declared, more) + taken)

    record = json.dumps({"key": "ann", "value": {"account": "ann", "amount": 1}})
    also_reads("charges")
    done = bank.console("produce", "bank:app", "payments", stdin=record)
    said = "topic charges is made now, as nobody has written to it; is the name right?\n"
    assert done.code == 0 and done.err == said, done
    also_reads("fees.of.all.accounts")
    done = bank.console("produce", "bank:app", "payments", stdin=record)
    assert done.code == 2 and done.err.count("\n") == 1, done
    assert "reads topic fees.of.all.accounts, which is not there, and nobody writes it" in done.err, done
    assert await bank.log.topics(["fees.of.all.accounts"]) == {}
    assert bank.console("produce", "bank:app", "fees.of.all.accounts", stdin=record).code == 0


async def test_facts_that_were_deleted(bank: Bank) -> None:
    bank.run(5)
    await bank.log.delete_topic("bank-orchestrator")
    bank.refused(f"topic {CHANGES} holds records of an application of this id", "may have been deleted")
    await bank.log.delete_topic(CHANGES)
    bank.refused("committed positions of 'bank'", "payments-")
    await bank.forget_positions()
    bank.run(3)


async def test_facts_that_are_deleted_while_it_runs(bank: Bank) -> None:
    fleet = bank.console.start("run", "bank:app", "--instances", "2", name="run")
    assert bank.console("wait", "bank", "--instances", "2", "--timeout", "30s").code == 0
    await bank.log.delete_topic("bank-orchestrator")
    assert fleet.wait(60) == 1
    said = bank.console.said("run")
    assert "topic bank-orchestrator was deleted" in said and "Traceback" not in said, said


async def test_a_topic_of_another_program_under_a_changelogs_name(bank: Bank) -> None:
    await bank.log.create_topic(TopicSpec(CHANGES, 8))
    bank.refused(f"topic {CHANGES} is to be a changelog, and is not compacted")
    await bank.log.delete_topic(CHANGES)
    await bank.log.create_topic(TopicSpec(CHANGES, 8, "changelog"))
    await bank.log.append({Partition(CHANGES, 0): records("x")})
    bank.refused(f"topic {CHANGES} holds records of an application of this id")


async def test_a_changelog_of_another_count(bank: Bank) -> None:
    await bank.log.create_topic(TopicSpec(CHANGES, 3, "changelog"))
    bank.refused(CHANGES, "3")


async def test_a_consumer_of_the_same_group(bank: Bank) -> None:
    """It is named itself, also where it has committed: what else is wrong then comes from it."""
    await bank.log.create_topic(TopicSpec("payments", 8))
    async with _consumer(bank) as consumer:
        await until("the consumer to be a member", _has(consumer))
        await asyncio.to_thread(bank.refused, "has 1 member of another program", "stop it")
        bank.console.write("old.jsonl", '{"key": "a", "value": {"account": "a", "amount": 1}, "timestamp_ms": 1}\n')
        done = await asyncio.to_thread(bank.console, "backfill", "bank:app", "payments=old.jsonl")
        assert done.code == 3 and "has 1 member of another program" in done.err and done.err.count("\n") == 1, done
        done = await asyncio.to_thread(bank.console, "backfill", "bank:app", "payments=old.jsonl", "--dry-run")
        assert done.code == 0 and "has 1 member of another program" in done.out + done.err, done
        await consumer.commit(dict.fromkeys(consumer.assignment(), 0))
        await asyncio.to_thread(bank.refused, "has 1 member of another program")
    await asyncio.to_thread(
        bank.refused, "there are committed positions of 'bank' in payments-0", "another program had"
    )


async def test_a_consumer_that_joins_while_the_app_is_down(bank: Bank) -> None:
    await asyncio.to_thread(bank.run, 3)
    async with _consumer(bank) as consumer:
        await until("the consumer to be a member", _has(consumer))
        await asyncio.to_thread(bank.refused, "has 1 member of another program")
    await asyncio.to_thread(bank.run, 2)


def _consumer(bank: Bank) -> AIOKafkaConsumer:
    address, group = f"127.0.0.1:{bank.place.port}", bank.place.prefix + "bank"
    topic = bank.place.prefix + "payments"
    return AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, enable_auto_commit=False)


def _has(consumer: AIOKafkaConsumer) -> Callable[[], Awaitable[bool]]:
    async def assigned() -> bool:
        return bool(consumer.assignment())

    return assigned


FORGETS_POSITIONS = {"offsets.retention.minutes": "1"}
FORGETS_IDS = {
    **FORGETS_POSITIONS,
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
}


@pytest.fixture
async def own(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Bank, Broker]]:
    """A bank on a broker of its own, which forgets positions after a minute, or what it is set to."""
    brokers.shared()  # skips the test where none can be had
    settings = getattr(request, "param", FORGETS_POSITIONS)
    made = broker.prepare(tmp_path / "broker", settings=settings, version=brokers.VERSION)
    made.launch()
    console, place = Console(tmp_path / "place").bank(), Place(port=made.port)
    console.write("orchestrator.toml", f'log = "kafka://{made.address}?prefix={place.prefix}"\n')
    try:
        yield Bank(place, console, await place.open()), made
    finally:
        console.close()
        await place.close()
        made.stop(kill=True)


async def test_positions_of_an_idle_app_are_committed_again(own: tuple[Bank, Broker]) -> None:
    """Brokers forget what is not committed for long, also while the app runs; and whoever may be down for longer is warned."""
    bank, _ = own
    bank.run(8)
    inputs = [Partition("payments", number) for number in range(8)]
    before = await bank.log.committed_ms("bank", inputs)
    assert before
    fleet = bank.console.start("run", "bank:app", name="run")

    async def again() -> bool:
        now = await bank.log.committed_ms("bank", inputs)
        return all(now.get(one, 0) > at_ms for one, at_ms in before.items())

    await until("the positions to be committed again", again, 60)
    fleet.terminate()
    assert fleet.wait(30) == 0
    assert "forget positions 1.0 min after the app has stopped" in bank.console.said("run")


@pytest.mark.parametrize("own", [FORGETS_IDS], indirect=True)
async def test_transactional_ids_of_an_idle_app_are_not_forgotten(own: tuple[Bank, Broker]) -> None:
    """Positions were committed again too late for the ids of those who do it: each was fenced, came back under another and committed
    nothing, until the positions were gone and the app ended."""
    bank, _ = own
    fleet = await asyncio.to_thread(bank.console.run, "--heartbeat", "200ms")
    await asyncio.to_thread(bank.console.pay, *((f"k{number}", 1) for number in range(40)))
    inputs = [Partition("payments", number) for number in range(8)]

    async def all_are() -> bool:
        return len(await bank.log.committed_ms("bank", inputs)) == 8

    await until("the payments to be processed", all_are, 60)
    before = await bank.log.committed_ms("bank", inputs)

    async def later() -> bool:
        now = await bank.log.committed_ms("bank", inputs)
        return all(now[one] > at_ms + 12_000 for one, at_ms in before.items())

    await until("the positions to be committed again, three lives of an id later", later, 60)
    assert "fenced" not in bank.console.said("run")
    fleet.terminate()
    assert fleet.wait(30) == 0


HALTS = """
from orchestrator import App, Record, Sink

app = App("bank", partitions=8)
payments = app.topic("payments", key=str, value=int)
receipts = app.topic("receipts", key=str, value=int)


@app.processor(payments, receipts)
def settle(payment: Record[str, int], receipts: Sink[str, int]) -> None:
    if payment.value < 0:
        raise ValueError("a payment of less than nothing")
    receipts.send(payment.key, payment.value)
"""


async def test_positions_of_a_halted_task_are_committed_again(own: tuple[Bank, Broker]) -> None:
    """They expired while the app ran, and whoever resumed the task ended the app."""
    bank, _ = own
    console = bank.console
    console.write("bank.py", HALTS)
    fleet = await asyncio.to_thread(console.run, "--heartbeat", "200ms", "--on-halt", "continue")

    def halted() -> list[str]:
        return [task["id"] for task in console.here("status", "bank", "--json").json["tasks"] if task["halted"]]

    def receipts() -> list[int]:
        return [row["value"] for row in map(json.loads, console.here("consume", "bank", "receipts").out.splitlines())]

    def produce(*values: int) -> None:
        lines = "\n".join(json.dumps({"key": "k", "value": value}) for value in values)
        assert console.here("produce", "bank:app", "payments", stdin=lines).code == 0

    def halt() -> str:
        produce(*range(40), -1)
        console.until("the task to be halted", halted)
        return halted()[0]

    task = await asyncio.to_thread(halt)
    where = Partition("payments", int(task.split("_")[1]))
    before, place = await bank.log.committed_ms("bank", [where]), await bank.log.positions("bank", [where])

    async def again() -> bool:
        return (await bank.log.committed_ms("bank", [where])).get(where, 0) > before[where]

    await until("its position to be committed again", again, 60)
    assert await bank.log.positions("bank", [where]) == place

    def resume() -> list[int]:
        assert console.here("resume", "bank", task, "--skip").code == 0
        produce(40)
        console.until("what follows", lambda: 40 in receipts())
        return receipts()

    assert await asyncio.to_thread(resume) == [*range(41)]
    fleet.terminate()
    assert fleet.wait(30) == 0


async def test_an_input_that_lost_records(own: tuple[Bank, Broker]) -> None:
    """Its committed positions lie past its end: what is written next would be taken for what was read."""
    bank, made = own
    bank.run(20)
    made.stop()
    for folder in (made.folder / "log").glob(f"{bank.place.prefix}payments-*"):
        for path in folder.glob("0000*"):
            path.unlink()
        (folder / "leader-epoch-checkpoint").unlink()
    made.launch()
    done = await asyncio.to_thread(bank.console, "run", "bank:app")
    text = done.err.splitlines()[-1]
    assert done.code == 3 and text.startswith("error: 'bank': topic payments lost records"), done
    named = [f"of payments-{number}, which was processed" in text for number in range(8)]
    assert sum(named) > 1, "one was named, and the next start named the next one"
    accepted = await asyncio.to_thread(bank.console, "topics", "accept", "bank", "payments")
    assert accepted.code == 3 and accepted.err.splitlines()[-1] == text, accepted
