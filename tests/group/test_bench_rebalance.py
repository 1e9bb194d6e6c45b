"""`orchestrator bench rebalance`: the model's arithmetic, its laws, and what a user can type wrong."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.errors import OrchestratorError, WrongUse
from orchestrator.model import Protocol, Settings, TaskId
from orchestrator.simulator.benchmark import rehearsal as rehearsal_module
from orchestrator.simulator.benchmark.changelog import Changelog
from orchestrator.simulator.benchmark.history import Doing, Span, double_work_ms, silences
from orchestrator.simulator.benchmark.rehearsal import Rehearsal
from orchestrator.simulator.benchmark.workload import DEFAULT, Workload, parse_workload

T = TaskId(0, 0)
SMALL = """
tasks 6 state=40MiB rate=200
instances 2
at 5s join 1
"""


def rehearse(workload: Workload, protocol: Protocol, **more: object) -> Rehearsal:
    rehearsal = Rehearsal(workload, Settings(protocol=protocol, check_invariants=True, **more))  # type: ignore[arg-type]
    rehearsal.run()
    return rehearsal


def test_a_changelog_grows_while_its_task_runs_and_owes_the_rest() -> None:
    changelog = Changelog(live=100, rate=10)
    assert changelog.end(5_000) == 100
    changelog.start(5_000)  # five seconds of input waited
    assert changelog.end(5_000) == 150 and changelog.end(6_000) == 160
    changelog.stop(6_000)
    assert changelog.end(9_000) == 160 and changelog.oldest(9_000) == 60


def test_silence_is_what_no_run_covers() -> None:
    spans = [
        Span(T, "I1", Doing.RUN, 0, 3_000),
        Span(T, "I2", Doing.LEARN, 1_000, 2_500),
        Span(T, "I2", Doing.RUN, 4_000, 9_000),
        Span(T, "I1", Doing.RUN, 8_000, 9_500),  # told twice for a while: covered once
    ]
    assert silences(spans, [T], 2_000, 10_000) == {T: 1_500}
    assert double_work_ms(spans, 2_000) == 500


def test_the_same_workload_gives_the_same_figures() -> None:
    first, second = (rehearse(parse_workload(SMALL), Protocol.LEARNER) for _ in range(2))
    assert first.measures() == second.measures()
    assert first.history.spans == second.history.spans


def test_without_learners_a_move_costs_its_restore_and_with_them_a_commit() -> None:
    """Two tasks of 40 MiB go to the third instance, which reads 50 MiB a second: 1.6 s for both, side by side."""
    cold = rehearse(parse_workload(SMALL), Protocol.COOPERATIVE).measures()
    assert cold.moves == 2 and cold.cold == 2
    assert 1_600 <= cold.worst_task_ms <= 2_000
    assert cold.restored_bytes >= 2 * (40 << 20)
    warm = rehearse(parse_workload(SMALL), Protocol.LEARNER, acceptable_recovery_time_ms=1).measures()
    assert warm.moves == 2 and warm.cold == 0
    assert warm.worst_task_ms < 100
    assert warm.double_work_ms > 2_000


def test_a_crash_with_standbys_waits_for_the_grace_only() -> None:
    crash = "tasks 4 state=40MiB rate=100\ninstances 2\nat 5s crash I1\n"
    alone = rehearse(parse_workload(crash), Protocol.LEARNER).measures()
    assert alone.worst_task_ms > Settings().session_timeout_ms  # the disk might have come back
    followed = rehearse(parse_workload(crash), Protocol.LEARNER, standbys=1).measures()
    assert followed.worst_task_ms < Settings().disconnect_grace_ms + 1_000


def test_a_task_without_state_waits_for_no_disk() -> None:
    crash = "tasks 4 stateless rate=100\ninstances 2\nat 5s crash I1\n"
    alone = rehearse(parse_workload(crash), Protocol.LEARNER).measures()
    assert alone.worst_task_ms < Settings().disconnect_grace_ms + 1_000


def test_a_failover_stops_nobody() -> None:
    quiet = rehearse(parse_workload(SMALL.replace("join 1", "failover")), Protocol.LEARNER).measures()
    assert quiet.silent_ms == 0 and quiet.moves == 0


def test_everybody_leaves_who_was_told_to() -> None:
    workload = parse_workload("tasks 8 state=1MiB rate=10\ninstances 4\nat 2s leave 50%\nat 60s join 50%\n")
    rehearsal = rehearse(workload, Protocol.LEARNER)
    assert len(rehearsal.present()) == 3  # 4 -> 2 -> 3
    assert sorted(len(w.running) for h in rehearsal.hosts.values() for w in h.workers if w.alive) == [2, 3, 3]


@pytest.mark.parametrize("changes", ["at 1s leave 50%\nat 2s failover\n", "at 1s failover\nat 2s leave 50%\n"])
def test_a_scale_down_outlives_its_coordinator(changes: str) -> None:
    workload = parse_workload(f"tasks 8 state=100MiB rate=100\ninstances 4\n{changes}")
    assert len(rehearse(workload, Protocol.LEARNER).present()) == 2


@pytest.mark.parametrize(
    ("text", "standbys", "told"),
    [
        ("tasks 4 state=1MiB rate=5\ninstances 2\nat 5s crash I1 I2\n", 0, "no instance is left"),
        ("tasks 4 state=1MiB rate=5\ninstances 3\nat 5s leave 1\nat 5s crash I1 I2\n", 0, "to whom I3 could hand"),
        ("tasks 8 state=1GiB rate=1000000\ninstances 2\n", 1, "writes may outrun its restores"),
        ("tasks 1 state=1MiB rate=5\ninstances 1\nat 30d join 1\n", 0, "changes that follow sooner"),
    ],
)
def test_what_never_ends_is_told(monkeypatch: pytest.MonkeyPatch, text: str, standbys: int, told: str) -> None:
    monkeypatch.setattr(rehearsal_module, "EVENTS_MAX", 200_000)
    monkeypatch.setattr(rehearsal_module, "REST_MS_MAX", 600_000)
    with pytest.raises(OrchestratorError, match=told):
        rehearse(parse_workload(text), Protocol.LEARNER, standbys=standbys)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tasks", "tasks N state=SIZE"),
        ("tasks 0 state=1MiB", "whole number"),
        ("tasks 4", "state=SIZE or stateless"),
        ("tasks 4 stateless state=1MiB", "state=SIZE or stateless"),
        ("tasks 4 state=1MB", "not a size"),
        ("tasks 4 state=1MiB rate=-3", "records a second"),
        (f"tasks {'9' * 5_000} state=1MiB", "whole number"),
        (f"tasks 4 state=1MiB rate={'9' * 5_000}", "records a second"),
        ("tasks 4 state=1MiB speed=3", "not understood"),
        ("instances many", "whole number"),
        ("at soon join 1", "not a duration"),
        ("at 5s explode I1", "at TIME CHANGE"),
        ("at 5s failover I1", "at TIME CHANGE"),
        ("at 5s crash", "at TIME CHANGE"),
        ("at 5s leave 0.5", "write 50%"),
        ("speeds restore=fast", "not a size"),
        ("speeds lease=3", "not a duration"),
        ("at 31d join 1", "at most 30d"),
        ("tasks 4 state=1MiB rate=1 rate=2", "rate= stands there twice"),
        ("hello", "unknown word"),
    ],
)
def test_what_cannot_be_read_is_named(line: str, told: str) -> None:
    with pytest.raises(WrongUse, match="line 1:") as failure:
        parse_workload(line)
    assert told in str(failure.value)


def test_instances_are_told_once() -> None:
    with pytest.raises(WrongUse, match="line 3: there is an 'instances' line already"):
        parse_workload("tasks 2 stateless\ninstances 2\ninstances 3\n")


def test_a_byte_order_mark_is_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\ufefftasks 2 stateless rate=1\ninstances 2\n"
    (tmp_path / "workload.txt").write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    for name in (str(tmp_path / "workload.txt"), "-"):
        assert main(["bench", "rebalance", "--workload", name, "--copies", "none", "--protocol", "eager"]) == 0
        assert "2 tasks (0 with" in capsys.readouterr().out


def test_changes_that_make_no_sense_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for text, told in (
        ("tasks 2 state=1MiB\ninstances 2\nat 1s crash I7\n", "no instance I7 runs then"),
        ("tasks 2 state=1MiB\ninstances 2\nat 1s return I1\n", "no instance I1 has crashed then"),
        ("tasks 2 state=1MiB\n", "'instances' line"),
        ("tasks 2 state=1MiB\ninstances 2\nat 1s join 1000000000\n", "at most 5000"),
    ):
        (tmp_path / "workload.txt").write_text(text)
        assert main(["bench", "rebalance", "--workload", str(tmp_path / "workload.txt")]) == 2
        assert told in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "workload.txt").write_text(SMALL)
    told = ["bench", "rebalance", "--workload", str(tmp_path / "workload.txt"), "--copies", "none"]
    assert main([*told, "--json", "--svg", str(tmp_path / "picture.svg")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert [run["protocol"] for run in answer["runs"]] == [
        "eager",
        "cooperative",
        "learner-eager",
        "learner-conservative",
    ]
    silent = {run["protocol"]: run["without_processing_s"] for run in answer["runs"]}
    assert silent["learner-eager"] < silent["cooperative"] <= silent["eager"]
    drawn = ElementTree.parse(tmp_path / "picture.svg").getroot()
    titles = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [title for title in titles if title and "no copies" in title] == [
        f"{run['protocol']}, no copies" for run in answer["runs"]
    ]
    assert main([*told, "--protocol", "learner-eager"]) == 0
    assert "learner-eager" in capsys.readouterr().out
    assert main(["bench"]) == 2 and main(["bench", "rebalance", "--workload", str(tmp_path)]) == 2


def test_the_default_workload_can_be_read() -> None:
    assert len(parse_workload(DEFAULT).tasks) == 32
