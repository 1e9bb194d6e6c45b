"""Which parts of files one task of Spark reads: small files have a task for many of them.

One rule: a part is read whole, by one task, and what it gives does not depend on its task; so groups follow sizes alone.
In the flow: `history` and `stage_rows` cut files into parts -> here -> a task for each group. Spark packs what it reads itself by the
same measure (`spark.sql.files.openCostInBytes`); a task for each of 600 small files made 60 s of 8.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.files.parts import PART_BYTES, Part

OPEN_BYTES = 1 << 20  # what it costs to open a file, in bytes that are read meanwhile
EACH = 4  # tasks for each that runs at once, so that none is left to the last one


def sizes(parts: Sequence[Part]) -> list[int]:
    """What reading each of them costs, in bytes. Of a file that is not here (it is read elsewhere, or by now gone) that of opening it."""
    counts = Counter(part.file for part in parts)
    bytes_of = {file: _bytes_of(file) for file in counts}
    return [OPEN_BYTES + bytes_of[part.file] // counts[part.file] for part in parts]


def _bytes_of(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


def groups(sizes: Sequence[int], at_once: int) -> list[list[int]]:
    """The numbers of the parts, in order; `at_once`: the tasks that run beside each other, each of which has some to read."""
    most = min(PART_BYTES, max(OPEN_BYTES, sum(sizes) // (EACH * max(1, at_once))))
    made: list[list[int]] = []
    held = most
    for number, size in enumerate(sizes):
        if held + size > most:
            made.append([])
            held = 0
        made[-1].append(number)
        held += size
    return made
