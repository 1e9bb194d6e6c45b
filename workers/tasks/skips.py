"""What a task that goes on leaves out, because `orchestrator resume --skip` said so: records, and calls of what came due.

One rule: what is known to be committed is not left out again, and not asked for again. Between the halts in the log (`halts.py`) and
the task that begins, or goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.process import TaskProcess
from state.log.protocol import Partition
from workers.calls.blame import Caution
from workers.tasks.halts import Halt, is_behind


def are_committed(halt: Halt, positions: Mapping[Partition, int], process: TaskProcess) -> bool:
    """Whether all that is to be skipped is: in the log, and of what came due in the stores."""
    due = process.due_calls
    return all(is_behind(positions, place) for place in halt.left_out) and all(
        due is None or due.has_committed(call) if call.record is None else is_behind(positions, call.record)
        for call in halt.due_left_out
    )


def leave_out_calls(halt: Halt | None, process: TaskProcess) -> None:
    """The calls for no record that are to be skipped are left out when they come up."""
    if halt is not None and process.due_calls is not None:
        for call in halt.due_left_out:
            process.due_calls.leave_out(call)


def leave_out_records(halt: Halt | None, positions: Mapping[Partition, int], scope: str, caution: Caution) -> None:
    """The records of a task that are to be skipped are left out, without those that lie before the positions."""
    for place in () if halt is None else halt.left_out:
        if not is_behind(positions, place):
            caution.leave_out(scope, *place)
