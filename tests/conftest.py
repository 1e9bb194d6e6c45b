"""What all tests share: the switch that rewrites scenario files (never in CI)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.console import Console


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected part of scenario files")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    wanted = bool(request.config.getoption("--rewrite"))
    if wanted and os.environ.get("CI"):
        pytest.fail("--rewrite is refused in CI")
    return wanted


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A folder with the bank in it, and the command line."""
    found = Console(tmp_path / "place").bank()
    yield found
    found.close()
