"""Small files share a task, in order; what is large has one of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipeline.files.parts import PART_BYTES, Part
from pipeline.spark.file_groups import EACH, OPEN_BYTES, groups, sizes

SIZES = st.lists(st.integers(OPEN_BYTES, 3 * PART_BYTES), max_size=200)


@given(SIZES, st.integers(0, 64))
def test_every_part_is_read_once_and_in_order(each: list[int], at_once: int) -> None:
    made = groups(each, at_once)
    assert [number for group in made for number in group] == list(range(len(each)))
    assert all(made)


@given(SIZES, st.integers(1, 64))
def test_no_task_has_more_than_a_part_is_large_but_one_part(each: list[int], at_once: int) -> None:
    made = [[each[number] for number in group] for group in groups(each, at_once)]
    assert all(len(group) == 1 or sum(group) <= PART_BYTES for group in made)
    assert all(
        len(group) == 1 or sum(group) * EACH * at_once <= max(sum(each), EACH * at_once * OPEN_BYTES) for group in made
    )
    assert all(sum(one) + other[0] > OPEN_BYTES for one, other in pairwise(made))


def test_two_thousand_small_files_are_few_tasks(tmp_path: Path) -> None:
    parts = []
    for number in range(2_000):
        (file := tmp_path / f"{number:05}.jsonl").write_bytes(b"{}\n")
        parts.append(Part(str(file), "json", 0, 3))
    assert len(groups(sizes(parts), 2)) == 2_000 // (PART_BYTES // (OPEN_BYTES + 3)) + 1
    assert len(groups(sizes(parts[:100]), 4)) == 17, "what is small as a whole is for all cores"


def test_a_file_is_as_large_as_its_parts_together(tmp_path: Path) -> None:
    (file := tmp_path / "a.parquet").write_bytes(b"x" * 3_000)
    parts = [Part(str(file), "parquet", number, number + 1) for number in range(3)]
    assert sizes([*parts, Part("s3a://b/c", "parquet")]) == [OPEN_BYTES + 1_000] * 3 + [OPEN_BYTES]
