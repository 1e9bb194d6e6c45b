"""A record whose output or table write its topic does not take is found and left to `on_error`; those beside it count once."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from state.log.protocol import TopicSpec
from tests.cli.console import Console
from tests.kafka.place import Place
from tests.kafka.test_refused_batches import set_

pytestmark = [pytest.mark.kafka, pytest.mark.processes]
APP = """
from collections.abc import Sequence

from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2, on_error={policy})
plain = app.topic("plain", key=str, value=int)
waiting = app.topic("waiting", key=str, value=int)
many = app.topic("many", key=str, value=int)
out = app.topic("out", key=str, value=bytes)
dead = app.topic("dead", key=bytes, value=bytes)
seen = app.table("seen", key=str, value=int, default=int)
kept = app.table("kept", key=str, value=bytes)


def put(key: str, size: int, seen: Table[str, int], kept: Table[str, bytes], out: Sink[str, bytes]) -> None:
    seen[key] += 1
    if size % 2:
        kept[key] = bytes(size)
    out.send(key, bytes(10 if size % 2 else size))


@app.processor(plain, seen, kept, out)
def one(record: Record[str, int], seen: Table[str, int], kept: Table[str, bytes], out: Sink[str, bytes]) -> None:
    put(record.key, record.value, seen, kept, out)


waited = app.table("waited", key=str, value=int, default=int)
held = app.table("held", key=str, value=bytes)


@app.processor(waiting, waited, held, out, concurrency=4)
async def later(record: Record[str, int], waited: Table[str, int], held: Table[str, bytes], out: Sink[str, bytes]) -> None:
    put(record.key, record.value, waited, held, out)


batched = app.table("batched", key=str, value=int, default=int)
stored = app.table("stored", key=str, value=bytes)


@app.processor(many, batched, stored, out, batch=True)
def all_of(
    records: Sequence[Record[str, int]], batched: Table[str, int], stored: Table[str, bytes], out: Sink[str, bytes]
) -> None:
    for record in records:
        put(record.key, record.value, batched, stored, out)
"""
SIZES = {17: 6_000, 40: 6_001, 41: 9_000}  # of the outputs of these records, and of table writes where it is odd
TABLES = {"plain": "seen", "waiting": "waited", "many": "batched"}


@pytest.fixture
def console(tmp_path: Path, place: Place) -> Iterator[Console]:
    made = Console(tmp_path)
    url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}&topic.max.message.bytes=5000&topic.retention.ms=-1"
    made.write("orchestrator.toml", f'log = "{url}"\n')
    yield made
    made.close()


def produce(console: Console, topic: str) -> None:
    rows = "\n".join(json.dumps({"key": f"{topic} {n}", "value": SIZES.get(n, 10)}) for n in range(60))
    assert console("produce", "bank:app", topic, stdin=rows).code == 0


def keys(console: Console, topic: str) -> Counter[str]:
    return Counter(row["key"] for row in map(json.loads, console("consume", "bank", topic).out.splitlines()))


def test_the_record_is_left_to_its_policy_and_the_others_count_once(console: Console) -> None:
    console.write("bank.py", APP.format(policy='"dead"'))
    for topic in TABLES:
        produce(console, topic)
    console.start("run", "bank:app", "--instances", "2", name="run")
    good = Counter(f"{topic} {n}" for topic in TABLES for n in range(60) if n not in SIZES)
    console.until("all others", lambda: keys(console, "out").total() >= good.total())
    console.until("the dead letters", lambda: keys(console, "dead").total() >= 9)
    assert keys(console, "out") == good, console.said("run")
    letters = [json.loads(line) for line in console("consume", "bank", "dead").out.splitlines()]
    assert Counter(one["headers"]["error-topic"] for one in letters) == dict.fromkeys(TABLES, 3)
    assert all("writes what the log does not take (a record of " in one["headers"]["error-message"] for one in letters)
    for topic, table in TABLES.items():
        rows = [json.loads(line) for line in console("table", "dump", "bank", table).out.splitlines()]
        counts = {row["key"]: row["value"] for row in rows}
        assert counts == {f"{topic} {n}": 1 for n in range(60) if n not in SIZES}


def test_where_it_stops_the_record_is_named(console: Console) -> None:
    console.write("bank.py", APP.format(policy='"stop"'))
    produce(console, "plain")
    fleet = console.start("run", "bank:app", name="run")
    assert fleet.wait(60) == 1
    text = console.said("run")
    assert "error: one at plain-" in text and "writes what the log does not take (a record of 60" in text, text
    assert keys(console, "out").keys() <= {f"plain {n}" for n in range(60) if n not in SIZES}


def test_where_the_limit_was_raised_resume_tries_the_record_again(console: Console, place: Place) -> None:
    """What was known of the record was from before: the task halted again from memory, until its instance was started anew."""
    console.write("bank.py", APP.format(policy='"stop"'))
    produce(console, "plain")
    console.start("run", "bank:app", "--on-halt", "continue", name="run")
    halted = lambda: sorted(set(re.findall(r"(\d_\d) is halted", console.said("run"))))  # noqa: E731
    console.until("the halt", halted)
    for topic in ("out", "bank-kept-changelog"):
        asyncio.run(set_(place, topic, max_message_bytes="50000"))

    def all_are_there() -> bool:
        for name in halted():
            assert console("resume", "bank", name).code == 0
        return keys(console, "out").total() >= 60

    console.until("all of them", all_are_there)
    assert keys(console, "out") == Counter(f"plain {n}" for n in range(60)), console.said("run")


@pytest.mark.parametrize("how", ["its output does not fit", "its processor raises"])
def test_a_dead_letter_that_is_too_large_itself_is_cut(console: Console, how: str) -> None:
    text = APP.format(policy='"dead"').replace("value=int)\nwaiting", "value=str)\nwaiting")
    sizes = (
        "6_000 if len(record.value) > 10 else 10" if how == "its output does not fit" else "10 + 0 * int(record.value)"
    )
    console.write("bank.py", text.replace("record.value, seen, kept, out)", f"{sizes}, seen, kept, out)"))
    rows = [{"key": f"k{n}", "value": "v" * 4_850 if n == 7 else "1"} for n in range(20)]
    assert console("produce", "bank:app", "plain", stdin="\n".join(map(json.dumps, rows))).code == 0
    console.start("run", "bank:app", name="run")
    console.until("all others", lambda: keys(console, "out").total() >= 19)
    console.until("the dead letter", lambda: keys(console, "dead").total() >= 1)
    assert keys(console, "out") == Counter(f"k{n}" for n in range(20) if n != 7), console.said("run")
    [letter] = map(json.loads, console("consume", "bank", "dead").out.splitlines())
    assert letter["value"] is None and letter["headers"]["error-offset"], letter
    assert "the value of 4850 bytes; headers of the record: 0" in letter["headers"]["error-cut"], letter


WITH_TABLE = """
from orchestrator import App, Record, Sink, Table

app = App("bank", partitions=2, on_error="dead")
plain = app.topic("plain", key=str, value=int)
out = app.topic("out", key=str, value=int)
dead = app.topic("dead", key=bytes, value=bytes)
seen = app.table("seen", key=str, value=int, default=int)


@app.processor(plain, seen, out)
def one(record: Record[str, int], seen: Table[str, int], out: Sink[str, int]) -> None:
    seen[record.key or ""] += 1
    if record.key is None:
        raise ValueError("no key")
    out.send(None if record.value == 7 else record.key, record.value)
"""


def numbered(count: int, **others: object) -> list[dict[str, object]]:
    return [{"key": f"k{n}", "value": n, **others} for n in range(count)]


def write(console: Console, rows: list[dict[str, object]]) -> None:
    assert console("produce", "bank:app", "plain", stdin="\n".join(map(json.dumps, rows))).code == 0


def test_a_dead_letter_that_its_topic_never_takes_stops_its_record(console: Console, place: Place) -> None:
    """One without a key, where the topic for dead letters is a compacted one. The record is named, and may be left out."""
    console.write("bank.py", WITH_TABLE.replace("7", "-1"))
    assert console("topics", "create", "bank:app").code == 0
    asyncio.run(set_(place, "dead", cleanup_policy="compact"))
    rows = numbered(20)
    write(console, [*rows[:10], {"key": None, "value": 1}, *rows[10:]])
    fleet = console.start("run", "bank:app", name="run")
    assert fleet.wait(60) == 1
    line = console.said("run").splitlines()[-2]
    assert "error: one at plain-" in line and "nor is its dead letter taken; correct that topic, or give the" in line
    console.start("run", "bank:app", "--on-halt", "continue", name="again")
    halted = lambda: [task for task in ("0_0", "0_1") if f"{task} is halted" in console.said("again")]  # noqa: E731
    console.until("the halt", halted)
    assert console("resume", "bank", *halted(), "--skip").code == 0
    console.until("all others", lambda: keys(console, "out").total() >= 20)
    assert keys(console, "out") == Counter(f"k{n}" for n in range(20)), console.said("again")


def test_a_topic_that_is_compacted_while_it_is_written_to(console: Console, place: Place) -> None:
    """A record without a key is left to its policy then, too."""
    console.write("bank.py", WITH_TABLE)
    fleet = console.start("run", "bank:app", name="run")
    write(console, [one for one in numbered(20) if one["value"] != 7])
    console.until("the first", lambda: keys(console, "out").total() >= 19)
    asyncio.run(set_(place, "out", cleanup_policy="compact", max_message_bytes="5000"))
    for turn in count():  # until the broker goes by it
        write(console, [{"key": f"late{turn}", "value": 7}])
        console.until("its end", lambda: ends(console) >= 20 + turn or fleet.poll() is not None)  # noqa: B023
        if keys(console, "dead"):
            break
    assert fleet.poll() is None, console.said("run")
    [letter] = map(json.loads, console("consume", "bank", "dead").out.splitlines())
    assert letter["key"] and "cannot go into out-" in letter["headers"]["error-message"]


def ends(console: Console) -> int:
    """How many records were processed."""
    return sum(keys(console, topic).total() for topic in ("out", "dead"))


AHEAD_MS = 7_200_000


@pytest.mark.parametrize("takes", ["the output does not", "the dead letters do not either"])
def test_a_record_of_a_time_that_topics_do_not_take(console: Console, place: Place, takes: str) -> None:
    """Brokers from 4.0 on take none that is an hour ahead, unless its topic says otherwise: changelogs do."""
    console.write("bank.py", WITH_TABLE.replace("7", "-1"))
    assert console("topics", "create", "bank:app").code == 0
    narrow = ("out", "dead") if "either" in takes else ("out",)
    for topic in ("plain", "out", "dead"):
        limit = "3600000" if topic in narrow else "86400000"
        asyncio.run(set_(place, topic, message_timestamp_after_max_ms=limit, retention_ms="-1"))
    ahead = {"key": "ahead", "value": 1, "timestamp_ms": int(time.time() * 1000) + AHEAD_MS}
    console.until("the wide limit", lambda: console("produce", "bank:app", "plain", stdin=json.dumps(ahead)).code == 0)
    write(console, numbered(20))
    fleet = console.start("run", "bank:app", name="run")
    if "either" in takes:
        assert fleet.wait(60) == 1
        line = console.said("run").splitlines()[-2]
        assert "error: one at plain-" in line and "message.timestamp.after.max.ms" in line and "nor is its" in line
        return
    console.until("all others", lambda: keys(console, "out").total() >= 20)
    console.until("the dead letter", lambda: keys(console, "dead").total() >= 1)
    assert keys(console, "out") == Counter(f"k{n}" for n in range(20)), console.said("run")
    assert keys(console, "dead") == Counter(["ahead"])


def test_a_changelog_takes_the_time_of_any_record(console: Console, place: Place) -> None:
    console.write("bank.py", WITH_TABLE.replace("7", "-1").replace("out.send(", "0 and out.send("))
    assert console("topics", "create", "bank:app").code == 0
    asyncio.run(set_(place, "plain", message_timestamp_after_max_ms="86400000", retention_ms="-1"))
    ahead = {"key": "ahead", "value": 1, "timestamp_ms": int(time.time() * 1000) + AHEAD_MS}
    console.until("the wide limit", lambda: console("produce", "bank:app", "plain", stdin=json.dumps(ahead)).code == 0)
    fleet = console.start("run", "bank:app", name="run")
    console.until(
        "its entry", lambda: console("query", "bank", "seen", "ahead").out == "1\n" or fleet.poll() is not None
    )
    assert fleet.poll() is None, console.said("run")


DUE = """
from datetime import timedelta

from orchestrator import App, Tumbling

app = App("bank", partitions=2, on_error={policy})
plain = app.topic("plain", key=str, value=int)
other = app.topic("other", key=str, value=int)
out = app.topic("out", key=str, value=bytes)
dead = app.topic("dead", key=bytes, value=bytes)
sums = app.table("sums", key=str, value=int, default=int, window=Tumbling(milliseconds=10))
ends = app.timers("ends", key=str)
counts = app.table("counts", key=str, value=int, default=int)
kept = app.table("kept", key=str, value=bytes)


@app.processor(plain, sums, ends, counts)
def one(record, sums, ends, counts):
    counts[record.key] += 1
    sums[record.key] = record.value
    ends[record.key] = record.timestamp_ms + 20


@app.when_closed(sums, out)
def closed(window, out):
    out.send(window.key, bytes(window.value))


@app.when_due(ends, counts, kept)
def ended(due, counts, kept):
    counts[due.key] += 10
    kept[due.key] = bytes(6_000 if due.key == "plain 23" else 10)


@app.join(plain, other, out, within=timedelta(milliseconds=5), kind="left")
def alone(left, right, out):
    out.send("alone " + left.key, bytes(6_000 if left.key == "plain 31" else 10))
"""


async def test_what_came_due_is_left_to_its_policy_and_the_rest_happens_once(console: Console) -> None:
    console.write("bank.py", DUE.format(policy='"dead"'))
    assert console("topics", "create", "bank:app").code == 0
    rows = [{"key": f"plain {n}", "value": SIZES.get(n, 10), "timestamp_ms": 1_000 + 15 * n} for n in range(60)]
    rows += [{"key": f"end {n}", "value": 10, "timestamp_ms": 100_000} for n in range(8)]
    for topic, few in (("plain", rows), ("other", rows[-8:])):
        assert console("produce", "bank:app", topic, stdin="\n".join(map(json.dumps, few))).code == 0
    fleet = console.start("run", "bank:app", "--instances", "2", name="run")
    good = Counter(f"plain {n}" for n in range(60) if n not in SIZES)
    good += Counter([*(f"alone plain {n}" for n in range(60) if n != 31), *(f"alone end {n}" for n in range(8))])
    console.until("the dead letters", lambda: keys(console, "dead").total() >= 5)
    console.until("all others", lambda: keys(console, "out").total() >= good.total())
    assert keys(console, "out") == good, console.said("run")
    letters = [json.loads(line) for line in console("consume", "bank", "dead").out.splitlines()]
    assert Counter(one["headers"]["error-processor"] for one in letters) == {"closed": 3, "ended": 1, "alone": 1}
    assert all("writes what the log does not take (a record of " in one["headers"]["error-message"] for one in letters)
    dumped = [json.loads(line) for line in console("table", "dump", "bank", "counts").out.splitlines()]
    counts = {row["key"]: row["value"] for row in dumped if row["key"].startswith("plain")}
    assert counts == {f"plain {n}": 1 if n == 23 else 11 for n in range(60)}
    fleet.terminate()
    assert console.end(fleet) == 0
    on_disk = console("table", "dump", "bank", "counts")
    assert [json.loads(line) for line in on_disk.out.splitlines()] == dumped
    assert "read from this machine's disk" in on_disk.err and "lacks" not in on_disk.err, (
        "behind the last one is a marker"
    )


def test_where_it_stops_what_came_due_is_named(console: Console) -> None:
    console.write("bank.py", DUE.format(policy='"stop"'))
    rows = [{"key": f"plain {n}", "value": SIZES.get(n, 10), "timestamp_ms": 1_000 + 15 * n} for n in range(60)]
    assert console("produce", "bank:app", "plain", stdin="\n".join(map(json.dumps, rows))).code == 0
    fleet = console.start("run", "bank:app", name="run")
    assert fleet.wait(60) == 1
    text = console.said("run")
    assert (
        "error: closed failed at the window of 'plain 17'" in text
        and "writes what the log does not take (a record of 60" in text
    ), text


KEYLESS = """
from orchestrator import App, Record, Sink

app = App("bank", partitions=2, on_error="skip")
plain = app.topic("plain", key=str, value=int)
out = app.topic("out", key=str, value=int)


@app.processor(plain, out)
def one(record: Record[str, int], out: Sink[str, int]) -> None:
    out.send(None if record.key.endswith("7") else record.key, record.value)
"""


async def test_an_output_without_a_key_to_a_compacted_topic(console: Console, place: Place) -> None:
    log = await place.open()
    await log.create_topic(TopicSpec("out", 2, "changelog"))
    console.write("bank.py", KEYLESS)
    produce(console, "plain")
    console.start("run", "bank:app", name="run")
    good = Counter(f"plain {n}" for n in range(60) if n % 10 != 7)
    console.until("all others", lambda: keys(console, "out").total() >= good.total())
    assert keys(console, "out") == good, console.said("run")
    assert "which keeps the last record of each key" in console.said("run")


BESIDE = """
from orchestrator import App, Record, Sink, Table, Tumbling

app = App("bank", partitions=2)
plain = app.topic("plain", key=str, value=int)
out = app.topic("out", key=str, value=bytes)
beside = app.topic("beside", key=str, value=int)
dead = app.topic("dead", key=bytes, value=bytes)
kept = app.table("kept", key=str, value=bytes)
seen = app.table("seen", key=str, value=int, default=int)
sums = app.table("sums", key=int, value=int, default=int)
by_rest = plain.rekey("by-rest", key=int, by=lambda record: record.value % 7)


@app.processor(plain, kept, out, on_error={policy})
def one(record: Record[str, int], kept: Table[str, bytes], out: Sink[str, bytes]) -> None:
    if record.value % 2:
        kept[record.key] = bytes(record.value)
    out.send(record.key, bytes(10 if record.value % 2 else record.value))


@app.processor(plain, seen, beside{batch})
def other(given: Record[str, int], seen: Table[str, int], beside: Sink[str, int]) -> None:
    for record in given if {is_batch} else [given]:
        seen[record.key] += 1
        beside.send(record.key, record.value)


@app.processor(by_rest, sums)
def add(record: Record[int, int], sums: Table[int, int]) -> None:
    sums[record.key] += 1
"""


@pytest.mark.parametrize("batch", ["", ", batch=True"], ids=["records", "batches"])
def test_the_others_that_read_it_are_called_with_it(console: Console, batch: str) -> None:
    """A re-key and a processor beside the one that writes it have no policy at all."""
    console.write("bank.py", BESIDE.format(policy="dead", batch=batch, is_batch=bool(batch)))
    produce(console, "plain")
    fleet = console.start("run", "bank:app", "--instances", "2", name="run")
    every = Counter(f"plain {n}" for n in range(60))
    good = Counter(f"plain {n}" for n in range(60) if n not in SIZES)

    def have_come() -> bool:
        sums = [json.loads(line)["value"] for line in console("table", "dump", "bank", "sums").out.splitlines()]
        return fleet.poll() is not None or (sum(sums) >= 60 and keys(console, "dead").total() >= 3)

    console.until("all of it", have_come)
    assert fleet.poll() is None, console.said("run")
    assert keys(console, "out") == good, console.said("run")
    assert keys(console, "beside") == every
    letters = [json.loads(line) for line in console("consume", "bank", "dead").out.splitlines()]
    assert Counter(one["headers"]["error-processor"] for one in letters) == {"one": 3}
    dumped = [json.loads(line) for line in console("table", "dump", "bank", "seen").out.splitlines()]
    assert {row["key"]: row["value"] for row in dumped} == dict(every)
    sums = [json.loads(line) for line in console("table", "dump", "bank", "sums").out.splitlines()]
    rests = Counter(SIZES.get(n, 10) % 7 for n in range(60))
    assert {row["key"]: row["value"] for row in sums} == dict(rests)


def test_only_the_one_that_writes_it_stops(console: Console) -> None:
    console.write("bank.py", BESIDE.format(policy='"stop"', batch="", is_batch=False))
    produce(console, "plain")
    fleet = console.start("run", "bank:app", name="run")
    assert fleet.wait(60) == 1
    text = console.said("run")
    assert "error: one at plain-" in text and "writes what the log does not take (a record of 60" in text, text
