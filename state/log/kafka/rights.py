"""The rights that Kafka's ACLs give: which ones an application needs, and which one a refusal is about. Pure.

One rule: the sender of a request that an authorizer may refuse says which rights it takes, and the error names the one that
is missing. Read, Write, Delete and Alter allow Describe as well, and AlterConfigs DescribeConfigs, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from state.log.kafka.facts import topic_of

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = "topic", "group", "cluster", "transactional-id"
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = "Read", "Write", "Create", "Delete", "Alter", "Describe"
DESCRIBE_CONFIGS, ALTER_CONFIGS = "DescribeConfigs", "AlterConfigs"
_RESOURCE_OF = {29: TOPIC, 30: GROUP, 31: CLUSTER, 53: TRANSACTIONAL_ID}
_DESCRIBES = {TOPIC: "Read or Write allows", GROUP: "Read allows", TRANSACTIONAL_ID: "Write allows"}
PRODUCER_IDS = "producer."
_OWN_IDS = "."  # behind the application's id, all transactional ids of its own follow


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on a resource, by the cluster's name of it; `prefixed`: on all whose names begin so."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"


def on(resource: str, operation: str, *names: str) -> tuple[Right, ...]:
    """The same right on several resources; "" is none."""
    return tuple(Right(operation, resource, name) for name in names if name)


def missing(code: int, rights: Sequence[Right]) -> str:
    """What a refusal with this code says is missing; "" where the code is about no right. Brokers ask for Describe first, where an
    application is given the Read or Write that allows it: both are named."""
    resource = _RESOURCE_OF.get(code)
    if resource is None:
        return ""
    found = [right for right in rights if right.resource == resource]
    named = ", ".join(map(str, found[:5])) if found else f"a right on the {resource}"
    only_describe = {right.operation for right in found} == {DESCRIBE}
    return f"{named} ({_DESCRIBES[resource]} it, too)" if only_describe and resource in _DESCRIBES else named


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of an application, by what it does with them; names without the log's prefix."""

    read: Collection[str]
    written: Collection[str]
    changelogs: Collection[str]
    repartition: Collection[str]


def needed(application: str, topics: Topics, prefix: str = "", *, create: bool = False) -> list[Right]:
    """What instances of the application need, and commands that change it; `create`: also to create its plain topics."""
    found: dict[str, set[str]] = {topic_of(application): {CREATE, READ, WRITE, DESCRIBE_CONFIGS}}
    plain = {DESCRIBE_CONFIGS, *([CREATE] if create else [])}
    for name in topics.read:
        found.setdefault(name, set()).update({READ, *plain})
    for name in topics.written:
        found.setdefault(name, set()).update({WRITE, *plain})
    for name in topics.changelogs:
        found.setdefault(name, set()).update({CREATE, READ, WRITE, DESCRIBE_CONFIGS})
    for name in topics.repartition:
        found.setdefault(name, set()).update({CREATE, READ, WRITE, DELETE, DESCRIBE_CONFIGS})
    return [
        *_rights(found, prefix),
        Right(READ, GROUP, prefix + application),
        Right(WRITE, TRANSACTIONAL_ID, prefix + application + _OWN_IDS, prefixed=True),
    ]


def needed_to_produce(application: str, topics: Topics, prefix: str = "") -> list[Right]:
    """What `orchestrator produce` needs for the topics that the application reads. Whichever of it and a start is first makes what the
    app has of its own; each looks at all of its topics."""
    found = {name: {DESCRIBE, DESCRIBE_CONFIGS} for name in topics.written}
    found |= {name: {CREATE, DESCRIBE, DESCRIBE_CONFIGS} for name in (*topics.changelogs, *topics.repartition)}
    found |= {name: {WRITE, DESCRIBE_CONFIGS} for name in topics.read if name not in topics.repartition}
    found[topic_of(application)] = {CREATE, READ, WRITE, DESCRIBE_CONFIGS}
    return [
        *_rights(found, prefix),
        Right(WRITE, TRANSACTIONAL_ID, prefix + application + _OWN_IDS, prefixed=True),
        Right(WRITE, TRANSACTIONAL_ID, prefix + PRODUCER_IDS, prefixed=True),
    ]


def needed_to_look(application: str, topics: Topics, prefix: str = "") -> list[Right]:
    """What commands need that only look: `status`, `explain`, `query`, `wait`, `consume`."""
    everything = {*topics.read, *topics.written, *topics.changelogs, *topics.repartition, topic_of(application)}
    found = {name: {READ, DESCRIBE_CONFIGS} for name in everything}
    return [*_rights(found, prefix), Right(DESCRIBE, GROUP, prefix + application)]


def needed_to_reset(application: str, topics: Topics, prefix: str = "") -> list[Right]:
    """What `orchestrator reset` needs: besides what instances do, to delete what the application made, and its positions."""
    gone = on(TOPIC, DELETE, *(prefix + name for name in topics.changelogs))
    return _sorted([*needed(application, topics, prefix), *gone, Right(DELETE, GROUP, prefix + application)])


def needed_to_repartition(application: str, topics: Topics, prefix: str = "") -> list[Right]:
    """What `orchestrator repartition` needs: besides what instances do, to grow topics, and to see the brokers' limits."""
    grown = sorted({*topics.read, *topics.repartition, *topics.changelogs})
    more = on(TOPIC, ALTER, *(prefix + name for name in grown))
    return _sorted([*needed(application, topics, prefix), *more, Right(DESCRIBE_CONFIGS, CLUSTER, "kafka-cluster")])


def _rights(found: Mapping[str, Collection[str]], prefix: str) -> list[Right]:
    return [Right(one, TOPIC, prefix + name) for name in sorted(found) for one in sorted(found[name])]


def _sorted(found: Sequence[Right]) -> list[Right]:
    """By resource, in the order in which resources came first."""
    order = {place: at for at, place in reversed(list(enumerate((one.resource, one.name) for one in found)))}
    return sorted(found, key=lambda one: (order[one.resource, one.name], one.operation))
