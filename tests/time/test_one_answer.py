"""Drawn apps give one answer in the Driver, live through a kill and a scale-up, and over history: the short form of `make one-answer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.time.drawn import PARTS, drawn
from tests.time.one_answer import Different, of_driver, one_answer, same

pytestmark = [pytest.mark.processes, pytest.mark.spark]


def test_a_drawn_app_gives_one_answer(tmp_path: Path, spark: Any) -> None:
    one_answer(2, tmp_path, spark)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 105))
def test_drawn_apps_give_one_answer(seed: int, tmp_path: Path, spark: Any) -> None:
    one_answer(seed, tmp_path, spark)


def test_what_is_drawn() -> None:
    """Twenty apps have everything, send something of each kind, and leave something late."""
    texts = [drawn(seed) for seed in range(1, 21)]
    for word in (
        "Tumbling",
        "Hopping",
        "Sliding",
        "Session",
        "offset=",
        "timers",
        'kind="outer"',
        "versions=",
        "@app.table_join",
    ):
        assert any(word in one.text for one in texts), word
    assert len(PARTS) == 7
    one = drawn(3)
    answer = of_driver(one.text, one.records)
    assert answer.out and answer.behind and all(answer.tables.values())
    with pytest.raises(Different, match="k0 count: from 1 of 3 and 3"):
        same("two", {"k0 count": ["1", "2", "3"]}, {"k0 count": ["1", "3", "2"]})
