"""How heavy a task is where people say so: `0_3=4`. One rule: a weight is a whole number from 1 to WEIGHT_MAX.

Weights that are measured come from member/load_meter.py. Used by the command line and by workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from orchestrator.errors import WrongUse
from orchestrator.model import Task

WEIGHT_MAX = 1 << 20

Given = Sequence[tuple[str, int]]


def parse_given(text: str) -> tuple[tuple[str, int], ...]:
    """`0_3=4,1=2`: task 0_3 weighs 4, those of subtopology 1 weigh 2. Raises WrongUse."""
    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, weight = word.partition("=")
        sane = weight.isascii() and weight.isdecimal() and len(weight) <= 9 and 0 < int(weight) <= WEIGHT_MAX
        if not equals or not sane or not all(part.isdecimal() for part in name.split("_")) or name.count("_") > 1:
            raise WrongUse(f"'{word}' is not TASK=WEIGHT; write 0_3=4 for a task, 1=2 for all tasks of subtopology 1")
        if name in found:
            raise WrongUse(f"'{word}': {name} has a weight already; write each once")
        found[name] = int(weight)
    if not found:
        raise WrongUse(f"'{text[:40]}' gives no weight; write 0_3=4 for a task, 1=2 for all tasks of subtopology 1")
    return tuple(found.items())


def with_given(tasks: Iterable[Task], given: Given) -> list[Task]:
    """The tasks with the weights that were given; the name of a task goes before that of its subtopology."""
    weights = dict(given)
    return [
        replace(task, weight=weights.get(str(task.id), weights.get(str(task.id.subtopology), task.weight)))
        for task in tasks
    ]


def strange(tasks: Iterable[Task], given: Given) -> list[str]:
    """Names that were given a weight and are no task or subtopology."""
    known = {name for task in tasks for name in (str(task.id), str(task.id.subtopology))}
    return [name for name, _ in given if name not in known]
