"""Partition assignors: range, round robin, sticky and cooperative sticky, from partitions and members to an assignment; pure.

One rule: the answer depends on the input alone, not on the order in which anything arrives; the standard library only.
Imported by users, cli/assign.py and the adapters for aiokafka and Faust beside it. `ASSIGNORS` names them; start at
sticky.py and reading.py. `orchestrator.partition_assignors.aiokafka` makes them usable by aiokafka and Faust consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.partition_assignors.cooperative import ConstrainedCooperativeStickyAssignor, CooperativeStickyAssignor
from orchestrator.partition_assignors.model import (
    Assignment,
    Assignor,
    AssignorError,
    PartitionRacks,
    Subscription,
    TopicPartition,
)
from orchestrator.partition_assignors.range import RangeAssignor
from orchestrator.partition_assignors.roundrobin import RoundRobinAssignor
from orchestrator.partition_assignors.score import balance_score
from orchestrator.partition_assignors.sticky import StickyAssignor

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            RangeAssignor(),
            RoundRobinAssignor(),
            StickyAssignor(),
            CooperativeStickyAssignor(),
            ConstrainedCooperativeStickyAssignor(),
        )
    }
)

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "AssignorError",
    "ConstrainedCooperativeStickyAssignor",
    "CooperativeStickyAssignor",
    "PartitionRacks",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Subscription",
    "TopicPartition",
    "balance_score",
]
