"""`orchestrator completion`: what bash completes, asked of bash; and every shell's script has every option."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.commands import COMMANDS
from orchestrator.cli.completion import SHELLS, commands
from orchestrator.cli.settings import TABLE
from tests.cli.console import Console


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Console(tmp_path_factory.mktemp("completion"))
    done = place.here("completion", "bash")
    assert done.code == 0 and done.err == "", done
    return place.write("orchestrator.bash", done.out)


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    quoted = " ".join(f"'{word}'" for word in ("orchestrator", *words))
    asked = f'set -u; source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _orchestrator; echo "${{COMPREPLY[*]:-}}"'
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, cwd=script.parent, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_what_bash_completes(script: Path) -> None:
    assert completed(script, "sta") == {"status"}
    assert completed(script, "") == {*COMMANDS, "--help", "--version"}
    assert completed(script, "status", "bank", "--wa") == {"--watch"}
    assert completed(script, "run", "bank:app", "--protocol", "") == {"eager", "cooperative", "learner"}
    assert completed(script, "run", "bank:app", "--on-stop", "l") == {"leave"}
    assert completed(script, "table", "") >= {"scan", "dump", "--prefix"}
    assert completed(script, "table", "d") == {"dump"}
    assert completed(script, "broker", "start", "st") == set()
    (script.parent / "some.key").write_text("")
    assert completed(script, "run", "bank:app", "--tls-key", "some") == {"some.key"}


def test_every_command_has_its_options() -> None:
    found = {command.name: command for command in commands()}
    assert set(found) == set(COMMANDS)
    options = {name: {option.name for option in command.options} for name, command in found.items()}
    assert options["run"] >= {f"--{name}" for name in ("instances", "metrics-port", "name", "on")}
    assert "--failpoint" not in options["run"], "what help hides is not completed"
    assert all("--help" in one for one in options.values())
    protocol = next(option for option in found["run"].options if option.name == "--protocol")
    assert protocol.choices == TABLE["protocol"].choices and protocol.takes
    assert not next(option for option in found["status"].options if option.name == "--watch").takes
    assert "[env" not in "".join(option.help for command in found.values() for option in command.options)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_option(console: Console, shell: str) -> None:
    done = console.here("completion", shell)
    assert done.code == 0
    for command in commands():
        assert re.search(rf"\b{command.name}\b", done.out)
        for option in command.options:
            wanted = f"-l {option.name[2:]}" if shell == "fish" else option.name
            assert wanted in done.out, (command.name, wanted)
    program = shutil.which(shell)
    if program is not None:
        path = console.write(f"script.{shell}", done.out)
        assert subprocess.run([program, "-n", str(path)], check=False).returncode == 0


def test_another_shell_is_wrong_use(console: Console) -> None:
    done = console.here("completion", "tcsh")
    assert done.code == 2 and "invalid choice: 'tcsh'" in done.err
    assert console.here("status", "--help").code == 0, "parsers parse again"
