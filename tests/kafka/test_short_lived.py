"""`produce` of records that are older than their topic keeps: brokers remove them, often before the app has read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.kafka.place import Place

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
