"""Where a setting comes from: flag, environment, orchestrator.toml, pyproject.toml, default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import DEEDS, TABLE, Sources
from tests.cli.console import Console


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ORCHESTRATOR_STANDBYS", "ORCHESTRATOR_LOG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def standbys(*words: str) -> int:
    parser = Parser("test", "")
    parser.setting("--standbys")
    return int(parser.parse_args(list(words)).standbys)


def test_the_nearer_place_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert standbys() == 0
    (folder / "pyproject.toml").write_text("[tool.orchestrator]\nstandbys = 1\n[tool.other]\nx = 1\n")
    assert standbys() == 1
    (folder / "orchestrator.toml").write_text("standbys = 2\n")
    assert standbys() == 2
    monkeypatch.setenv("ORCHESTRATOR_STANDBYS", "3")
    assert standbys() == 3
    assert standbys("--standbys", "4") == 4


def test_config_show_tells_value_and_place(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", 'commit-interval = "50ms"\n')
    console.write("pyproject.toml", "[tool.orchestrator]\nstandbys = 1\n")
    console.environment["ORCHESTRATOR_LOG_LEVEL"] = "info"
    shown = console.here("config", "show", "--json")
    assert (shown.code, shown.err, shown.json["schema"]) == (0, "", 1)
    rows = {row["name"]: row for row in shown.json["settings"]}
    assert set(rows) == set(TABLE)
    assert (rows["commit-interval"]["value"], rows["commit-interval"]["source"]) == ("50ms", "orchestrator.toml")
    assert (rows["standbys"]["value"], rows["standbys"]["source"]) == ("1", "pyproject.toml [tool.orchestrator]")
    assert rows["log-level"]["source"] == "ORCHESTRATOR_LOG_LEVEL"
    assert (rows["heartbeat"]["value"], rows["heartbeat"]["source"]) == ("1s", "default")
    assert rows["log"] == {"name": "log", "value": None, "source": "default", "variable": "ORCHESTRATOR_LOG"}
    lines = [line.split() for line in console.here("config", "show").out.splitlines()]
    assert ["commit-interval", "50ms", "orchestrator.toml"] in lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("standbies = 1", "did you mean 'standbys'?"),
        ("commit_interval = '1s'", "did you mean 'commit-interval'?"),
        ("to = '50%'", "--to comes from the command line alone"),
        ("force = true", "neither text nor a whole number"),
        ("force = 1", "--force comes from the command line alone"),
        ("standbys = 'many'", "orchestrator.toml: standbys = many: 'many' is not a whole number"),
        ("heartbeat = 5", "not a duration"),
        ("protocol = 'magic'", "not one of eager, cooperative, learner"),
        ("= broken", "is not TOML"),
        ("standbys = [1]", "neither text nor a whole number"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", text + "\n")
    done = console.here("config", "show")
    assert (done.code, done.out) == (2, "")
    assert said in done.err, done.err
    assert done.err.count("\n") == 1


def test_every_command_with_settings_reads_the_files(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", "lgo = 'x'\n")
    for words in (["status", "x"], ["run", "x:y"], ["scale-down", "x", "--to", "1"], ["query", "x", "t", "k"]):
        done = console.here(*words)
        assert done.code == 2 and "did you mean 'log'?" in done.err


def test_strange_variables_warn_and_those_of_kubernetes_do_not() -> None:
    environment = {
        "ORCHESTRATOR_STANDBIES": "1",
        "ORCHESTRATOR_TO": "50%",
        "ORCHESTRATOR_PORT": "tcp://10.0.0.1:80",
        "ORCHESTRATOR_LOG_PORT": "tcp://10.0.0.1:80",
        "ORCHESTRATOR_PORT_80_TCP_ADDR": "10.0.0.1",
        "ORCHESTRATOR_SERVICE_HOST": "10.0.0.1",
        "ORCHESTRATOR_LOG_SERVICE_PORT_HTTP": "80",
        "ORCHESTRATOR_STANDBYS": "1",
        "OTHER": "x",
    }
    warnings = Sources(Path("/nonexistent"), environment).strange()
    assert [warning.split()[0] for warning in warnings] == ["ORCHESTRATOR_STANDBIES", "ORCHESTRATOR_TO"]
    assert "did you mean ORCHESTRATOR_STANDBYS?" in warnings[0]
    assert "--to comes from the command line alone" in warnings[1]


def test_a_warning_goes_to_stderr_and_stops_nothing(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.environment["ORCHESTRATOR_STANDBIES"] = "1"
    done = console.here("config", "show", "--json")
    assert done.code == 0 and json.loads(done.out)
    assert done.err.startswith("warning: ORCHESTRATOR_STANDBIES") and done.err.count("\n") == 1


def test_no_deed_is_a_setting() -> None:
    assert not DEEDS & set(TABLE)
    for setting in TABLE.values():
        if setting.default:
            setting.read(setting.default, setting.name)
