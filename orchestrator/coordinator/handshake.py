"""How a connection begins: both ends prove that they have the application's secret, before anything else is read.

One rule: nothing that was exchanged is of use in another connection, at the other end, for another right, version or
application: the proof is of all of them, of both nonces, and of the certificate where there is TLS. The client
introduces itself, the server challenges it with a proof of its own, the client answers with its proof, the server
admits it. Used by
transport.py, which connects, and listener.py, which admits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from orchestrator.coordinator.connection import Connection, ConnectionEnded
from orchestrator.coordinator.messages import VERSION, Answer, Closed
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret, proof, same
from orchestrator.coordinator.tls import Tls
from orchestrator.errors import OrchestratorError, ProtocolError, RefusedBySafety


def _whole(*nonces: bytes) -> None:
    if any(len(nonce) != KEY_BYTES for nonce in nonces):
        raise ValueError(f"a nonce or proof that has not {KEY_BYTES} bytes")


class Introduction(msgspec.Struct, tag="introduction", frozen=True):
    """The client's first frame. `right`: with the key of which right it will prove itself."""

    version: int
    application: str
    right: int
    nonce: bytes

    def __post_init__(self) -> None:
        _whole(self.nonce)
        if not Right.READ <= self.right <= Right.JOIN:
            raise ValueError(f"there is no right {self.right}")


class Challenge(msgspec.Struct, tag="challenge", frozen=True):
    """The server's answer, with its own proof."""

    nonce: bytes
    proof: bytes

    def __post_init__(self) -> None:
        _whole(self.nonce, self.proof)


class Proof(msgspec.Struct, tag="proof", frozen=True):
    """The client's proof."""

    proof: bytes

    def __post_init__(self) -> None:
        _whole(self.proof)


class Admission(msgspec.Struct, tag="admission", frozen=True):
    """The server's last word: from now on the client may send what is larger than a stranger's frame."""


class Refusal(msgspec.Struct, tag="refusal", frozen=True):
    """Instead of anything else: why nothing more is said here. `elsewhere`: what was looked for may be found at another
    address; else it is of no use to try again."""

    reason: str
    elsewhere: bool = False


class _Old(msgspec.Struct):
    """What a peer of version 1 begins with."""

    type: str
    id: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What one end brings along: the application's secret, and its side of TLS where there is any."""

    application: str
    secret: Secret
    tls: Tls | None = None
    new_nonce: Callable[[], bytes] = lambda: secrets.token_bytes(KEY_BYTES)


class NotAdmitted(OrchestratorError):
    """The peer did not prove what it has to prove; raised at the server's end."""


class NothingProven(ConnectionEnded):
    """The listener ended the connection instead of a first word; raised at the client's end."""


class NotTrusted(RefusedBySafety):
    """The two ends do not have the same secret, or are of versions that do not understand each other."""


_first = msgspec.msgpack.Decoder(Introduction)
_proof = msgspec.msgpack.Decoder(Proof)
_last = msgspec.msgpack.Decoder(Admission | Refusal)
_reply = msgspec.msgpack.Decoder(Challenge | Refusal)
_old = msgspec.msgpack.Decoder(_Old)


async def introduce(connection: Connection, credentials: Credentials, address: str) -> None:
    """The client's end. Raises NotTrusted, ConnectionEnded (also for a listener of another application)."""
    secret, nonce = credentials.secret, credentials.new_nonce()
    introduction = Introduction(VERSION, credentials.application, secret.right, nonce)
    connection.send(introduction)
    try:
        reply = _reply.decode(await connection.receive())
    except ConnectionEnded:
        what = "ended the connection before it proved anything; it is ending, or of an older release"
        raise NothingProven(f"the instance at {address} {what}") from None
    except (msgspec.MsgspecError, ValueError):
        raise ConnectionEnded(f"the process that listens at {address} is no instance of this version") from None
    if isinstance(reply, Refusal):
        raise ConnectionEnded(reply.reason) if reply.elsewhere else NotTrusted(reply.reason)
    facts = (*_facts(introduction), reply.nonce, connection.binding())
    if not same(reply.proof, proof(secret.key, "server", *facts)):
        raise NotTrusted(
            f"the instance at {address} does not have this secret of '{credentials.application}'; name the right file "
            "with --secret-file"
        )
    connection.send(Proof(proof(secret.key, "client", *facts)))
    try:
        last = _last.decode(await connection.receive())
    except (msgspec.MsgspecError, ValueError):
        raise ConnectionEnded(f"the instance at {address} does not end the handshake") from None
    if isinstance(last, Refusal):
        raise NotTrusted(last.reason)


def _facts(introduction: Introduction) -> tuple[int, str, int, bytes]:
    return introduction.version, introduction.application, introduction.right, introduction.nonce


async def admit(connection: Connection, credentials: Credentials, binding: bytes) -> Right:
    """The server's end: returns what the peer may do. Raises NotAdmitted, ConnectionEnded, ProtocolError."""
    try:
        body = await connection.receive()
    except ProtocolError:  # longer than any introduction: what a worker of version 1 begins with
        connection.send(Closed(False, _too_old()))
        raise
    introduction = _introduction(connection, body)
    if introduction.version != VERSION:
        _refuse(
            connection,
            f"this instance speaks version {VERSION} of the protocol, and the peer {introduction.version}; "
            "use the same release on both sides",
        )
    if introduction.application != credentials.application:
        what = f"this is an instance of '{credentials.application}', and not of {introduction.application[:40]!r}"
        _refuse(connection, what, elsewhere=True)
    right, nonce = Right(introduction.right), credentials.new_nonce()
    key = credentials.secret.key_of(right)
    facts = (*_facts(introduction), nonce, binding)
    connection.send(Challenge(nonce, proof(key, "server", *facts)))
    try:
        answer = _proof.decode(await connection.receive())
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"no proof: {error}") from None
    if not same(answer.proof, proof(key, "client", *facts)):
        _refuse(connection, f"the proof is wrong: the peer does not have the secret to {right.word}")
    connection.admitted()
    connection.send(Admission())
    return right


def _introduction(connection: Connection, body: bytes) -> Introduction:
    """The first frame. A peer of version 1 gets a line that it understands."""
    try:
        return _first.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = f"no introduction: {error}"
    try:
        old = _old.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProtocolError(problem) from None
    if old.type == "ask":
        connection.send(Answer(old.id, None, _too_old(), RefusedBySafety.exit_code))
    elif old.type == "join":
        connection.send(Closed(False, _too_old()))
    raise ProtocolError(f"a peer without a secret, of an older version ({problem})")


def _too_old() -> str:
    return f"this instance speaks version {VERSION} of the protocol and wants a secret; use its release here, too"


def _refuse(connection: Connection, reason: str, *, elsewhere: bool = False) -> None:
    connection.send(Refusal(reason, elsewhere))
    raise NotAdmitted(reason)
