"""What expires is what a look into the store would find, whatever was given up on the way."""

from __future__ import annotations

import random

import pytest

from pipeline.time import expiring
from pipeline.time.expiring import Expiring


def entry_of(bucket: int, number: int) -> tuple[int, bytes]:
    """A bucket and a key, which begins with it."""
    return bucket, b"%04d-%d" % (bucket, number)


@pytest.mark.parametrize("most_kept", [5, 40, 10_000])
def test_what_is_forgotten_is_what_the_store_has(most_kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a join uses it: entries are never of a bucket that is over, and what is forgotten may come in parts."""
    monkeypatch.setattr(expiring, "MOST", most_kept)
    draw, known_often, parts = random.Random(most_kept), 0, 0
    for _ in range(100):
        store: set[tuple[int, bytes]] = set()
        found = Expiring(0)
        if draw.random() < 0.5:  # a store that is there already: nothing lies behind bucket 3
            store = {entry_of(draw.randrange(4), n) for n in range(6)}
            found.lose(4)
        kept_from, now = (0, b""), 0
        for number in range(draw.randrange(5, 60)):
            what = draw.random()
            if what < 0.6:
                entry = entry_of(now + draw.randrange(4), draw.randrange(10**6))
                if entry not in store:
                    store.add(entry)
                    found.add(*entry)
            elif what < 0.63:  # an undo: what was written stays, what is known is not
                found.lose(now + 4)
            else:
                now += draw.randrange(3)
                most = draw.choice([None, 1, 3, 10])
                there = sorted(entry for entry in store if kept_from <= entry < (now, b""))
                answer = found.take(kept_from[0], now, most)
                gone = there[:most]
                if answer is not None:
                    known_often += 1
                    parts += answer[1]
                    assert answer == ([key for _, key in gone], len(gone) < len(there)), number
                store -= set(gone)
                kept_from = (gone[-1][0], gone[-1][1] + b"\x00") if len(gone) < len(there) else (now, b"")
                assert all(entry >= kept_from for entry in store)
    assert known_often > 100 and (parts > 20 or most_kept == 5)
