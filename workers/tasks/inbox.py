"""What a fetch brought waits with its task: as records, or in columns where the task takes them so.

One rule: bytes that cannot be read raise LogDamaged here, before anything of the fetch waits. Used by the record loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.merge import Merger
from pipeline.process import TaskProcess
from pipeline.records import RawRecord
from pipeline.time.event_time import EventTime
from state.log.batches import decode
from state.log.protocol import Fetched


def inbox(process: TaskProcess) -> Merger:
    """What holds the records that wait for a task."""
    if not process.takes_columns:
        return Merger()
    from pipeline.pieces import Pieces  # with pyarrow, which other tasks do not need

    return Pieces()


def take_in(merger: Merger, process: TaskProcess, event_time: EventTime, part: Fetched) -> None:
    """The records of a fetch wait. Raises LogDamaged."""
    if process.takes_columns and part.data and _take_in_columns(merger, part):
        return
    topic, number = part.partition
    records: Sequence[RawRecord] = decode(part.data, part.position) if part.data else []
    merger.add(topic, number, event_time.stamped(records), part.next_position, len(part.data))


def _take_in_columns(merger: Merger, part: Fetched) -> bool:
    """False where they can only be read one by one."""
    from pipeline.columns.raw import RawColumns
    from pipeline.pieces import Pieces
    from state.log.columns import columns

    found = columns(part.data, part.position)
    if found is None or not isinstance(merger, Pieces):
        return False
    topic, number = part.partition
    merger.add_piece(number, RawColumns(topic, *found), part.next_position, len(part.data))
    return True
