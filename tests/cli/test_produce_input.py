"""`produce` from standard input: a run that ended in the middle is gone on from by the same lines, and by nothing else.
Records are counted by their amounts, each of which is written once."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import msgspec
import pytest

from orchestrator import App
from pipeline.files.piped import Piped
from pipeline.files.shape import Reading, Shape
from state.log.group_store import AppMetadata
from state.log.memory import MemoryLog
from state.log.protocol import NewRecord, Partition, TopicSpec
from tests.cli.console import Console, Done
from workers.commands.produce_input import KEPT_MS, UNFINISHED, Unfinished, begin_input

WORDS = ("produce", "bank:app", "payments")


def line(number: int, key: str = "k") -> str:
    return json.dumps({"key": f"{key}{number}", "value": {"account": key, "amount": number}}) + "\n"


def lines(first: int, behind: int) -> str:
    return "".join(line(number) for number in range(first, behind))


def amounts(console: Console) -> list[int]:
    found = console.here("consume", "bank", "payments").out.splitlines()
    return sorted(json.loads(one)["value"]["amount"] for one in found)


@pytest.mark.processes
def test_it_goes_on_behind_what_was_written_before_a_bad_line(console: Console) -> None:
    first = console.here(*WORDS, stdin=lines(0, 2_500) + '{"key": "b"\n' + lines(2_501, 2_600))
    assert first.code == 1 and first.err.startswith("error: line 2501: "), first
    assert "the 2500 records before it are written; correct it and run it again, it goes on there" in first.err
    again = console.here(*WORDS, "--json", stdin=lines(0, 2_501) + "[]\n")
    assert again.code == 1 and again.json == {"schema": 1, "records": 1} and "line 2502: " in again.err, again
    assert "lines 1 to 2500 were written by a run that ended there; going on behind them" in again.err
    assert console.here(*WORDS, stdin=lines(0, 2_600)).out == "99 records\n"
    assert amounts(console) == list(range(2_600))
    assert console.here(*WORDS, stdin=lines(0, 2_600)).out == "2600 records\n", (
        "a run that came to its end left nothing"
    )


@pytest.mark.processes
def test_the_same_line_twice_is_two_records(console: Console) -> None:
    for count in (1, 2, 3):
        done = console.here(*WORDS, stdin=line(7))
        assert (done.out, done.err) == ("1 record\n", "")
        assert amounts(console) == [7] * count
    assert console.here(*WORDS, stdin=line(7) + "[]\n").code == 1, "what is left of this is one line"
    for other in (line(8) + line(7), line(7).replace(":", " :")):
        assert console.here(*WORDS, stdin=other).err == "", "other lines"
    done = console.here(*WORDS, stdin=line(7))
    assert done.out == "0 records\n" and "lines 1 to 1 were written by a run that ended there" in done.err
    assert console.here(*WORDS, stdin=line(7)).out == "1 record\n", "once more"


@pytest.mark.processes
def test_other_lines_that_begin_alike_are_written_whole(console: Console) -> None:
    assert console.here(*WORDS, stdin=lines(0, 1_500) + "[]\n").code == 1
    other = lines(0, 1_400) + lines(5_000, 5_200)
    assert console.here(*WORDS, stdin=other).out == "1600 records\n"
    assert console.here(*WORDS, stdin=lines(0, 100)).out == "100 records\n", "less than what was left"
    assert console.here(*WORDS, stdin=lines(0, 1_600)).out == "100 records\n"
    expected = [*range(1_600), *range(1_400), *range(5_000, 5_200), *range(100)]
    assert amounts(console) == sorted(expected)


@pytest.mark.processes
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_one_that_is_ended_from_outside_is_gone_on_from(console: Console, sign: signal.Signals) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        producing = console.start(*WORDS, name="produce", stdin=reader)
        os.close(reader)
        pipe.write(lines(0, 300).encode())
        console.until("the first records", lambda: len(amounts(console)) == 300)
        beside = console.here(*WORDS, stdin=lines(0, 2_000))  # the same lines while the first run goes on: another's
        assert (beside.out, beside.err) == ("2000 records\n", "")
        producing.send_signal(sign)
        assert console.end(producing) == (-sign if sign == signal.SIGKILL else 128 + sign)
    assert console.here(*WORDS, stdin=lines(0, 1_000)).out == "700 records\n"
    assert amounts(console) == sorted([*range(1_000), *range(2_000)])


@pytest.mark.processes
def test_two_that_write_one_file_write_it_once(console: Console) -> None:
    """The one that stops says what it has written; it said that nothing was."""
    console.write("all.jsonl", lines(0, 400))
    words = ("produce", "bank:app", "payments", "--file", "all.jsonl")
    slow = console.start(*words, "--rate", "40", name="slow")
    console.until("some are written", lambda: len(amounts(console)) > 0)
    tries: list[Done] = []

    def is_first() -> (
        bool
    ):  # the slow one writes every 50 ms: where it does so meanwhile, it is the other one that stops
        tries.append(console(*words))
        return tries[-1].code == 0

    console.until("the other one to be first", is_first)
    done = tries[-1]
    assert all("another `produce` writes the same input" in one.err for one in tries[:-1]), tries
    assert slow.wait(30) == 1
    said = console.said("slow")
    match = re.fullmatch(
        r"error: another `produce` writes the same input to topic payments, from line (\d+) on: (\d+) records? of this one (?:is|are) "
        r"written, and none is written twice; .*, it goes on there\n",
        said,
    )
    assert match and done.out == f"{400 - int(match[2])} records\n" and int(match[1]) == int(match[2]) + 1, (said, done)
    assert sorted(amounts(console)) == list(range(400))
    assert "was produced before" in console(*words).out


@pytest.mark.processes
def test_a_file_is_read_from_where_it_stands(console: Console) -> None:
    path: Path = console.write("given.jsonl", "a heading\n" + lines(0, 50) + "[]\n")
    for correct, code in ((lambda text: text, 1), (lambda text: text.replace("[]\n", lines(50, 60)), 0)):
        path.write_text(correct(path.read_text()))
        with path.open("rb", buffering=0) as file:
            file.seek(len("a heading\n"))
            assert console.end(console.start(*WORDS, name="produce", stdin=file.fileno())) == code
    assert amounts(console) == list(range(60))


@pytest.mark.processes
def test_lines_that_may_be_others_wait_and_it_is_said(console: Console) -> None:
    assert console.here(*WORDS, stdin=lines(0, 10) + "[]\n").code == 1
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        producing = console.start(*WORDS, name="produce", stdin=reader)
        os.close(reader)
        pipe.write(lines(0, 3).encode())
        console.until("it says so", lambda: "waiting: so far these are the lines of a run" in console.said("produce"))
        pipe.write(lines(77, 78).encode())  # known for others by the fourth line, long before the tenth
        console.until("they are written", lambda: len(amounts(console)) == 14)
    assert console.end(producing) == 0 and amounts(console) == sorted([*range(10), 0, 1, 2, 77])


async def test_what_is_left_is_forgotten_after_a_week(tmp_path: Path) -> None:
    log = MemoryLog()
    await log.create_topic(TopicSpec("payments", 1))
    path = tmp_path / "lines"
    path.write_text('{"key": "a", "value": 1}\n' * 3)
    topic = App("bank", partitions=1).topic("payments", key=str, value=int)
    reading = Reading("payments", topic.key_codec, topic.value_codec)

    async def begun() -> int:
        with path.open("rb") as file:
            given = await begin_input(log, "bank", Piped(file), reading, Shape())
            return given.before

    with path.open("rb") as file:
        given = await begin_input(log, "bank", Piped(file), reading, Shape())
        next(given.records())
        written = given.progress("bank", is_last=False, has_ended=True)
        assert written is not None
        await log.append({Partition("payments", 0): [NewRecord(b"a", b"1", 1)]}, metadata=written[0], seen=written[1])
    assert await begun() == 1
    ((name, value),) = (await log.metadata_of("bank", UNFINISHED)).items()
    one = msgspec.json.decode(value, type=Unfinished)
    old = msgspec.json.encode(msgspec.structs.replace(one, at_ms=one.at_ms - KEPT_MS - 1))
    await log.put_metadata(*AppMetadata("bank", UNFINISHED, name, old))
    others = AppMetadata("bank", UNFINISHED, f"another{name}", old)
    await log.put_metadata(*others)
    assert await begun() == 0
    left = await log.metadata_of("bank", UNFINISHED)
    assert left == {others.key: old}, "of another input: this machine's clock may be wrong"


def test_a_pipe_with_a_name_is_no_file(console: Console) -> None:
    """It is read twice, and what was read first is lost: its lines were taken for damaged ones, or waited for."""
    os.mkfifo(console.folder / "pipe.jsonl")
    done = console.here("produce", "bank:app", "payments", "--file", "pipe.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "pipe.jsonl is a pipe or a device, and can be read only once; give it on standard input" in done.err
    assert not (console.folder / ".orchestrator/bank.db").exists()
