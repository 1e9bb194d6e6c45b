"""What all tests share: the switch that rewrites scenario files (never in CI)."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected part of scenario files")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    wanted = bool(request.config.getoption("--rewrite"))
    if wanted and os.environ.get("CI"):
        pytest.fail("--rewrite is refused in CI")
    return wanted
