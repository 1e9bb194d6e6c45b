"""A campaign of lives: stopped, resumed, and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.__main__ import Campaign, read, write


def test_the_same_command_again_goes_on_and_counts_no_life_twice() -> None:
    campaign = Campaign(first=500)
    for seed in list(campaign.seeds(500, 10))[:4]:  # stopped
        campaign = campaign.after(seed)
    assert campaign.seeds(500, 10) == range(504, 510)
    for seed in campaign.seeds(500, 10):
        campaign = campaign.after(seed)
    assert campaign.lives == 10 and not campaign.seeds(500, 10)


def test_without_a_beginning_it_goes_on_and_with_another_it_begins_there() -> None:
    campaign = Campaign(first=500, next=504, lives=4)
    assert campaign.seeds(None, 3) == range(504, 507)
    assert campaign.seeds(7, 3) == range(7, 10)
    assert campaign.seeds(500, 2) == range(500, 502)  # it is beyond those: they are asked for again


def test_progress_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    assert read(None) == read(path) == Campaign()
    write(path, Campaign(5, 9, 4))
    assert read(path) == Campaign(5, 9, 4)
    assert [p.name for p in tmp_path.iterdir()] == ["progress"]
    path.write_text('{"next": 9, "lives": 4}')  # as it was written before there was a beginning in it
    assert read(path) == Campaign(0, 9, 4)
    for strange in ("", "[]", '{"next": 3}', "\N{SNOWMAN}"):
        path.write_text(strange)
        with pytest.raises(SystemExit, match="no progress of a campaign"):
            read(path)
