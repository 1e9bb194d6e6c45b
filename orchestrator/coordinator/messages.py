"""What travels between workers, clients and the coordinator: msgspec structs, msgpack, one tag each.

One rule: a frame is a 4-byte big-endian length and that many bytes; a peer that sends anything else is dropped. Numbers,
texts and lists that come up are bounded. What begins a connection is in handshake.py, what clients request in requests.py.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from orchestrator.errors import ProtocolError
from orchestrator.model import (
    COUNT_MAX,
    TASKS_MAX,
    Assignment,
    Copy,
    JoinRequest,
    MemberStatus,
    ProcessingStarted,
    Released,
    TaskId,
)

VERSION = 2
FRAME_BYTES_MAX = 32 << 20


TEXT_MAX, NAME_MAX = 100_000, 1_000  # characters


def bounded(message: msgspec.Struct) -> None:
    """What a struct does after it was decoded. Raises ValueError for a value out of its range."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, int):
            if not 0 <= value <= COUNT_MAX:
                raise ValueError(f"`{name}` is {value}, and has to be between 0 and {COUNT_MAX}")
        elif isinstance(value, str | bytes) and len(value) > TEXT_MAX:
            raise ValueError(f"`{name}` is longer than {TEXT_MAX}")


class Join(msgspec.Struct, tag="join", frozen=True):
    """A worker opens a session."""

    version: int
    application: str
    hello: JoinRequest
    status: MemberStatus

    def __post_init__(self) -> None:
        bounded(self)
        request = self.hello
        texts = (request.member, request.instance, request.incarnation, request.writer, request.zone, request.host)
        others = (request.address, request.guarantee, request.instance_incarnation)
        if any(len(text) > NAME_MAX for text in (*texts, *others, request.app_version, request.package_version)):
            raise ValueError(f"a name of the member is longer than {NAME_MAX}")
        if not (0 <= request.capacity <= TASKS_MAX and 0 <= request.pid <= COUNT_MAX and len(request.protocols) <= 100):
            raise ValueError("the member's capacity, pid or protocols are out of bounds")
        ranges = request.tasks or ()
        if any(min(r.subtopology, r.first, r.partitions, r.weight) < 0 for r in ranges) or (
            sum(r.partitions for r in ranges) > TASKS_MAX
            or any(max(r.subtopology, r.first) >= TASKS_MAX or r.weight > COUNT_MAX for r in ranges)
        ):
            raise ValueError(f"its tasks are out of bounds; a group has at most {TASKS_MAX}")


class FullStatus(msgspec.Struct, tag="beat", frozen=True):
    """A worker's whole status."""

    status: MemberStatus


V = TypeVar("V")
Changed = dict[TaskId, V] | list[V] | UnsetType


class StatusDelta(msgspec.Struct, tag="change", frozen=True):
    """A worker's status by what it was in its last message: see heartbeat_delta.py. Only to a coordinator that understands it."""

    generation: int | UnsetType = UNSET
    term: int | UnsetType = UNSET
    active: Changed[int] = UNSET
    copies: Changed[Copy] = UNSET
    disk: Changed[int] = UNSET
    released: Changed[Released] = UNSET
    ends: Changed[int] = UNSET
    started: Changed[ProcessingStarted] = UNSET
    facts: dict[TaskId, tuple[int, int, int, int]] | tuple[list[int], list[int], list[int], list[int]] | UnsetType = (
        UNSET
    )
    weights: Changed[int] = UNSET
    leaving: bool | UnsetType = UNSET
    bounce: bool | UnsetType = UNSET
    notice: str | UnsetType = UNSET
    log_away: bool | UnsetType = UNSET


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """A client's request (requests.py), not decoded: one that is malformed gets an answer."""

    id: int
    request: msgspec.Raw

    def __post_init__(self) -> None:
        bounded(self)


class Attach(msgspec.Struct, tag="attach", frozen=True):
    """A worker offers its stores to its instance, which lets it look up keys. `incarnation`: of its process."""

    version: int
    worker: int
    incarnation: str
    member: str

    def __post_init__(self) -> None:
        bounded(self)


class Found(msgspec.Struct, tag="found", frozen=True):
    """A worker's answer to Lookup; `value` None: not there; `error` when it cannot say; `epoch` of the task, 0 of a copy."""

    id: int
    value: bytes | None
    role: str
    restore_lag: int
    error: str = ""
    epoch: int = 0


class Scanned(msgspec.Struct, tag="scanned", frozen=True):
    """A worker's answer to Scan: pairs in the order of their keys' bytes. `more`: there are others behind the last one; `epoch` as
    in Found."""

    id: int
    pairs: list[tuple[bytes, bytes]]
    more: bool
    role: str
    restore_lag: int
    error: str = ""
    epoch: int = 0


class Copied(msgspec.Struct, tag="copied", frozen=True):
    """A worker's answer to CopyStores: (task, table, folder, role) of each store that it copied, and a sentence for each that it
    could not copy."""

    id: int
    stores: list[tuple[str, str, str, str]]
    problems: list[str]


class Measured(msgspec.Struct, tag="measured", frozen=True):
    """What a worker has measured so far, to its instance: by name of metric, labels and numbers (workers/metrics/measures.py)."""

    samples: dict[str, list[tuple[tuple[str, ...], list[float]]]]


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The coordinator took the session; `changes`: it understands StatusDelta, which one of an older version does not.
    `patience_ms`: it takes the member for silent no sooner than this after its last message; 0 from an older version."""

    term: int
    changes: bool = False
    patience_ms: int = 0


class Acknowledged(msgspec.Struct, tag="acknowledged", frozen=True):
    """The coordinator has so many statuses of this session, the one in Join not counted; to members at least once alone."""

    statuses: int


class Assign(msgspec.Struct, tag="assign", frozen=True):
    """What the worker should hold now."""

    assignment: Assignment


class Closed(msgspec.Struct, tag="closed", frozen=True):
    """The session is over; `fenced`: the transactional id is refused from now on."""

    fenced: bool
    reason: str


class Lookup(msgspec.Struct, tag="lookup", frozen=True):
    """Read a key of a table from a worker's store."""

    id: int
    task: str
    table: str
    key: bytes


class Scan(msgspec.Struct, tag="scan", frozen=True):
    """Read keys of a table from a worker's store, from `start` to before `stop` (None: the last one), at most `limit`."""

    id: int
    task: str
    table: str
    start: bytes
    stop: bytes | None
    limit: int


class CopyStores(msgspec.Struct, tag="copy-stores", frozen=True):
    """Copy all open stores as they are at this moment, for a tool that reads them; `request` names their folder."""

    id: int
    request: str


class Answer(msgspec.Struct, tag="answer", frozen=True):
    """The answer to Ask: `body`, or `error` with the exit code that a command should end with."""

    id: int
    body: Any = None
    error: str = ""
    code: int = 0


Up = Join | FullStatus | StatusDelta | Ask | Attach | Found | Scanned | Copied | Measured
Down = Welcome | Acknowledged | Assign | Closed | Lookup | Scan | CopyStores | Answer

_encoder = msgspec.msgpack.Encoder()
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def ask(number: int, request: msgspec.Struct) -> Ask:
    """A request, as it is sent."""
    return Ask(number, msgspec.Raw(_encoder.encode(request)))


def encode(message: msgspec.Struct) -> bytes:
    """A whole frame. Raises ProtocolError for one that is too large."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a message of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


def decode_up(body: bytes) -> Up:
    """What a worker or client sent. Raises ProtocolError."""
    try:
        return _up.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message of ours: {error}") from None


def decode_down(body: bytes) -> Down:
    """What the coordinator sent. Raises ProtocolError."""
    try:
        return _down.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message of ours: {error}") from None
