"""Partition assignors: pure functions from partitions and members to an assignment.

One rule: the answer depends on the input alone, not on the order in which anything arrives. `ASSIGNORS` names them;
`orchestrator.assignors.aiokafka` makes them usable by aiokafka and Faust consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.assignors.cooperative import ConstrainedCooperativeStickyAssignor, CooperativeStickyAssignor
from orchestrator.assignors.model import (
    Assignment,
    Assignor,
    AssignorError,
    PartitionRacks,
    Subscription,
    TopicPartition,
)
from orchestrator.assignors.range import RangeAssignor
from orchestrator.assignors.roundrobin import RoundRobinAssignor
from orchestrator.assignors.score import balance_score
from orchestrator.assignors.sticky import StickyAssignor

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
