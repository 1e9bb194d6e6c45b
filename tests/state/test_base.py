"""A changelog that goes on from a snapshot."""

from __future__ import annotations

import pytest

from state.errors import StateError
from state.log import base
from state.log.protocol import TopicInfo

TOPIC = TopicInfo("t", "id-1", 4, "changelog")


def test_what_a_replay_needs() -> None:
    one = base.Base("snap-1", "id-1", 40)
    assert base.needed(0, None) is None
    assert "snap-1" in (base.needed(0, one) or "")
    assert "snap-1" in (base.needed(39, one) or "")
    assert base.needed(40, one) is None


def test_a_base_is_of_one_topic_and_not_of_its_namesake() -> None:
    one = base.Base("snap-1", "id-1")
    assert base.of_topic({"t": base.encode(one), "u": b"{}"}, TOPIC) == one
    assert base.of_topic({"u": base.encode(one)}, TOPIC) is None
    assert base.of_topic({"t": base.encode(base.Base("snap-1", "id-0"))}, TOPIC) is None


def test_a_damaged_note_is_an_error() -> None:
    with pytest.raises(StateError, match="is damaged"):
        base.of_topic({"t": b'{"snapshot": 1}'}, TOPIC)
