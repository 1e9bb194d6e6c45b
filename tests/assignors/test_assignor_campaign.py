"""The campaign of random groups: a few in the normal run, ten thousand in the long one."""

from __future__ import annotations

import pytest

from tests.assignors import campaign


def test_a_few_random_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--groups", "300"]) == 0
    assert "300  groups" in capsys.readouterr().out


@pytest.mark.long
def test_ten_thousand_random_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--groups", "10000"]) == 0
    assert "10,000  groups" in capsys.readouterr().out
