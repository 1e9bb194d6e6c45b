"""From MODULE:APP to an App, in a process of its own as the command line has it; every mistake is said by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BANK = """
from orchestrator import App, Record
app = App("bank")
payments = app.topic("payments", key=str, value=str)
@app.processor(payments)
def settle(payment: Record[str, str]) -> None: ...
empty = App("empty")
def make():
    return app
def wrong(name):
    return app
def raises():
    raise ValueError("no luck")
def ends():
    raise SystemExit(0)
number = 5
"""
LOAD = """
import sys
sys.path.insert(0, {root!r})
from pipeline.loading import load
from pipeline.errors import LoadError
try:
    print("loaded", load({target!r}).id)
except LoadError as error:
    print(error)
    print(error.frames)
"""


def load(folder: Path, target: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD.format(root=str(ROOT), target=target)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bank.py").write_text(BANK)
    return tmp_path


@pytest.mark.parametrize("target", ["bank:app", "bank:make()"])
def test_loads_from_the_current_folder(folder: Path, target: str) -> None:
    assert load(folder, target) == "loaded bank"


@pytest.mark.parametrize("name", ["pipeline", "state", "workers", "orchestrator", "my-app"])
def test_loads_a_file_whatever_its_name(folder: Path, name: str) -> None:
    (folder / "beside.py").write_text("WORD = 'bank'")
    (folder / "src").mkdir()
    for path in (folder / f"{name}.py", folder / "src" / f"{name}.py"):
        path.write_text(BANK + "\nimport beside\nassert beside.WORD == 'bank'\n")
    (folder / "src" / "beside.py").write_text("WORD = 'bank'")
    for target in (f"./{name}.py:app", f"{name}.py:make()", f"src/{name}.py:app", f"{folder}/src/{name}.py:app"):
        assert load(folder, target) == "loaded bank", target
    (folder / f"{name}.py").write_text("raise ValueError('mine')")
    assert "cannot be imported: ValueError: mine" in load(folder, f"{name}.py:app")


def test_loads_from_a_package(folder: Path) -> None:
    (folder / "apps").mkdir()
    (folder / "apps" / "one.py").write_text(BANK)
    assert load(folder, "apps.one:app") == "loaded bank"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("bnak:app", "there is no module 'bnak' in {folder} or where Python looks; did you mean 'bank'?"),
        ("bank:ap", "module 'bank' has no 'ap'; did you mean 'app'?; write bank:app or bank:empty"),
        ("bank:number", "bank:number is an int, not an App; write bank:app or bank:empty"),
        ("bank:make", "bank:make is a function, not an App; if it makes the App, write bank:make()"),
        ("bank:app()", "bank:app(): an App cannot be called; leave out the ()"),
        ("bank:wrong()", "bank:wrong() raised TypeError: wrong() missing 1 required positional argument: 'name'"),
        ("bank:ends()", "bank:ends() ends the program; let it return the App"),
        ("bank:raises()", "bank:raises() raised ValueError: no luck"),
        ("bank:empty", "bank:empty: app 'empty' has no processors; declare one with @app.processor(...)"),
        ("bank", "'bank' names no app; write MODULE:APP, for example bank:app"),
        ("bank.py", "'bank.py' names no app; write FILE.py:APP, for example bank.py:app"),
        ("./none.py:app", "there is no file {folder}/none.py; name the file of the app, for example ./bank.py:app"),
        ("bank:a b", "'bank:a b' is not MODULE:APP or MODULE:FACTORY()"),
        ("./bank:app", "'./bank:app' is not MODULE:APP or MODULE:FACTORY(); the app of a file is ./bank.py:app"),
    ],
)
def test_mistakes_are_named(folder: Path, target: str, told: str) -> None:
    assert load(folder, target).splitlines()[0] == told.format(folder=folder)


def test_errors_of_the_users_module_show_their_frames(folder: Path) -> None:
    for text, told in (
        ("import nothing_of_the_sort", "broken imports nothing_of_the_sort, which is not installed"),
        ("def f():\n    return 1 / 0\nf()", "broken cannot be imported: ZeroDivisionError: division by zero"),
        ("raise GeneratorExit", "broken cannot be imported: GeneratorExit"),
        ("def f(): raise BaseException('odd')\nf()", "broken cannot be imported: BaseException: odd"),
        ("x = (", "broken cannot be imported: SyntaxError: '(' was never closed (broken.py, line 1)"),
        (
            BANK + "\n@app.processor(payments)\ndef swapped(payment, other): ...",
            "broken cannot be imported: DefinitionError: swapped(other) does not match the declaration ()",
        ),
    ):
        (folder / "broken.py").write_text(text)
        lines = load(folder, "broken:app").splitlines()
        assert lines[0].startswith(told)
        assert any("broken.py" in line for line in lines[1:])
        assert not any("loading.py" in line or "importlib" in line for line in lines)
    (folder / "broken.py").write_text("raise SystemExit(3)")
    assert "ends the program when it is imported" in load(folder, "broken:app")


@pytest.mark.parametrize("name", ["state", "workers", "pipeline", "orchestrator"])
def test_a_module_that_would_hide_ours_is_refused_at_once(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text("")
    hides = f"{name}.py in {folder} hides the package '{name}' of stream-orchestrator; rename it, or name the file of the app"
    assert load(folder, "bank:app").startswith(hides) and load(folder, "bank:app").endswith(": ./bank.py:app")
    assert load(folder, "bank:make()").endswith(": ./bank.py:make()")
    assert load(folder, f"{name}:app").endswith(f": ./{name}.py:app"), "the file that was meant"
    assert load(folder, "./bank.py:app") == "loaded bank"
    (folder / f"{name}.py").unlink()
    (folder / name).mkdir()
    assert load(folder, "bank:app") == "loaded bank"  # a folder that is no package hides nothing
    (folder / name / "__init__.py").write_text("")
    assert f"hides the package '{name}'" in load(folder, "bank:app")


def test_a_module_called_as_one_of_pythons_own(folder: Path) -> None:
    (folder / "numbers.py").write_text(BANK)
    refused = load(folder, "numbers:app").splitlines()[0]
    assert refused.startswith("the name 'numbers' is taken by ") and refused.endswith(": ./numbers.py:app"), refused
    assert load(folder, "./numbers.py:app") == "loaded bank"


def test_a_module_that_is_a_link_to_another_folder(folder: Path) -> None:
    releases = folder / "releases"
    for name in ("app", "elsewhere"):
        (releases / name).mkdir(parents=True)
    (releases / "elsewhere" / "linked.py").write_text(BANK)
    (releases / "app" / "linked.py").symlink_to(releases / "elsewhere" / "linked.py")
    assert load(releases / "app", "linked:app") == "loaded bank"


@pytest.mark.parametrize("name", ["state", "workers", "pipeline"])
@pytest.mark.parametrize("wanted", ["from orchestrator import App", "from orchestrator.testing import Driver"])
def test_also_where_python_is_started_directly(folder: Path, name: str, wanted: str) -> None:
    (folder / f"{name}.py").write_text("")
    code = f"import sys; sys.path.append({str(ROOT)!r}); {wanted}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: {folder / name}.py hides the package '{name}' of stream-orchestrator; rename it"
