"""The wheel and the sdist, built and used as a user does: an empty environment, no extras, the README's app."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 60.0
pytestmark = pytest.mark.processes


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("ORCHESTRATOR_")}


def ran(*words: str | Path, cwd: Path, stdin: str = "") -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def made(path: Path) -> Path:
    """The Python of a new, empty environment: also without pip, which takes seconds to install."""
    venv.create(path)
    return path / "bin" / "python"


def pip(python: Path, *words: str | Path, cwd: Path) -> str:
    """What our own pip prints, at work in that environment."""
    return ran(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", *words, cwd=cwd)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built of the sdist."""
    place = tmp_path_factory.mktemp("built")
    python = made(place / "builder")
    pip(python, "install", "hatchling", cwd=place)
    ran(python, "-m", "hatchling", "build", "--directory", place / "dist", "--target", "sdist", cwd=ROOT)
    [sdist] = (place / "dist").glob("*.tar.gz")
    pip(python, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place / "dist", sdist, cwd=place)
    return place / "dist"


def test_what_is_in_them(built: Path) -> None:
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    sources = [
        path.relative_to(ROOT)
        for room in ("orchestrator", "workers", "state", "pipeline", "examples")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".json", ".typed")
    ]
    assert [str(path) for path in sources if str(path) not in names] == []
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]
    [metadata] = [name for name in names if name.endswith("METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert re.findall(r"Python :: (3\.\d+)", text) == ["3.11", "3.12", "3.13"]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "orchestrator/cli/main.py"} <= inside


def test_the_readmes_app_runs_without_extras(built: Path, tmp_path: Path) -> None:
    python = made(tmp_path / "empty")
    [wheel] = built.glob("*.whl")
    pip(python, "install", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    listed = pip(python, "list", "--format", "json", cwd=tmp_path)
    assert not {row["name"] for row in json.loads(listed)} & {"pyspark", "pyarrow", "pytest", "faust-streaming"}
    program = re.search(r"```python\n# bank\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "bank.py").write_text(program[1])
    orchestrator = python.with_name("orchestrator")
    assert ran(orchestrator, "--version", cwd=folder).strip()
    run = subprocess.Popen(
        [orchestrator, "run", "bank:app", "--instances", "2"], cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    )
    try:
        ran(orchestrator, "wait", "bank", "--instances", "2", cwd=folder)
        paid = json.dumps({"key": "ann", "value": {"account": "ann", "amount": -5}})
        ran(orchestrator, "produce", "bank:app", "payments", cwd=folder, stdin=paid)
        assert ran(orchestrator, "query", "bank", "balances", "ann", cwd=folder) == "-5\n"
        alert = json.loads(ran(orchestrator, "consume", "bank", "alerts", cwd=folder))
        assert (alert["key"], alert["value"]) == ("ann", "overdrawn")
        assert json.loads(ran(orchestrator, "board", cwd=folder))["panels"]
        assert "_orchestrator" in ran(orchestrator, "completion", "bash", cwd=folder)
    finally:
        run.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_S
        while run.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(1)
        run.kill()
    assert run.returncode == 0, sys.version
