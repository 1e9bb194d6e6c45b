"""Which of a test's parameters each run has; the others are `make test-long`'s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def often(names: Iterable[Any], *chosen: Any) -> list[Any]:
    """All of them as parameters, marked `long` where they are not among the chosen ones. Raises ValueError: one of these is not there."""
    names = list(names)
    if missing := [one for one in chosen if one not in names]:
        raise ValueError(f"chosen, and not there: {missing}")
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.long) for name in names]
