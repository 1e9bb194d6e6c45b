"""Where a setting comes from: flag, environment, orchestrator.toml, pyproject.toml, default."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import COMMAND_LINE_ONLY, TABLE, Sources
from orchestrator.errors import WrongUse
from orchestrator.instance_settings import INSTANCE, InstanceSettings, instance_values
from orchestrator.member.load_meter import UNITS
from orchestrator.model import Protocol, Settings
from orchestrator.setting import Setting
from orchestrator.settings import BY_KEY, GROUP, group_settings, group_settings_of, named_in
from orchestrator.simulator.scenario_words import parse_settings
from tests.cli.console import Console
from workers.spec import InstanceSpec, decode_instance, encode_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ORCHESTRATOR_STANDBYS", "ORCHESTRATOR_LOG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def standbys(*words: str) -> int:
    parser = Parser("test", "")
    parser.setting("standbys")
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


def test_config_show_names_what_acts(tmp_path: Path) -> None:
    """`settings show` had 700ms, which a new group waits at least, and this had 0s."""
    console = Console(tmp_path)

    def shown() -> tuple[str, str]:
        rows = {row["name"]: row for row in console.here("config", "show", "--json").json["settings"]}
        return rows["initial-delay"]["value"], rows["initial-delay"]["source"]

    assert shown() == ("700ms", "default")
    assert "default 700ms]" in " ".join(console.here("run", "--help").out.split())
    console.write("orchestrator.toml", 'initial-delay = "5ms"\n')
    assert shown() == ("700ms", "the least; orchestrator.toml: 5ms")
    console.write("orchestrator.toml", 'initial-delay = "2s"\n')
    assert shown() == ("2s", "orchestrator.toml")


def test_config_show_tells_value_and_place(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", 'commit-interval = "50ms"\n')
    console.write("pyproject.toml", "[tool.orchestrator]\nstandbys = 1\n")
    console.environment["ORCHESTRATOR_LOG_LEVEL"] = "info"
    shown = console.here("config", "show", "--json")
    assert (shown.code, shown.err, shown.json["schema"]) == (0, "", 1)
    rows = {row["name"]: row for row in shown.json["settings"]}
    assert set(rows) == {name for name, setting in TABLE.items() if not setting.hidden}
    assert (rows["commit-interval"]["value"], rows["commit-interval"]["source"]) == ("50ms", "orchestrator.toml")
    assert (rows["standbys"]["value"], rows["standbys"]["source"]) == ("1", "pyproject.toml [tool.orchestrator]")
    assert rows["log-level"]["source"] == "ORCHESTRATOR_LOG_LEVEL"
    assert (rows["heartbeat"]["value"], rows["heartbeat"]["source"]) == ("1s", "default")
    assert rows["log"] == {"name": "log", "value": None, "source": "default", "variable": "ORCHESTRATOR_LOG"}
    lines = [line.split() for line in console.here("config", "show").out.splitlines()]
    assert ["commit-interval", "50ms", "orchestrator.toml"] in lines
    lines = console.here("config", "show", "--log", "kafka://broker:9092").out.splitlines()
    assert ["log", "kafka://broker:9092", "command", "line"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("standbies = 1", "did you mean 'standbys'?"),
        ("metrics-host = ' '", "orchestrator.toml: metrics-host = has an empty text"),
        ('advertise = "\\t"', "orchestrator.toml: advertise = has an empty text"),
        ("listen = ' '", "orchestrator.toml: listen = has an empty text; write a value, or leave it out"),
        ("commit_interval = '1s'", "did you mean 'commit-interval'?"),
        ("to = '50%'", "--to comes from the command line alone"),
        ("force = true", "neither text nor a whole number"),
        ("force = 1", "--force comes from the command line alone"),
        ("standbys = 'many'", "orchestrator.toml: standbys = many: 'many' is not a whole number"),
        ("heartbeat = 5", "not a duration"),
        ("protocol = 'magic'", "not one of eager, cooperative, learner"),
        ("= broken", "is not TOML"),
        ("standbys = [1]", "neither text nor a whole number"),
        ("[orchestrator]\nstandbys = 1", "[orchestrator] is a section, and settings have none"),
        ("restore-rate-limit = '0.4B'", "'0.4B' is less than a byte"),
        ("standbys = " + "9" * 5_000, "a number that is too long"),
        ("standbys = " + "[" * 5_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", text + "\n")
    done = console.here("config", "show")
    assert (done.code, done.out) == (2, "")
    assert said in done.err, done.err
    assert done.err.count("\n") == 1


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As editors of Windows write it: line 1 was no TOML."""
    console = Console(tmp_path / "place")
    console.write("orchestrator.toml", "\ufeffcommit-interval = '50ms'\n")
    lines = [line.split() for line in console.here("config", "show").out.splitlines()]
    assert ["commit-interval", "50ms", "orchestrator.toml"] in lines


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


@pytest.mark.parametrize("words", [("config", "show"), ("status", "bank"), ("produce", "bank:app", "payments")])
def test_an_empty_text_is_no_value(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As `ORCHESTRATOR_LOG=$LOG` has it where LOG is not set: a fleet would begin on another log than the one that was meant."""
    console = Console(tmp_path / "place").bank()
    console.environment["ORCHESTRATOR_LOG"] = ""
    done = console.here(*words)
    assert (done.code, done.out) == (2, "") and "ORCHESTRATOR_LOG has an empty text" in done.err, done
    console.environment.pop("ORCHESTRATOR_LOG")
    console.write("orchestrator.toml", 'log = ""\n')
    done = console.here(*words)
    assert (done.code, done.out) == (2, "") and "orchestrator.toml: log has an empty text" in done.err, done
    assert not (console.folder / ".orchestrator").exists()


def test_no_deed_is_a_setting() -> None:
    assert not COMMAND_LINE_ONLY & set(TABLE)
    for setting in TABLE.values():
        if setting.default:
            setting.read(setting.default, setting.name)


# ---- settings of the group: one row each

FREE = {"check_invariants"}  # for tests and scenarios: no flag
EXPLAIN = Path(__file__).resolve().parent.parent.parent / "orchestrator" / "explain"
EXAMPLES = {
    "protocol": "eager",
    "ready": "conservative",
    "weights": "rate",
    "task-weights": "0_1=7",
    "restore-rate-limit": "7KiB",
    "log-level": "info",
    "failpoint": "commit:7",
}


def test_every_field_of_the_group_is_one_row_with_its_default() -> None:
    assert sorted(row.field for row in GROUP) == sorted({f.name for f in fields(Settings)} - FREE)
    defaults = {row.field: row.read(row.default, row.name) for row in GROUP}
    assert group_settings(defaults) == Settings()
    assert all(TABLE[row.name] is row for row in GROUP)


@pytest.mark.parametrize("row", GROUP, ids=lambda row: row.name)
def test_flag_file_and_scenario_give_the_group_the_same(
    row: Setting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = EXAMPLES.get(row.name, "7s" if row.field.endswith("_ms") else "7")
    words = ["--session-timeout", "9s"] if row.name == "heartbeat" else []

    def parsed(*more: str) -> Settings:
        parser = Parser("test", "")
        for each in GROUP:
            parser.setting(each.name)
        return group_settings_of(parser.parse_args([*words, *more]))

    by_flag = parsed(f"--{row.name}", text)
    assert getattr(by_flag, row.field) != getattr(Settings(), row.field)
    monkeypatch.setenv(row.variable, text)
    assert parsed() == by_flag
    monkeypatch.delenv(row.variable)
    (folder / "orchestrator.toml").write_text(f'{row.name} = "{text}"\n')
    assert parsed() == by_flag
    base = Settings(session_timeout_ms=9_000) if words else Settings()
    assert parse_settings(base, [f"{row.key}={text}"]) == by_flag
    assert parse_settings(base, [f"{row.name}={text}"]) == by_flag


def test_every_field_of_an_instance_that_is_a_setting_is_one_row() -> None:
    assert sorted(row.field for row in INSTANCE) == sorted(InstanceSettings.__struct_fields__)
    assert all(TABLE[row.name] is row for row in INSTANCE)


@pytest.mark.parametrize("row", INSTANCE, ids=lambda row: row.name)
def test_flag_variable_and_file_give_an_instance_the_same(
    row: Setting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `run` starts it with: nothing on the way names the setting."""
    text = EXAMPLES.get(row.name) or (row.choices[-1] if row.choices else "7s" if row.field.endswith("_ms") else "7")

    def parsed(*words: str) -> InstanceSpec:
        parser = Parser("test", "")
        parser.settings(*(each.name for each in INSTANCE))
        values = instance_values(parser.parse_args(list(words)), "/somewhere")
        spec = InstanceSpec("a:app", "a", "i1", "sqlite:a.db", "state", **values)
        return decode_instance(encode_spec(spec))

    plain, by_flag = parsed(), parsed(f"--{row.name}", text)
    assert plain == InstanceSpec("a:app", "a", "i1", "sqlite:a.db", "state")
    assert [name for name in plain.__struct_fields__ if getattr(plain, name) != getattr(by_flag, name)] == [row.field]
    assert not row.is_path or getattr(by_flag, row.field) == "/somewhere/7"
    monkeypatch.setenv(row.variable, text)
    assert parsed() == by_flag
    monkeypatch.delenv(row.variable)
    (folder / "orchestrator.toml").write_text(f'{row.name} = "{text}"\n')
    assert parsed() == by_flag


def test_what_is_for_tests_is_not_in_help(tmp_path: Path) -> None:
    console = Console(tmp_path / "place")
    assert "--commit-interval" in console.here("run", "--help").out
    assert "failpoint" not in console.here("run", "--help").out.lower()
    assert "failpoint" not in console.here("config", "show").out
    console.environment["ORCHESTRATOR_FAILPOINT"] = "commit:x"
    assert "failpoint" in console.here("config", "show").out, "but one that is set is seen"


def test_weights_that_are_measured_are_those_that_can_be_set() -> None:
    assert BY_KEY["weights"].choices == ("given", *UNITS)


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert group_settings({"protocol": "eager"}).protocol is Protocol.EAGER
    with pytest.raises(WrongUse, match="session-timeout is not longer than heartbeat"):
        group_settings({"heartbeat_ms": 10_000})


def test_what_explain_names_can_be_set() -> None:
    """Each `(release_timeout)` in a sentence is a setting by its key."""
    trees = [ast.parse(path.read_text()) for path in EXPLAIN.glob("*.py")]
    texts = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is str
    ]
    named = set(re.findall(r"\(([a-z]+(?:_[a-z]+)+)\)", " ".join(texts)))
    assert {"release_timeout", "rejoin_grace", "initial_delay", "balancing_factor"} <= named
    assert named <= set(BY_KEY), named - set(BY_KEY)
    said = ["it waits (release_timeout)", "all at once (ready=conservative)", "and (of course) nothing else"]
    assert named_in(said, Settings(ready="conservative")) == {"ready": "conservative", "release-timeout": "10s"}
