"""`produce` of a line that its topic does not take: it is named, what is written is counted, and a second run goes on there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.kafka.place import Place

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
LINES, BAD, BATCH = 2_300, 2_150, 1_000


@pytest.fixture
def console(tmp_path: Path, place: Place) -> Iterator[Console]:
    made = Console(tmp_path / "bank").bank()
    url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}&topic.max.message.bytes=9000"
    url += "&topic.message.timestamp.after.max.ms=3600000"
    made.write("orchestrator.toml", f'log = "{url}"\n')
    yield made
    made.close()


def rows(size: int = 1, at_ms: int | None = None) -> str:
    """One of them is large, or of another time."""
    listed = []
    for number in range(1, LINES + 1):
        account = "a" * (size if number == BAD else 1)
        row: dict[str, object] = {"key": f"k{number}", "value": {"account": account, "amount": 1}}
        if at_ms is not None and number == BAD:
            row["timestamp_ms"] = at_ms
        listed.append(json.dumps(row) + "\n")
    return "".join(listed)


@pytest.mark.parametrize("words", [(), ("--file", "in.jsonl")], ids=["input", "file"])
@pytest.mark.parametrize("why", ["size", "time"])
def test_a_line_that_its_topic_does_not_take(console: Console, words: tuple[str, ...], why: str) -> None:
    bad = rows(20_000) if why == "size" else rows(at_ms=int(time.time() * 1000) + 7_200_000)

    def produce(given: str) -> tuple[int, str, str]:
        console.write("in.jsonl", given)
        return console("produce", "bank:app", "payments", *words, stdin="" if words else given)

    code, _, said = produce(bad)
    said = said.splitlines()[-1]
    assert code == 1, said
    if why == "size":
        assert f"error: line {BAD}: a record of 20" in said, said
    else:
        first, last = map(int, said.partition("one of lines ")[2].partition(":")[0].split(" to "))
        assert 2 * BATCH < first <= BAD <= last, said
    assert f"the {2 * BATCH} records before line {2 * BATCH + 1} are written, and no more" in said, said
    code, _, said = produce(rows())
    assert code == 0, said
    found = Counter(json.loads(line)["key"] for line in console("consume", "bank", "payments").out.splitlines())
    assert found == Counter(f"k{number}" for number in range(1, LINES + 1))
