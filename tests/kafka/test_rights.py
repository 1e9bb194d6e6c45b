"""ACLs on a broker with an authorizer: with exactly the listed ones an app runs, and each that is missing is named."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.admin import CreateAclsRequest_v1, DeleteAclsRequest_v1, DescribeAclsRequest_v1

from state.errors import LogUnavailable, LogUnusable, StateError
from state.log.group_store import MetadataKind
from state.log.kafka import topics
from state.log.kafka.access import Access
from state.log.kafka.cluster import KafkaOptions, open_cluster
from state.log.kafka.codes import KafkaRefused, check
from state.log.kafka.connections import Connections
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.kafka.rights import Right
from state.log.protocol import Intended, Partition, TaskCommit, TopicSpec
from tests.cli.console import Console, Done
from tests.contracts.logs import read_all, records, until, values
from tests.kafka import secured
from tests.kafka.place import leave_open, owner
from workers.prepare import RESET

pytestmark = pytest.mark.kafka
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Alter": 7, "Describe": 8, "DescribeConfigs": 10}
ALLOW = 3


def listed(prefix: str, folder: Path, purpose: str = "run") -> list[Right]:
    """As `orchestrator topics acls` lists them."""
    console = Console(folder / "listing").bank()
    done = console.here("topics", "acls", "bank:app", "--for", purpose, "--json", "--log", f"kafka://h?prefix={prefix}")
    rows = json.loads(done.out)["acls"]
    return [Right(row["operation"], row["resource"], row["name"], row["pattern"] == "prefixed") for row in rows]


class Acls:
    """What bob may do, set by a super user."""

    def __init__(self) -> None:
        self.secured = secured.shared()
        self.given: set[Right] = set()
        self.connections = Connections([("127.0.0.1", self.secured.broker.port)], Access())

    async def allow(self, rights: Collection[Right]) -> None:
        rows = [self._row(right) for right in rights]
        answer = await self.connections.ask_any(CreateAclsRequest_v1(rows))
        for code, text in answer.creation_responses:
            check("creating ACLs", code, text)
        self.given |= set(rights)
        await until("the authorizer to know the rights", self._are_known)

    async def revoke(self, rights: Collection[Right]) -> None:
        answer = await self.connections.ask_any(DeleteAclsRequest_v1([self._row(right) for right in rights]))
        for code, text, _ in answer.filter_responses:
            check("deleting ACLs", code, text)
        self.given -= set(rights)
        await until("the authorizer to know the rights", self._are_known)

    async def _are_known(self) -> bool:
        answer = await self.connections.ask_any(DescribeAclsRequest_v1(1, None, 1, "User:bob", None, 1, 1))
        check("describing ACLs", answer.error_code, answer.error_message)
        return sum(len(resource[-1]) for resource in answer.resources) == len(self.given)

    def _row(self, right: Right) -> tuple[Any, ...]:
        pattern = 4 if right.prefixed else 3
        resource = RESOURCES[right.resource]
        return (resource, right.name, pattern, "User:bob", "*", OPERATIONS[right.operation], ALLOW)

    def config(self, folder: Path) -> Path:
        user = {"sasl_username": "bob", "sasl_password": secured.PASSWORDS["bob"]}
        return self.secured.config(
            folder, "bob.properties", security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", **user
        )


@pytest.fixture
async def acls() -> Any:
    made = Acls()
    await made.connections.start()
    yield made
    await made.revoke(list(made.given))
    await made.connections.close()


async def prepared(prefix: str, port: int) -> None:
    """The topics that are not the app's own to create."""
    log = await open_kafka(KafkaOptions([("127.0.0.1", port)], prefix))
    for name in ("payments", "alerts"):
        await log.create_topic(TopicSpec(name, 8))
    await log.close()


@pytest.mark.processes
async def test_an_app_runs_with_exactly_the_listed_rights(acls: Acls, tmp_path: Path) -> None:
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    await prepared(prefix, acls.secured.broker.port)
    config = acls.config(tmp_path)
    url = f"kafka://localhost:{acls.secured.ports['SASL_PLAINTEXT']}?prefix={prefix}&config={config}"
    console = Console(tmp_path / "place").bank()
    console.write("orchestrator.toml", f'log = "{url}"\n')
    refused = await asyncio.to_thread(console, "run", "bank:app")
    assert refused.code == 1 and f"Describe on topic {prefix}bank-orchestrator" in refused.err, refused
    assert refused.err.count("\n") == 1
    for purpose in ("run", "produce", "look"):
        await acls.allow(listed(prefix, tmp_path, purpose))
    fleet = console.start("run", "bank:app", "--instances", "2")
    payments = "".join(json.dumps({"key": f"k{n}", "value": {"account": "a", "amount": -1}}) + "\n" for n in range(20))
    console.write("in.jsonl", payments)
    done = await asyncio.to_thread(console, "produce", "bank:app", "payments", "--file", "in.jsonl")
    assert done.code == 0, done
    deadline = time.monotonic() + 60
    while (done := await asyncio.to_thread(console, "consume", "bank", "alerts")).out.count("overdrawn") < 20:
        assert time.monotonic() < deadline and fleet.poll() is None, (done, console.said("background"))
    for words in (("status", "bank"), ("query", "bank", "balances", "k1"), ("scale-up", "bank", "--to", "3")):
        done = await asyncio.to_thread(console, *words)
        assert done.code == 0, done
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 30) == 0, console.said("background")
    await refused_before_it_begins(acls, console, prefix)


async def refused_before_it_begins(acls: Acls, console: Console, prefix: str) -> None:
    """A reset that lacked a right in the middle left an app that was refused at its start until that right was given."""
    log = await open_kafka(KafkaOptions([("127.0.0.1", acls.secured.broker.port)], prefix))
    changes = "bank-balances-changelog"
    for lacking in (Right("Delete", "topic", prefix + changes), Right("Delete", "group", prefix + "bank")):
        done = await asyncio.to_thread(console, "reset", "bank")
        assert done.code == 1 and f"the user lacks {lacking}; " in done.err, done
        assert await log.metadata("bank", RESET, "plan") is None
        await acls.allow([lacking])
    assert set(listed(prefix, console.folder, "reset")) <= acls.given, "what is listed is what was asked for"
    options = KafkaOptions(
        [("localhost", acls.secured.ports["SASL_PLAINTEXT"])], prefix, config=str(acls.config(console.folder))
    )
    own = await open_kafka(options)
    with pytest.raises(
        KafkaRefused, match=rf"growing topic {changes}, payments.*lacks Alter on topic {prefix}{changes}, Alter"
    ):
        await own.check_rights("bank", Intended(grown=["payments", changes]))
    await log.check_rights("bank", Intended(grown=["payments", "not-there"]))
    await acls.allow(set(listed(prefix, console.folder, "repartition")) - acls.given)
    await own.check_rights("bank", Intended(grown=["payments", changes], seeds=True))
    await own.close()
    done = await asyncio.to_thread(console, "reset", "bank")
    assert done.code == 0 and await log.topics([changes]) == {}, done
    await log.close()


REKEYED = """
from orchestrator import App

app = App("bank", partitions=8)
payments = app.topic("payments", key=str, value=int)
alerts = app.topic("alerts", key=str, value=int)
again = payments.rekey("again", key=str, by=lambda one: one.key)
sums = app.table("sums", key=str, value=int, default=int)


@app.processor(again, sums, alerts)
def add_up(one, sums, alerts):
    sums[one.key] += one.value
    alerts.send(one.key, sums[one.key])
"""


async def test_produce_works_with_exactly_its_rights_and_names_each(acls: Acls, tmp_path: Path) -> None:
    """It looks at all topics of the app, and makes those of its own: with what was listed it was refused, at a first time and later."""
    console = Console(tmp_path / "place")
    console.write("rekeyed.py", REKEYED)
    where = f"kafka://localhost:{acls.secured.ports['SASL_PLAINTEXT']}?config={acls.config(tmp_path)}&prefix="

    def rights_of(prefix: str) -> list[Right]:
        words = ("topics", "acls", "rekeyed:app", "--for", "produce", "--json", "--log", f"kafka://h?prefix={prefix}")
        rows = json.loads(console.here(*words).out)["acls"]
        return [Right(row["operation"], row["resource"], row["name"], row["pattern"] == "prefixed") for row in rows]

    async def produced(prefix: str) -> Done:
        words = ("produce", "rekeyed:app", "payments", "--log", where + prefix)
        lines = "".join(
            json.dumps({"key": f"k{number}", "value": 1}) + "\n" for number in range(20)
        )  # of several partitions
        return await asyncio.to_thread(lambda: console(*words, stdin=lines))

    name = f"a{uuid.uuid4().hex[:8]}"
    whole = rights_of(name)
    for number, left_out in enumerate([None, *whole]):
        prefix = f"{name}-{number}-"
        await prepared(prefix, acls.secured.broker.port)
        there = [replace(right, name=prefix + right.name.removeprefix(name)) for right in whole]
        missing = None if left_out is None else there.pop(whole.index(left_out))
        await acls.allow(there)
        done = await produced(prefix)
        if missing is None:
            assert done.code == 0, done
            done = await produced(prefix)
            assert done.code == 0, done
        else:
            operations = {missing.operation, *({"Describe"} if missing.operation in ("Read", "Write") else set())}
            on = str(missing).partition(" ")[2]
            found = done.err.partition("the user lacks ")[2].partition(";")[0]
            assert (
                done.code == 1 and missing.operation in found and any(f"{one} {on}" in found for one in operations)
            ), (
                missing,
                done,
            )
        await acls.revoke(there)


async def test_a_start_looks_for_the_right_to_delete_what_was_read_of_a_re_key(acls: Acls, tmp_path: Path) -> None:
    """The app ended a minute later, when it first deleted there."""
    console = Console(tmp_path / "place")
    console.write("rekeyed.py", REKEYED)
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    await prepared(prefix, acls.secured.broker.port)
    words = ("topics", "acls", "rekeyed:app", "--json", "--log", f"kafka://h?prefix={prefix}")
    rows = json.loads(console.here(*words).out)["acls"]
    rights = [Right(row["operation"], row["resource"], row["name"], row["pattern"] == "prefixed") for row in rows]
    missing = Right("Delete", "topic", f"{prefix}bank-again-repartition")
    await acls.allow(set(rights) - {missing})
    url = f"kafka://localhost:{acls.secured.ports['SASL_PLAINTEXT']}?prefix={prefix}&config={acls.config(tmp_path)}"
    done = await asyncio.to_thread(console, "run", "rekeyed:app", "--log", url)
    assert done.code == 1 and "trimming topic bank-again-repartition: " in done.err, done
    assert f"the user lacks {missing}" in done.err and done.err.count("\n") == 1 and not done.out, done


async def live(log: KafkaLog) -> None:
    """Everything that instances do with a log, for the topics of the bank."""
    changes = "bank-balances-changelog"
    await log.create_topic(TopicSpec(changes, 1, "changelog"))
    for name in ("payments", "alerts"):
        await log.topics([name])
    lease = await log.acquire("bank", "me", "a:1", await log.lease("bank"))
    assert lease is not None
    await log.record_owners(lease, [owner(1, lease)])
    await log.open_writer("bank", "w")
    inputs = [Partition("payments", 0)]
    await log.positions("bank", inputs)
    await log.starts(inputs)
    await log.ends(inputs, settled=True)
    await read_all(log, inputs[0])
    out = {Partition("alerts", 0): records("a"), Partition(changes, 0): records("b")}
    await log.commit("bank", "w", [TaskCommit("0_0", 1, out, {inputs[0]: 1})])
    await read_all(log, Partition(changes, 0))


async def test_a_seed_wants_no_right_more_but_to_see_a_limit_that_is_lower_than_the_default(
    acls: Acls, tmp_path: Path
) -> None:
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    await prepared(prefix, acls.secured.broker.port)
    await acls.allow(listed(prefix, tmp_path))
    where = [("localhost", acls.secured.ports["SASL_PLAINTEXT"])]
    log = await open_kafka(KafkaOptions(where, prefix, config=str(acls.config(tmp_path))))
    try:
        lease = await log.acquire("bank", "me", "a:1", None)
        assert lease is not None
        position, out = Partition("payments", 0), Partition("alerts", 0)
        for asked in (
            log.check_rights("bank", Intended(seeds=True)),
            log.seed_positions(lease, {position: 1}, {out: records("a")}),
        ):
            with pytest.raises(LogUnusable, match=r"no transaction of 900 s, .* allow DescribeConfigs on the cluster"):
                await asked
        await acls.allow([Right("DescribeConfigs", "cluster", "kafka-cluster")])
        await log.check_rights("bank", Intended(seeds=True))
        assert await log.seed_positions(lease, {position: 1}, {out: records("b")})
        assert await log.positions("bank", [position]) == {position: 1}
    finally:
        await log.close()


async def test_what_a_writer_left_open_in_an_output_is_ended_though_outputs_may_only_be_written(
    acls: Acls, tmp_path: Path
) -> None:
    """Whose transaction it is may be seen by those who read there."""
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    await prepared(prefix, acls.secured.broker.port)
    await acls.allow(listed(prefix, tmp_path))
    where = [("localhost", acls.secured.ports["SASL_PLAINTEXT"])]
    log = await open_kafka(KafkaOptions(where, prefix, config=str(acls.config(tmp_path))))
    out = Partition("alerts", 0)
    try:
        await live(log)
        await leave_open(log, log._writers._opened["bank", "w"], {out: records("left")})
        lease = await log.acquire("bank", "other", "a:2", await log.lease("bank"))
        assert lease is not None
        await log.fence(lease, ["w"])
        assert (await log.ends([out], settled=True))[out] > 1
    finally:
        await log.close()
    seen = await open_kafka(KafkaOptions([("127.0.0.1", acls.secured.broker.port)], prefix))
    assert await values(seen, out) == ["a", "left"]
    await seen.close()


async def test_what_all_applications_have_said_is_that_of_those_whose_facts_may_be_read(
    acls: Acls, tmp_path: Path
) -> None:
    """Others may be listed all the same: by a right to describe all topics."""
    prefix, kind = f"a{uuid.uuid4().hex[:8]}-", MetadataKind("of-all")
    seen = await open_kafka(KafkaOptions([("127.0.0.1", acls.secured.broker.port)], prefix))
    for application in ("bank", "described", "hidden", "listed"):
        await seen.put_metadata(application, kind, "k", application.encode())
    await seen.close()
    await acls.allow(listed(prefix, tmp_path))
    rights = [("Describe", "described"), ("DescribeConfigs", "described"), ("Describe", "listed")]
    await acls.allow([Right(right, "topic", f"{prefix}{name}-orchestrator") for right, name in rights])
    where = [("localhost", acls.secured.ports["SASL_PLAINTEXT"])]
    log = await open_kafka(KafkaOptions(where, prefix, config=str(acls.config(tmp_path))))
    try:
        assert await log.metadata_of_all(kind, "k") == {"bank": b"bank"}
    finally:
        await log.close()


async def test_settings_that_may_not_be_asked_for_any_more_are_as_they_were(
    acls: Acls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the topics was refused from then on: none saw that one grew or went, and no instance became the coordinator."""
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    await prepared(prefix, acls.secured.broker.port)
    ours = Right("Describe", "topic", prefix, prefixed=True), Right("DescribeConfigs", "topic", prefix, prefixed=True)
    await acls.allow(ours)
    brokers = [("localhost", acls.secured.ports["SASL_PLAINTEXT"])]
    cluster = await open_cluster(KafkaOptions(brokers, prefix, config=str(acls.config(tmp_path))))
    try:
        before = await cluster.topics.infos(["payments"])
        monkeypatch.setattr(topics, "SETTINGS_S", 0.0)
        await acls.revoke(ours[1:])

        async def is_refused() -> bool:
            try:
                await cluster.topics.infos(["alerts"])
            except KafkaRefused:
                return True
            cluster.topics.forget_purpose("alerts")
            return False

        await until("the right to be gone", is_refused)
        assert await cluster.topics.infos(["payments"]) == before
    finally:
        await cluster.close()


async def test_each_missing_right_is_named(acls: Acls, tmp_path: Path) -> None:
    """One is left out at a time. What implies it may be there (Write allows Describe), so the operation may be another
    one on the same resource only where Kafka asks for that first."""
    prefix = f"a{uuid.uuid4().hex[:8]}-"
    rights = listed(prefix, tmp_path)
    options = KafkaOptions([("localhost", acls.secured.ports["SASL_PLAINTEXT"])], config=str(acls.config(tmp_path)))
    unnamed = []
    for number, left_out in enumerate(rights):
        own = f"{prefix}{number}-"

        def named(right: Right, own: str = own) -> Right:
            return Right(right.operation, right.resource, own + right.name.removeprefix(prefix), right.prefixed)

        await prepared(own, acls.secured.broker.port)
        given = [named(right) for right in rights if right != left_out]
        await acls.allow(given)
        log = await open_kafka(KafkaOptions(options.brokers, own, config=options.config))
        missing = str(named(left_out)).split(" ", 1)
        try:
            await live(log)
            unnamed.append(f"{left_out} is not needed")
        except StateError as error:
            operations = {missing[0], *({"Describe"} if left_out.operation in ("Read", "Write") else set())}
            found = str(error).partition("the user lacks ")[2].partition(";")[0]
            if left_out.operation not in found or not any(f"{one} {missing[1]}" in found for one in operations):
                unnamed.append(f"without {left_out}: {type(error).__name__} {error}")
            if isinstance(error, LogUnavailable):
                unnamed.append(f"without {left_out}: instances wait for the log, though no broker is away")
            cause = error if isinstance(error, KafkaRefused) else error.__cause__
            assert isinstance(cause, KafkaRefused), error
        finally:
            await log.close()
            await acls.revoke(given)
    assert not unnamed, "\n".join(unnamed)
