"""The topics of rows that come out of runs, and the offsets of those of history.

One rule: history lies before the log, so its offsets are below zero, and count in the order of its rows; so do those of records that
tasks have sent on, each of which counts its own: of two tasks they would be the same, and a join keeps a record by its offset. In the
flow: merging -> here -> stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.columns.numbers import of_numpy, to_numpy
from pipeline.spark.history import FIRST_SEQ
from pipeline.spark.merging import Piece
from pipeline.spark.rows import Rows
from pipeline.spark.runs import RUN, topic_of

Sources = list[str]  # the topics of a subtopology, by their numbers in runs
_SEQ = RUN.names.index("seq")


class Numbered:
    """Of one task."""

    def __init__(self, topics: Sources) -> None:
        self._topics = topics
        self._next = dict.fromkeys(range(len(topics)), FIRST_SEQ + 1)  # the offset of the next row of its history

    def rows(self, pieces: Iterable[Piece]) -> Iterator[Rows]:
        for piece in pieces:
            topics: Any = topic_of(piece.sources)
            rows = piece.rows
            if rows.column(_SEQ).null_count:
                rows = rows.set_column(_SEQ, RUN.field(_SEQ), self._offsets(rows.column(_SEQ), topics))
            first = int(topics[0])
            if (topics == first).all():
                yield Rows(list(repeat(self._topics[first], len(topics))), rows)
            else:
                yield Rows([self._topics[number] for number in topics.tolist()], rows)

    def _offsets(self, given: pa.Array, topics: Any) -> pa.Array:
        if given.null_count == len(given):
            missing, found = np.ones(len(given), bool), np.zeros(len(given), np.int64)
        else:
            missing, found = given.is_null().to_numpy(zero_copy_only=False), to_numpy(given.fill_null(0)).copy()
        for number in np.unique(topics[missing]).tolist():
            chosen = np.flatnonzero(missing & (topics == number))
            found[chosen] = self._next[number] + np.arange(len(chosen))
            self._next[number] += len(chosen)
        return of_numpy(found)


def has_place(offset: int) -> bool:
    """Whether a record of this offset lies in the log (or is none, as what comes due): those that are counted here do not."""
    return not FIRST_SEQ < offset < FIRST_SEQ // 2


def sent_on(rows: Iterable[Rows], topics: Collection[str]) -> Iterator[Rows]:
    """The rows of one task; those of these topics, which tasks have sent on, with offsets of their own."""
    following = dict.fromkeys(topics, FIRST_SEQ + 1)
    if not topics:
        yield from rows
    for some in rows:
        named = following.keys() & set(some.topics)
        yield _counted(some, named, following) if named else some


def _counted(some: Rows, named: Collection[str], following: dict[str, int]) -> Rows:
    batch, at = some.batch, some.batch.schema.get_field_index("seq")
    seq, of_rows = to_numpy(batch.column(at)).copy(), np.array(some.topics, object)
    for topic in named:
        chosen = np.flatnonzero(of_rows == topic)
        seq[chosen] = following[topic] + np.arange(len(chosen))
        following[topic] += len(chosen)
    return Rows(some.topics, batch.set_column(at, batch.schema.field(at), of_numpy(seq)))
