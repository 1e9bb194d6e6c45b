"""Every block of code of every page: programs run, commands are taken by our own parsers, settings are read.

One rule: a block that no check covers fails, so that nothing stands in the pages that was never tried.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import PAGES, ROOT, blocks

WITH_PROGRAMS = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
LANGUAGES = {"", "python", "console", "toml", "yaml", "properties", "mermaid", "ini", "dockerfile", "csv", "sql"}

# Pages whose blocks of another language a test of another folder plays.
PLAYED_BY = {"docs/sql.md": "tests/spark/test_state_source.py"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def test_every_block_has_a_language_that_is_checked() -> None:
    strange = [block for page in PAGES for block in blocks(page) if block.language not in LANGUAGES]
    assert [block.where for block in strange if str(block.page.relative_to(ROOT)) not in PLAYED_BY] == []
    for page, test in PLAYED_BY.items():
        assert page in (ROOT / test).read_text(), f"{test} does not play {page}"
    assert sum(len(blocks(page)) for page in PAGES) > 80, "the pages are not read"


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Modules are looked for in the folder first; what was imported from it is forgotten again."""
    sys.path.insert(0, str(folder))
    back, writes = Path.cwd(), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(back)
        sys.dont_write_bytecode = writes
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]
        importlib.invalidate_caches()


def run_tests_of(module: Any) -> int:
    """Calls the tests of a module, which take no fixtures and need no plugin of pytest; returns how many there are."""
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    for test in tests:
        assert not inspect.iscoroutinefunction(test), f"{test.__name__}: pytest alone does not run it"
        test()
    return len(tests)


@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=named)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Named blocks are files of one folder. All are imported; tests are called. A block without a name stands alone."""
    programs: list[str] = []
    for block in (block for block in blocks(page) if block.language == "python"):
        name = block.name or f"block_{block.line}.py"
        assert not (tmp_path / name).exists(), f"{block.where}: {name} is there twice"
        (tmp_path / name).write_text(block.text)
        if block.note.startswith("runs in "):
            compile(block.text, name, "exec")
            assert (ROOT / block.note.removeprefix("runs in ")).exists(), block.where
        else:
            programs.append(name)
    with importable(tmp_path):
        modules = {name: importlib.import_module(name.removesuffix(".py")) for name in programs}
        for name, module in modules.items():
            if name.startswith("test_"):
                assert run_tests_of(module) > 0, f"{name} has no tests"


def test_a_program_that_fails_is_seen(tmp_path: Path) -> None:
    for test, why in (
        ("def test_a():\n    assert 1 == 2\n", None),
        ("async def test_a(): ...\n", "pytest alone does not run it"),
    ):
        (tmp_path / "test_wrong.py").write_text(test)
        with importable(tmp_path), pytest.raises(AssertionError, match=why):
            run_tests_of(importlib.import_module("test_wrong"))
    assert "test_wrong" not in sys.modules and str(tmp_path) not in sys.path
