"""The one table of Kafka's error codes: what each is called, and what is done about it.

One rule: no other module of this room compares a code with a number of its own. aiokafka's table lacks the codes from 87
on, and says nothing of what to do. Source: Kafka's protocol, "Error Codes"; what is retried was tried on brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from state.errors import LogUnusable
from state.log.kafka.rights import Right, missing


class Then(Enum):
    """What follows from a code."""

    AGAIN = "the same request again, soon"
    LEADER = "ask for metadata, then again"
    COORDINATOR = "ask for the coordinator, then again"
    FENCED = "another process has initialised this transactional id, or its transaction was aborted for its age"
    LOST = "the partition has lost records that this producer wrote"
    DONE = "was done by an earlier try"
    POSITION = "the position is not in the partition"
    TOO_LARGE = "the batch is larger than its topic takes"
    INVALID = "the topic cannot hold such a record"
    TIME = "the topic takes no record of such a time, by its message.timestamp.after.max.ms or before.max.ms"
    GROWN = "the topic has as many partitions already, or more"
    DENIED = "the user may not"
    FAIL = "refused for good"


NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
TOPIC_DENIED = 29
UNSUPPORTED = 35
TOPIC_EXISTS = 36
OUT_OF_ORDER_SEQUENCE = 45
INVALID_TXN_STATE = 48
FORGOTTEN_ID = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
NOT_ATTEMPTED = 55
NON_EMPTY_GROUP = 68
UNKNOWN_GROUP = 69
UNKNOWN_LEADER_EPOCH = 75
GROUP_SUBSCRIBED = 86
UNSTABLE_OFFSET = 88
NO_SUCH_ID = 105

_TABLE: dict[int, tuple[str, Then]] = {
    # The coordinator's own exception where a transaction ends while another initialises its id (4.3.0); it says more
    # when it is asked again.
    -1: ("UNKNOWN_SERVER_ERROR", Then.AGAIN),
    1: ("OFFSET_OUT_OF_RANGE", Then.POSITION),
    2: ("CORRUPT_MESSAGE", Then.FAIL),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", Then.LEADER),
    5: ("LEADER_NOT_AVAILABLE", Then.LEADER),
    6: ("NOT_LEADER_OR_FOLLOWER", Then.LEADER),
    7: ("REQUEST_TIMED_OUT", Then.AGAIN),
    8: ("BROKER_NOT_AVAILABLE", Then.LEADER),
    9: ("REPLICA_NOT_AVAILABLE", Then.LEADER),
    10: ("MESSAGE_TOO_LARGE", Then.TOO_LARGE),
    13: ("NETWORK_EXCEPTION", Then.LEADER),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", Then.COORDINATOR),
    15: ("COORDINATOR_NOT_AVAILABLE", Then.COORDINATOR),
    16: ("NOT_COORDINATOR", Then.COORDINATOR),
    17: ("INVALID_TOPIC_EXCEPTION", Then.FAIL),
    18: ("RECORD_LIST_TOO_LARGE", Then.TOO_LARGE),
    19: ("NOT_ENOUGH_REPLICAS", Then.AGAIN),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", Then.AGAIN),
    22: ("ILLEGAL_GENERATION", Then.FAIL),
    25: ("UNKNOWN_MEMBER_ID", Then.FAIL),
    29: ("TOPIC_AUTHORIZATION_FAILED", Then.DENIED),
    30: ("GROUP_AUTHORIZATION_FAILED", Then.DENIED),
    31: ("CLUSTER_AUTHORIZATION_FAILED", Then.DENIED),
    32: ("INVALID_TIMESTAMP", Then.TIME),
    35: ("UNSUPPORTED_VERSION", Then.FAIL),
    36: ("TOPIC_ALREADY_EXISTS", Then.FAIL),
    37: ("INVALID_PARTITIONS", Then.GROWN),
    38: ("INVALID_REPLICATION_FACTOR", Then.FAIL),
    40: ("INVALID_CONFIG", Then.FAIL),
    41: ("NOT_CONTROLLER", Then.LEADER),
    44: ("POLICY_VIOLATION", Then.FAIL),
    45: ("OUT_OF_ORDER_SEQUENCE_NUMBER", Then.LOST),
    46: ("DUPLICATE_SEQUENCE_NUMBER", Then.DONE),  # an earlier try was written, and its answer got lost
    47: ("INVALID_PRODUCER_EPOCH", Then.FENCED),
    48: ("INVALID_TXN_STATE", Then.FENCED),
    49: ("INVALID_PRODUCER_ID_MAPPING", Then.FENCED),
    50: ("INVALID_TRANSACTION_TIMEOUT", Then.FAIL),
    51: ("CONCURRENT_TRANSACTIONS", Then.AGAIN),
    52: ("TRANSACTION_COORDINATOR_FENCED", Then.COORDINATOR),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Then.DENIED),
    55: ("OPERATION_NOT_ATTEMPTED", Then.FAIL),  # another partition of the request was refused
    56: ("KAFKA_STORAGE_ERROR", Then.LEADER),
    59: ("UNKNOWN_PRODUCER_ID", Then.LOST),
    60: ("REASSIGNMENT_IN_PROGRESS", Then.AGAIN),
    67: ("INVALID_PRODUCER_ID", Then.FENCED),
    68: ("NON_EMPTY_GROUP", Then.FAIL),
    69: ("GROUP_ID_NOT_FOUND", Then.FAIL),
    74: ("FENCED_LEADER_EPOCH", Then.LEADER),
    75: ("UNKNOWN_LEADER_EPOCH", Then.LEADER),
    78: ("OFFSET_NOT_AVAILABLE", Then.AGAIN),
    86: ("GROUP_SUBSCRIBED_TO_TOPIC", Then.FAIL),
    87: ("INVALID_RECORD", Then.INVALID),
    88: ("UNSTABLE_OFFSET_COMMIT", Then.AGAIN),
    89: ("THROTTLING_QUOTA_EXCEEDED", Then.AGAIN),
    90: ("PRODUCER_FENCED", Then.FENCED),
    100: ("UNKNOWN_TOPIC_ID", Then.LEADER),
    103: ("INCONSISTENT_TOPIC_ID", Then.LEADER),
    105: ("TRANSACTIONAL_ID_NOT_FOUND", Then.FAIL),
    120: ("TRANSACTION_ABORTABLE", Then.FAIL),
}
_LOOK = "the broker's log may say more"
_ADVICE = {
    Then.DENIED: "`orchestrator topics acls APP` lists what an app needs",
    Then.LOST: "its brokers do not have what this producer wrote there before (an unclean election, a restored broker)",
    Then.AGAIN: "the brokers do not get further: look at their logs, and try again",
    Then.LEADER: "the partition has no leader: look at the brokers, and try again",
    Then.COORDINATOR: "the coordinator does not answer: look at the brokers, and try again",
}
_JOINED = "consumers of another program have joined the application's consumer group: stop them, or give the application another id"
_COLLIDES = "collides with"  # a word of the brokers, behind the same code as a name that is none
_OTHER_NAME = "choose another name, or id of the application: brokers take '.' and '_' for one character"
_NO_SUCH_SETTING = "Unknown topic config name"  # brokers' words, behind the same code as a value that does not fit
_OLD_OR_MISTYPED = (
    "these brokers have no such setting: they are older than Kafka 3.9, or a topic.NAME in the log's URL is mistyped"
)
_ADVICE_OF = {
    22: _JOINED,
    25: _JOINED,
    17: "a topic's name has, with the log's prefix, at most 249 letters, digits, '.', '_' and '-'",
    INVALID_TRANSACTION_TIMEOUT: "the brokers allow no transaction that long: raise their transaction.max.timeout.ms, which has to be "
    "10 s or more, or ask for less by transaction-timeout in the log's URL",
    CONCURRENT_TRANSACTIONS: "the transaction before it is decided, and its markers are not written: look at the brokers of its partitions, in "
    "whose logs it stands why, and whether their replicas are in sync",
}
RETRIED = frozenset({Then.AGAIN, Then.LEADER, Then.COORDINATOR})


def name_of(code: int) -> str:
    """As Kafka calls it, with the number."""
    return f"{_TABLE[code][0]} ({code})" if code in _TABLE else f"error {code}"


def then(code: int) -> Then:
    """What to do about a code; an unknown one is refused for good."""
    return _TABLE[code][1] if code in _TABLE else Then.FAIL


class KafkaRefused(LogUnusable):
    """A broker answered a request with a code, and trying again does not help, or did not within its time. `partition`: that
    it is about, where it is one."""

    def __init__(self, what: str, code: int, text: str | None = None, rights: Sequence[Right] = ()) -> None:
        """`rights`: those that the request takes; the message names the one that is missing."""
        self.what, self.code, self.then = what, code, then(code)
        self.partition: tuple[str, int] | None = None
        self.lost_in: tuple[tuple[str, int], ...] = ()  # all partitions that refuse it by a code of `Then.LOST`
        advice = _ADVICE_OF.get(code) or _ADVICE.get(self.then, _LOOK)
        if _COLLIDES in (text or ""):
            advice = _OTHER_NAME
        if _NO_SUCH_SETTING in (text or ""):
            advice = _OLD_OR_MISTYPED
        if self.then is Then.DENIED:
            advice = f"the user lacks {missing(code, rights)}; {advice}"
        super().__init__(f"{what}: {name_of(code)}{f', {text}' if text else ''}; {advice}")


def is_denied(error: BaseException | None) -> bool:
    """Whether it comes from a right that the user lacks."""
    while error is not None and not isinstance(error, KafkaRefused):
        error = error.__cause__
    return error is not None and error.then is Then.DENIED


class Unreachable(Exception):
    """No broker answered: the connection ended, or could not be made. The same request may be sent again."""


def check(what: str, code: int, text: str | None = None, rights: Sequence[Right] = ()) -> None:
    """Raises KafkaRefused for any code but 0."""
    if code:
        raise KafkaRefused(what, code, text, rights)
