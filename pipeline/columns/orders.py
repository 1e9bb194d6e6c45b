"""The order of many keys by their bytes, as a store sorts them. One rule: equal keys keep the order in which they came.

Most keys are of one length, and begin alike: then their ends are one or two numbers, which numpy sorts in a fifth of
the time that objects take. Arrow sorts all others. What is read and written in this order lies side by side in memory, too, and
whoever sorts it again (a store its batches) finds it sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FEWEST = 512  # keys; fewer are not worth it
_WORD = 8


def order_of(keys: pa.Array) -> Any:
    """The places of the keys of a binary array without nulls in their order, as numpy's integers; None where they are few, or
    in order already."""
    count = len(keys)
    if count < max(FEWEST, 2):
        return None
    found = _of_one_length(keys, count)
    if found is None:
        found = pc.array_sort_indices(keys).to_numpy()
    return None if (found[:-1] < found[1:]).all() else found


def _of_one_length(keys: pa.Array, count: int) -> Any:
    """None where lengths differ, or they do not begin alike up to their last two words."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, count + 1, keys.offset * 4)
    first = int(offsets[0])
    length, rest = divmod(int(offsets[-1]) - first, count)
    if rest or not length or (np.diff(offsets) != length).any():
        return None
    rows = np.frombuffer(keys.buffers()[2], np.uint8, count * length, first).reshape(count, length)
    begin = max(0, length - 2 * _WORD)
    if begin and (rows[:, :begin] != rows[0, :begin]).any():
        return None
    last = _words(rows[:, max(0, length - _WORD) :])
    if length > _WORD:
        before = _words(rows[:, begin : length - _WORD])
        if (before != before[0]).any():
            return np.lexsort((last, before))
    found = np.argsort(last)
    in_order = last[found]
    return np.argsort(last, kind="stable") if (in_order[1:] == in_order[:-1]).any() else found


def _words(rows: Any) -> Any:
    """A number for each row of at most eight bytes, that sorts as they do."""
    padded = np.zeros((len(rows), _WORD), np.uint8)
    padded[:, _WORD - rows.shape[1] :] = rows
    return padded.view(">u8").reshape(len(rows)).astype(np.uint64)
