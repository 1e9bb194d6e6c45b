"""Numbers and bytes of Arrow from and to numpy and lists, without pandas.

One rule: the values are those that pyarrow's own calls give. These import pandas where it is installed (`pa.array` of anything,
`Array.to_numpy`), which takes a process 0.2 s and 40 MB, and nothing of it is used here. In the flow: what Spark's workers read, pack
and merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa


def to_numpy(array: pa.Array) -> Any:
    """Of numbers without nulls; nothing is copied, and nothing can be written to."""
    return np.from_dlpack(array)


def of_numpy(values: Any) -> pa.Array:
    """Of one dimension of numbers."""
    there = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(there.dtype), len(there), [None, pa.py_buffer(there)])


def of_bytes(values: Sequence[bytes]) -> pa.Array:
    """Raises OverflowError where these are 2 GiB and more."""
    ends = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("an Arrow array of bytes ends at 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
