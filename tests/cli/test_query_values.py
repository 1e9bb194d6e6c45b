"""Queries of tables whose stored bytes are not just the value; simulate's JSON; a port that is taken."""

from __future__ import annotations

import json
import socket

import pytest

from orchestrator.coordinator.listener import Listener, Peer
from orchestrator.errors import WrongUse
from tests.cli.console import ROOT, Console
from tests.group.coordinators import CREDENTIALS
from workers.commands import query_place

EXPIRING = """
from datetime import timedelta

import msgspec

from orchestrator import App, Record, Table


class Visit(msgspec.Struct, frozen=True):
    who: str
    day: int


app = App("bank", partitions=1)
visits = app.topic("visits", key=str, value=int)
seen = app.table("seen", key=str, value=int, expire=timedelta(seconds=10))
pairs = app.table("pairs", key=tuple[str, int], value=list[int], local=True)
days = app.table("days", key=Visit, value=int, local=True)


@app.processor(visits, seen, days, pairs)
def visit(
    visit: Record[str, int], seen: Table[str, int], days: Table[Visit, int], pairs: Table[tuple[str, int], list[int]]
) -> None:
    seen[visit.key] = visit.value
    days[Visit(visit.key, visit.value)] = visit.value
    pairs[visit.key, visit.value] = [visit.value]
"""


@pytest.mark.long
@pytest.mark.processes
def test_a_table_that_the_version_has_not_got_which_runs_the_task(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the task was not open, and to try again, for as long as that version ran it."""
    console.write("bank.py", EXPIRING)
    fleet = console.run()
    fleet.terminate()
    assert console.end(fleet) == 0
    without = EXPIRING.replace(", pairs)", ")").replace(", pairs: Table[tuple[str, int], list[int]]", "")
    lines = [line for line in without.splitlines() if not line.strip().startswith("pairs")]
    console.write("bank.py", "\n".join(lines) + "\n")
    console.run()
    monkeypatch.setattr(query_place, "FIND_S", 1.0)  # for as long it may be another version that runs it next
    for words in (("query", "bank", "pairs", '["new", 2]'), ("table", "scan", "bank", "pairs")):
        refused = console.here(*words)
        assert refused.code == 1 and refused.err.count("\n") == 1, refused
        assert "0_0 runs on i1 in a version of the app without a table 'pairs'" in refused.err, refused


@pytest.mark.processes
def test_an_expiring_table_and_a_key_of_parts(console: Console) -> None:
    console.write("bank.py", EXPIRING)
    rows = [("old", 1, 1_000), ("new", 2, 12_000)]
    lines = [json.dumps({"key": key, "value": value, "timestamp_ms": ms}) for key, value, ms in rows]
    assert console.here("produce", "bank:app", "visits", stdin="\n".join(lines)).code == 0
    console.run()
    found = console.here("query", "bank", "seen", "new", "--json")
    assert (found.code, found.json["value"]) == (0, 2), found
    assert console.here("query", "bank", "seen", "old").code == 5, "it has expired by stream time"
    assert console.here("query", "bank", "pairs", '["new", 2]').out == "[2]\n"
    for typed in (
        '{"who": "new", "day": 2}',
        '{"day": 2, "who": "new"}',
    ):  # in the order of the class, however it is typed
        assert console.here("query", "bank", "days", typed).out == "2\n"
    first = console.here(
        "table", "scan", "bank", "days", "--until", '{"who": "new", "day": 3}', "--from", '{"who": "new", "day": 2}'
    )
    assert (first.code, json.loads(first.out)["key"]) == (0, {"who": "new", "day": 2}), first
    for wrong in ("new", '["new", "x"]', '["new"]'):
        refused = console.here("query", "bank", "pairs", wrong)
        assert refused.code == 2 and f"'{wrong}' is no key of this table" in refused.err, refused
        for bound in ("--from", "--until"):
            refused = console.here("table", "scan", "bank", "pairs", bound, wrong)
            assert refused.code == 2 and f"'{wrong}' is no key of this table" in refused.err, refused
    between = console.here("table", "scan", "bank", "pairs", "--from", '["new",2]', "--until", '[ "new", 3 ]')
    assert (between.code, json.loads(between.out)["key"]) == (0, ["new", 2]), between
    console.write("empty", "").chmod(0o600)
    (console.folder / "folder").mkdir()
    for where, reason in (("empty", "empty holds no secret"), ("folder", "the secret folder is a folder")):
        refused = console.here("query", "bank", "seen", "new", "--secret-file", where)
        assert refused.code == 2 and refused.err.startswith(f"error: {reason}"), refused
    shown = [json.loads(line) for line in console.here("consume", "bank", "bank-seen-changelog").out.splitlines()]
    assert [(one["key"], one["value"]) for one in shown] == [("old", None), ("new", 2)]


def test_simulate_prints_an_object_a_command(console: Console) -> None:
    scenario = (ROOT / "tests/scenarios/seed_scale_down.txt").read_text()
    console.write("what-if.txt", scenario)
    done = console.here("simulate", "what-if.txt", "--json")
    assert done.code == 0, done
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert rows
    for row in rows:
        assert row.keys() >= {"command", "generation", "leader", "members", "events", "error"}
        for member in row["members"].values():
            assert member.keys() >= {"active", "revoked", "learning", "standby"}


async def test_a_port_that_is_taken_and_an_open_address() -> None:
    async def nobody(_: Peer) -> None: ...

    listener = Listener(CREDENTIALS, nobody)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WrongUse, match=f"cannot listen on 127.0.0.1:{port} .*choose another port"):
            await listener.open("127.0.0.1", port)
    for host in ("0.0.0.0", "10.0.0.5", "host"):
        with pytest.raises(WrongUse, match=f"--listen {host}: .*needs TLS"):
            await listener.open(host)


BINARY = """
from orchestrator import App, Record, Table

app = App("bank", partitions=1)


class Reversed:
    def encode(self, value: str) -> bytes:
        return value.encode()[::-1]

    def decode(self, data: bytes) -> str:
        return data[::-1].decode()


frames = app.topic("frames", key=bytes, value=bytes)
names = app.topic("names", key=Reversed(), value=Reversed())
last = app.table("last", key=bytes, value=bytes)
known = app.table("known", key=Reversed(), value=int)


@app.processor(frames, last)
def frame(frame: Record[bytes, bytes], last: Table[bytes, bytes]) -> None:
    last[frame.key] = frame.value


@app.processor(names, known)
def name(name: Record[str, str], known: Table[str, int]) -> None:
    known[name.key] = len(name.value)
"""


@pytest.mark.processes
def test_bytes_that_are_no_text_are_read_as_they_are_shown(console: Console) -> None:
    """What `consume` printed could not be produced, and a binary key not be queried at all."""
    console.write("bank.py", BINARY)
    binary = {
        "key": {"base64": "AP8="},
        "value": {"base64": "/w=="},
        "headers": {"id": {"base64": "/wA="}, "of": ["x", "y"]},
    }
    text = {"key": "k", "value": "v"}
    lines = "\n".join(map(json.dumps, (binary, text)))
    assert console.here("produce", "bank:app", "frames", stdin=lines).code == 0
    assert console.here("produce", "bank:app", "names", stdin='{"key": "ann", "value": "smith"}').code == 0
    console.run()
    for topic in ("frames", "names"):
        shown = console.here("consume", "bank", topic).out
        assert console.here("produce", "bank:app", topic, stdin=shown).code == 0, shown
        again = [json.loads(line) for line in console.here("consume", "bank", topic).out.splitlines()]
        half = len(again) // 2
        facts = [(one["key"], one["value"], one["headers"]) for one in again]
        assert facts[:half] == facts[half:]
        assert topic == "names" or facts[0] == tuple(binary.values())
    assert console.here("query", "bank", "last", json.dumps(binary["key"])).out == '{"base64": "/w=="}\n'
    assert console.here("query", "bank", "last", "k").out == '"v"\n'
    (row,) = console.here("table", "scan", "bank", "known").out.splitlines()
    assert console.here("query", "bank", "known", json.dumps(json.loads(row)["key"])).out == "5\n"
    refused = console.here("query", "bank", "known", '"ann"')
    assert refused.code == 2 and "write its bytes as they are shown" in refused.err, refused
    bad = console.here("produce", "bank:app", "frames", stdin='{"key": "a", "value": {"base64": "?"}}')
    assert bad.code == 1 and "is not a string" in bad.err, bad
