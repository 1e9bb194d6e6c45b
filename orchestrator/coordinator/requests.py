"""What clients may request, a struct each: what it may contain, and which right it takes.

One rule: a request is checked whole before anything is done with it: an unknown one, a field too many, a value out of its
bounds get one clear line for an answer. Who serves what is a table of these types (`Requests`), and the union that is
decoded is made of it. The coordinator serves those of admin.py, an instance those of its stores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Union

import msgspec

from orchestrator.coordinator.messages import bounded
from orchestrator.coordinator.secret import Right
from orchestrator.errors import OrchestratorError, WrongUse


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all. `right`: what it takes; `alters`: whether something is other after it. A field that was not set is not sent: one
    of an older version, which knows no such field, answers all the same."""

    right: ClassVar[Right] = Right.READ
    alters: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounded(self)


class StatusRequest(Request, tag="status", frozen=True):
    """The whole group. `counted`: refuse while it is not known how many instances run. `hand_overs_since`: so many hand-overs that
    the coordinator of `of_term` (0: whichever it is) had seen are left out; one that came after it has seen later ones alone."""

    counted: bool = False
    hand_overs_since: int = 0
    of_term: int = 0


class HandOversRequest(Request, tag="hand-overs", frozen=True):
    """The last hand-overs."""


class StableRequest(Request, tag="stable", frozen=True):
    """Whether anything has changed, and whether it is stable."""


class ExplainRequest(Request, tag="explain", frozen=True):
    """Why a task is where it is."""

    task: str


class LocateRequest(Request, tag="locate", frozen=True):
    """Which instance runs a task, and where it listens."""

    task: str


class PlanRequest(Request, tag="plan", frozen=True):
    """Who would leave; one of `to`, `by` and `instances` is given."""

    right: ClassVar[Right] = Right.SCALE
    to: str | None = None
    by: str | None = None
    instances: str | None = None
    current: int | None = None


class ScaleDownRequest(Request, tag="scale-down", frozen=True):
    """The same, done. `plan`: exactly that one, or nothing. `request`: what its client calls it: one that comes again, since no
    answer came to the first, is answered as the first was."""

    right: ClassVar[Right] = Right.SCALE
    alters: ClassVar[bool] = True
    to: str | None = None
    by: str | None = None
    instances: str | None = None
    current: int | None = None
    plan: str | None = None
    timeout_ms: int | None = None
    force: bool = False
    request: str = ""


class UndoRequest(Request, tag="undo", frozen=True):
    """Take a running scale-down back."""

    right: ClassVar[Right] = Right.SCALE
    alters: ClassVar[bool] = True


class StoreRequest(Request, tag="store", frozen=True):
    """A key of a table, from the store of an instance that has the task. `member`: its worker that has it, where known."""

    task: str
    table: str
    key: bytes
    member: str = ""


class ScanRequest(Request, tag="scan", frozen=True):
    """Keys of a table in one task, from `start` to before `stop` (None: the last one): a page of at most `limit` pairs."""

    task: str
    table: str
    start: bytes = b""
    stop: bytes | None = None
    limit: int = 1_000
    member: str = ""


class InstancesRequest(Request, tag="instances", frozen=True):
    """The instances of the group: where each listens, and on which host."""


class CoordinatorRequest(Request, tag="coordinator", frozen=True):
    """Where the coordinator listens, by the lease: a worker asks its instance, since a call may hold its own loop."""

    right: ClassVar[Right] = Right.JOIN


class CopyRequest(Request, tag="copy", frozen=True):
    """Copy all stores that an instance has open, on its disk, for a tool that reads them there. `name` of their folder."""

    right: ClassVar[Right] = Right.SCALE
    name: str

    def __post_init__(self) -> None:
        Request.__post_init__(self)
        if not self.name.isalnum():
            raise ValueError("`name` is letters and digits")


Handler = Callable[[Any, Any], Awaitable[Any]]  # (who serves, the request) -> plain data


class _Tag(msgspec.Struct):
    type: str


_tag = msgspec.msgpack.Decoder(_Tag)


class Requests:
    """A table of requests and their handlers."""

    def __init__(self, handlers: Mapping[type[Request], Handler]) -> None:
        self._handlers = dict(handlers)
        self._tags = {str(kind.__struct_config__.tag): kind for kind in handlers}
        kinds: Any = Union[tuple(handlers)] if handlers else Request  # noqa: UP007 - of as many as there are
        self._decoder = msgspec.msgpack.Decoder(kinds)

    def __contains__(self, raw: bytes) -> bool:
        return tag_of(raw) in self._tags

    def decode(self, raw: bytes) -> Request:
        """Raises WrongUse naming what is wrong with it."""
        tag = tag_of(raw)
        if tag not in self._tags:
            raise OrchestratorError(f"there is no request '{tag[:40]}' here; it may be of another version")
        try:
            request: Request = self._decoder.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise WrongUse(f"the request '{tag}' is malformed: {error}") from None
        return request

    def handler(self, request: Request) -> Handler:
        return self._handlers[type(request)]


def tag_of(raw: bytes) -> str:
    """How a request calls itself; "" where it does not."""
    try:
        return _tag.decode(raw).type
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
