"""The sticky assignor for Faust apps. One rule: only apps without tables; a table needs Faust's own co-partitioning.

    app = faust.App("orders", PartitionAssignor=FaustStickyAssignor, ...)

Faust's members already carry what they had, in their own format; this reads it and assigns by our rule, so that moves
are as few as can be and even over all topics, not per group of topics as in Faust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor

from orchestrator.partition_assignors import ASSIGNORS, AssignorError, Subscription, TopicPartition


class FaustStickyAssignor(PartitionAssignor):
    """Faust's assignor with our rule inside. Made when the worker's consumer starts: an error there ends the worker, where
    one in an assignment is tried again for ever, without a word."""

    def __init__(self, app: Any, replicas: int = 0) -> None:
        super().__init__(app, replicas)
        self._refuse_tables()

    def _refuse_tables(self) -> None:
        if self.app.tables:
            raise AssignorError(
                f"the app has tables: {sorted(self.app.tables)}; Faust app {self.app.conf.id!r}; "
                "tables need Faust's own PartitionAssignor"
            )

    def _perform_assignment(self, cluster: Any, member_metadata: Mapping[str, Any]) -> Any:
        self._refuse_tables()  # one may have been declared since
        clients = {member: self._get_client_metadata(metadata) for member, metadata in member_metadata.items()}
        self._update_member_urls(clients)
        members = {
            member: Subscription(
                topics=tuple(metadata.subscription),
                owned=tuple(TopicPartition(tp.topic, tp.partition) for tp in clients[member].assignment.active_tps),
            )
            for member, metadata in member_metadata.items()
        }
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        counts = {topic: len(found) for topic in topics if (found := cluster.partitions_for_topic(topic))}
        assignments = {member: ClientAssignment(actives={}, standbys={}) for member in members}
        for member, partitions in ASSIGNORS["sticky"].assign(counts, members).items():
            for topic, partition in partitions:
                assignments[member].actives.setdefault(topic, []).append(partition)
        # Faust numbers groups of topics with the same partition count; without tables nothing hangs on them.
        groups = {count: number for number, count in enumerate(sorted(set(counts.values())))}
        return self._protocol_assignments(
            assignments,
            self._get_changelog_distribution(assignments),
            self._get_external_topic_distribution(assignments),
            {topic: groups[count] for topic, count in counts.items()},
        )
