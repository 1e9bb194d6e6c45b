"""What names a version of an app: its own word, or a digest of the source that it was loaded from. One rule: each load is in a
process of its own, as a worker's is."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, *{archives!r}]
from workers.app_version import app_version
from pipeline.loading import load
print(app_version(load({target!r})))
"""
APP = """
from orchestrator import App, Record
app = App("shop")
orders = app.topic("orders", key=str, value=int)
@app.processor(orders)
def order(order: Record[str, int]) -> None: ...
"""


def version(folder: Path, target: str = "shop:app", archives: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(root=str(ROOT), archives=list(archives), target=target)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def write(folder: Path, **sources: str) -> Path:
    for name, source in sources.items():
        file = folder / f"{name.replace('__in__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


def test_a_module_names_its_version(tmp_path: Path) -> None:
    assert version(write(tmp_path, shop=f'__version__ = " 1.4.2 "\n{APP}')) == "1.4.2"
    assert version(tmp_path, "./shop.py:app") == "1.4.2"
    package = write(tmp_path, bank__in__shop=APP, bank__in____init__='__version__ = "2\\n\\x1b[1m"')
    assert version(package, "bank.shop:app") == "2??[1m"
    assert len(version(write(tmp_path, long=f'__version__ = "1" * 5000\n{APP}'), "long:app")) == 60


def test_what_is_no_version_is_none(tmp_path: Path) -> None:
    for number, wrong in enumerate(("''", "None", "(1, 2)", "3")):
        name = f"shop{number}"
        assert re.fullmatch(
            "[0-9a-f]{8}", version(write(tmp_path, **{name: f"__version__ = {wrong}\n{APP}"}), f"{name}:app")
        )


def test_a_digest_changes_with_the_code_that_is_used_and_only_with_it(tmp_path: Path) -> None:
    """Where it lies, and what it imports of others, is no part of it."""
    app = f"import json\nimport rules\nimport orchestrator.model\n{APP}"
    first = version(write(tmp_path / "a", shop=app, rules="LIMIT = 5"))
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert version(write(tmp_path / "b", shop=app, rules="LIMIT = 5", unused="LIMIT = 6")) == first
    assert version(tmp_path / "b", "./shop.py:app") == first
    assert version(write(tmp_path / "c", shop=app, rules="LIMIT = 6")) != first
    assert version(write(tmp_path / "d", shop=f"{app}\n# new", rules="LIMIT = 5")) != first


def test_an_app_lies_among_what_is_installed(tmp_path: Path) -> None:
    """By itself, as a wheel; or below it, as an executor's folder in that of Spark. Of a wheel what lies beside it is others'."""
    places = tmp_path / "site-packages", tmp_path / "site-packages" / "pyspark" / "work" / "app-1"
    for place in places:
        app = {"bank__in____init__": "", "bank__in__shop": f"import other\nfrom bank import rules\n{APP}"}
        first = version(write(place, **app, other="", bank__in__rules="LIMIT = 5"), "bank.shop:app")
        assert re.fullmatch("[0-9a-f]{8}", first)
        assert (version(write(place, other="LIMIT = 1"), "bank.shop:app") == first) is (place == places[0])
        write(place, other="")
        assert version(write(place, bank__in__rules="LIMIT = 6"), "bank.shop:app") != first


def test_what_python_has_is_no_part_of_it_wherever_it_lies(tmp_path: Path) -> None:
    """An app in the root folder of a container has Python below it; of that each process imports what its settings need."""
    lib = Path(sysconfig.get_path("stdlib"))
    script = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom workers.app_version import _sources\nfrom pathlib import Path\n"
    asked = f"{script}import json\nprint([str(one) for one, _ in _sources(Path({str(lib.parent)!r}))])"
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done


def test_a_package_is_taken_whole_and_an_archive_read(tmp_path: Path) -> None:
    sources = {
        "bank__in____init__": "",
        "bank__in__shop": f"from bank import rules\n{APP}",
        "bank__in__rules": "LIMIT = 5",
    }
    first = version(write(tmp_path / "a", **sources), "bank.shop:app")
    assert version(write(tmp_path / "b", **{**sources, "bank__in__rules": "LIMIT = 6"}), "bank.shop:app") != first
    with zipfile.ZipFile(tmp_path / "bank.zip", "w") as archive:
        for file in sorted((tmp_path / "a" / "bank").glob("*.py")):
            archive.write(file, f"bank/{file.name}")
    (tmp_path / "c").mkdir()
    assert version(tmp_path / "c", "bank.shop:app", (str(tmp_path / "bank.zip"),)) == first
