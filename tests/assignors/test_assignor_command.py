"""`orchestrator assign`: answers, both forms of the file, and every complaint with its line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.assign import run

TEXT = """\
# Example 3 of KIP-54
topic t0 2
topic t1 2

member C0 topics t0 t1 owned t0-0 t1-0
member C1 topics t0 t1 owned t0-1 t1-1
member C2 topics t0 t1
"""
DOCUMENT: dict[str, Any] = {
    "topics": {"t0": 2, "t1": 2},
    "members": {
        "C0": {"topics": ["t0", "t1"], "owned": ["t0-0", "t1-0"]},
        "C1": {"topics": ["t0", "t1"], "owned": ["t0-1", "t1-1"]},
        "C2": {"topics": ["t0", "t1"]},
    },
}


def write(folder: Path, text: str) -> str:
    path = folder / "group.txt"
    path.write_text(text)
    return str(path)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([write(tmp_path, TEXT)]) == 0
    assert capsys.readouterr().out == (
        "member  count  kept  partitions\n"
        "C0          2     2  t0-0 t1-0\n"
        "C1          1     1  t0-1\n"
        "C2          1     0  t1-1\n"
        "\n"
        "moved    t1-1: C1 -> C2\n"
        "sticky: 4 partitions, 3 members, 1 move, 1 to 2 each, balance score 2\n"
    )


@pytest.mark.parametrize("text", [TEXT, json.dumps(DOCUMENT, indent=1)], ids=["text", "json"])
def test_json_of_both_forms(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "--assignor", "cooperative-sticky", write(tmp_path, text)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert answer["assignor"] == "cooperative-sticky"
    assert answer["members"]["C2"] == {"partitions": [], "count": 0, "kept": 0, "beside_rack": None}
    assert answer["withheld"] == ["t1-1"]
    assert answer["moves"] == [{"partition": "t1-1", "from": "C1", "to": None}]
    assert (answer["fewest"], answer["most"], answer["balance_score"], answer["partitions"]) == (0, 2, 4, 4)


def test_standard_input_racks_and_preference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "topic t 2\nmember A topics t rack a\nmember B topics t rack b instance i generation 4 owned t-0\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text + "replicas t-0 a\nreplicas t-1 b\n"))
    assert run(["--prefer", "fair", "-"]) == 0
    out = capsys.readouterr().out
    assert "racks    2 partitions beside a replica" in out
    assert "moved    t-0: B -> A" in out


def test_help_shows_the_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(["--help"])
    assert stop.value.code == 0
    assert "replicas t0-0 a b" in capsys.readouterr().out


COMPLAINTS = [
    ("topic t0 two", "partition count 'two' is no whole number; FILE line 1; write: topic NAME PARTITIONS"),
    ("topic t0 -1", "partition count -1 is below 0; FILE line 1"),
    ("topic t0 1\n\ntopic t0 1", "topic 't0' is there twice; FILE line 3"),
    ("topics t0 1", "'topics' is unknown; FILE line 1; begin with topic, member or replicas"),
    ("member", "a member line has an id; FILE line 1"),
    ("member a b", "'b' stands where one of topics, owned, generation, instance, rack is expected; FILE line 1"),
    ("member a topics t topics u", "'topics' is there twice; FILE line 1"),
    ("member a\nmember a", "member 'a' is there twice; FILE line 2"),
    ("# group\nmember a owned t0", "'t0' is no partition; FILE line 2"),
    ("member a owned t0--1", "'t0--1' is no partition"),
    ("member a generation -2", "generation -2 is below -1"),
    ("member a rack", "'rack' takes one word, not 0"),
    ("replicas t-0", "a replicas line has a partition and its racks"),
    ("replicas t-0 a\nreplicas t-0 b", "replicas of t-0 are there twice; FILE line 2"),
    ('{"topics": {"t0": 1},\n "members": [}', "FILE line 2; write one JSON object"),
    ('{"topics": {"t0": 1,\n "t0": 2}}', "key 't0' is there twice; FILE line"),
    ('{"topics": {"t0": 1,\n "t1": -2}}', "partition count -2 of topic 't1' is not 0 or more; FILE line 2"),
    ('{\n"racks": {}}', "key 'racks' is unknown; FILE line 2; use topics, members, replicas"),
    ('{"members": 3}', "'members' is no object; FILE line 1"),
    ('{"members": {\n"a": {},\n"b": {"topics": "t"}}}', "topics of member 'b': 't' is no list of texts; FILE line 3"),
    ('{"members": {\n"a": {"owns": []}}}', "key 'owns' of member 'a' is unknown; FILE line 2"),
    ('{"members": {"a": {"owned": ["t0"]}}}', "'t0' is no partition; FILE line 1"),
    ('{"members": {"a": {"generation": "5"}}}', "generation '5' of member 'a' is not -1 or more"),
    ('{"members": {"a": {"rack": 5}}}', "rack 5 of member 'a' is not text"),
    ('{"members": {"a": 5}}', "member 'a' is no object"),
    ('{"replicas": {"t-0": "a"}}', "replicas of 't-0': 'a' is no list of texts"),
    ('{"replicas": {"t-0": ["a"],\n"t-00": ["b"]}}', "replicas of t-0 are there twice; FILE line 2"),
    ("topic t +3", "partition count '+3' is no whole number"),
    ("topic t 1_000", "partition count '1_000' is no whole number"),
    ("topic t \u0663", "partition count '\u0663' is no whole number"),
    ("topic t " + "9" * 5_000, "partition count '999"),
    ("topic t 20000000", "with 20000000 partitions of topic 't' there are more than 10,000,000; FILE line 1"),
    ("topic t 6000000\ntopic u 6000000", "with 6000000 partitions of topic 'u' there are more than 10,000,000"),
    (
        '{"topics": {"t": 20000000}}',
        "with 20000000 partitions of topic 't' there are more than 10,000,000; FILE line 1",
    ),
    ('{"topics": {"t": ' + "9" * 5_000 + "}}", "partition count inf of topic 't' is not 0 or more; FILE line 1"),
    ("member a owned t-" + "9" * 5_000, "is no partition; FILE line 1"),
    ('{"topics": ' * 100_000, "it is nested too deeply; FILE"),
    ('{"members": {"\\ud800": {}}}', "is no text; FILE line 1"),
]


@pytest.mark.parametrize(("text", "complaint"), COMPLAINTS, ids=[text[:60] for text, _ in COMPLAINTS])
def test_bad_input_is_named_with_its_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, text)
    assert run([file]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert complaint in shown.err.replace(file, "FILE")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "the following arguments are required: FILE"),
        (["missing.txt"], "cannot read the description: No such file or directory; missing.txt"),
        (["--assign", "sticky", "x"], "--assign"),
        (["--assignor", "best", "x"], "invalid choice: 'best'"),
        (["--assignor", "range", "--prefer", "fair", "GROUP"], "--prefer does not apply to range"),
    ],
)
def test_wrong_use(argv: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = write(tmp_path, TEXT)
    assert run([group if word == "GROUP" else word for word in argv]) == 2
    shown = capsys.readouterr().err
    assert complaint in shown
    assert shown.count("\n") == 1


def test_the_constrained_assignor_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "topic t 1\nmember a topics t\nmember b\n"
    assert run(["--assignor", "constrained-cooperative-sticky", write(tmp_path, text)]) == 2
    assert "member 'a' reads topic 't', member 'b' does not" in capsys.readouterr().err


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "group.bin"
    path.write_bytes(b"\xff\xfe")
    assert run([str(path)]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err


def test_standard_input_that_is_no_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert run(["-"]) == 2
    assert "is not UTF-8 text: invalid start byte; standard input" in capsys.readouterr().err


@pytest.mark.parametrize("text", [TEXT, json.dumps(DOCUMENT)], ids=["text", "json"])
def test_a_byte_order_mark_is_passed_over(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([write(tmp_path, "\ufeff" + text)]) == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{text}".encode()), encoding="utf-8"))
    assert run(["-"]) == 0
    assert capsys.readouterr().out.count("4 partitions, 3 members") == 2
