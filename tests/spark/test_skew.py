"""A key that makes one task the slowest is named, with its share; counts are never too high, and memory is bounded."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.spark.skew import KEPT, OF_BATCH, Heavy, HeavyKeys, Skewed, skewed

KEYS = st.integers(0, 9).map(lambda n: b"%d" % n)


@settings(deadline=None)
@given(st.lists(st.lists(KEYS, min_size=1), min_size=1, max_size=5))
def test_few_keys_are_counted_exactly(batches: list[list[bytes]]) -> None:
    heavy = HeavyKeys()
    for batch in batches:
        heavy.add(pa.array(batch, pa.binary()))
    expected = Counter(key for batch in batches for key in batch)
    found = {one.key: one.count for one in heavy.top()}
    assert all(expected[key] == count for key, count in found.items())
    assert sorted(found.values()) == sorted(expected.values())[-3:]


def test_of_many_keys_no_count_is_too_high_and_the_table_stays_small() -> None:
    draw, heavy, expected = random.Random(1), HeavyKeys(), Counter[bytes]()
    for _ in range(40):
        batch = [b"hot" if draw.random() < 0.3 else b"k%d" % draw.randrange(50_000) for _ in range(500)]
        expected.update(batch)
        heavy.add(pa.array([*batch, None], pa.binary()))
        assert len(heavy._counts) <= KEPT + OF_BATCH
    first, *others = heavy.top()
    assert first == Heavy(b"hot", expected[b"hot"])
    assert all(one.count <= expected[one.key] for one in others)


def test_a_key_is_skewed_beyond_an_even_share_of_a_task() -> None:
    even = [("0_0", 5_001, [Heavy(b"a", 5_001)]), ("0_1", 5_001, [Heavy(b"b", 5_001)])]
    assert skewed(even, repr) == []
    more = [("0_0", 6_000, [Heavy(b"a", 5_500), Heavy(b"c", 500)]), ("0_1", 4_000, [Heavy(b"b", 4_000)])]
    assert skewed(more, repr) == [Skewed("0_0", "b'a'", 5_500, 0.55)]
    assert skewed([(task, n // 100, [Heavy(k.key, k.count // 100) for k in ks]) for task, n, ks in more], repr) == []
    assert skewed(more[:1], repr) == [], "one task has all there is"


@pytest.mark.long
@pytest.mark.spark
async def test_a_backfill_names_it(tmp_path: Path, spark: Any) -> None:
    from pipeline.spark.backfill import backfill

    lines = [f"{'hot' if n % 5 < 3 else f'c{n}'},ann,{n}" for n in range(12_000)]
    (tmp_path / "names.csv").write_text("\n".join(["key,value,timestamp_ms", *lines]))
    said: list[str] = []
    facts = await backfill(
        "tests.spark.sample:app",
        f"sqlite:{tmp_path / 'log.db'}",
        tmp_path / "snapshots",
        history={"names": [str(tmp_path / "names.csv")]},
        session=spark,
        say=said.append,
    )
    [one] = facts["skewed"]
    assert (one["key"], one["records"], one["share"]) == ("'hot'", 7_200, 0.6)
    assert f"key 'hot' has 60% of these records: task {one['task']} takes as long as they do" in "\n".join(said)
