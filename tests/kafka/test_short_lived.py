"""`produce` of records that are older than their topic keeps: brokers remove them, often before the app has read them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from state.clocks import wall_ms
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import open_kafka
from state.log.protocol import Guarantee, NewRecord, Partition, Retention, TaskCommit, TopicSpec
from tests.cli.console import Console
from tests.kafka.place import Place, owner

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
OLD = '{"key": "ann", "value": {"account": "ann", "amount": 1}, "timestamp_ms": 1700000000000}\n'
NEW = '{"key": "ann", "value": {"account": "ann", "amount": 1}}\n'
WARNING = (
    "warning: topic payments keeps records for 7 d by their own times, and line 2 is of 2023-11-14: brokers remove such records within "
    "minutes, read or not; `orchestrator topics set bank payments --retention forever`, before it or at once, keeps them"
)
SETTINGS = {
    "a week": "",
    "for ever": "&topic.retention.ms=-1",
    "a week from being written": "&topic.message.timestamp.type=LogAppendTime",
}


@pytest.mark.parametrize("words", [(), ("--file", "in.jsonl")], ids=["input", "file"])
@pytest.mark.parametrize("kept", ["a week", "for ever", "a week from being written"])
def test_records_that_will_not_stay_are_warned_of(
    tmp_path: Path, place: Place, kept: str, words: tuple[str, ...]
) -> None:
    console = Console(tmp_path / "bank").bank()
    try:
        setting = SETTINGS[kept]
        log = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}{setting}"
        console.write("orchestrator.toml", f'log = "{log}"\n')
        given = NEW + OLD + OLD
        console.write("in.jsonl", given)
        code, _, said = console("produce", "bank:app", "payments", *words, stdin="" if words else given)
        assert code == 0, said
        warned = [line for line in said.splitlines() if line.startswith("warning: ")]
        assert warned == ([WARNING] if kept == "a week" else [])
    finally:
        console.close()


@pytest.mark.parametrize("guarantee", list[Guarantee](get_args(Guarantee)))
async def test_a_worker_warns_of_outputs_that_will_not_stay_once_for_each_topic(
    tmp_path: Path, place: Place, caplog: pytest.LogCaptureFixture, guarantee: Guarantee
) -> None:
    """An app that reads a history writes with its times; its own topics keep them. A batch stays for as long as its newest record."""
    log = await open_kafka(KafkaOptions([("127.0.0.1", place.port)], place.prefix))
    try:
        await log.create_topic(TopicSpec("seen", 1))
        await log.create_topic(TopicSpec("kept", 1, retention=Retention(20_000 * 24 * 3_600_000)))
        await log.create_topic(TopicSpec("counts", 1, "changelog"))
        lease = await log.acquire("bank", "c", "a:1", None)
        assert lease is not None
        await log.record_owners(lease, [owner(1, lease)])
        await log.open_writer("bank", "w")
        old, new = NewRecord(b"ann", b"1", 1_700_000_000_000), NewRecord(b"ann", b"1", wall_ms())
        for record, topics in ((new, ["seen"]), (old, ["kept", "counts"]), (old, ["seen"]), (old, ["seen"])):
            written = {Partition(topic, 0): [record] for topic in topics}
            assert not [one for one in caplog.messages if "keeps" in one] or topics == ["seen"]
            await log.commit("bank", "w", [TaskCommit("0_0", 1, written, {})], guarantee=guarantee)
        await log.commit(
            "bank", "w", [TaskCommit("0_0", 1, {Partition("kept", 0): [old, new]}, {})], guarantee=guarantee
        )
        assert [one for one in caplog.messages if "keeps" in one] == [
            "topic seen keeps records for 7 d by their own times, and what is written to it is of 2023-11-14: brokers remove such records "
            "within minutes, read or not; `orchestrator topics set APP seen --retention forever` keeps those that are still there"
        ]
    finally:
        await log.close()
