"""The secret of an application: what may be done with it, the proof that one has it, and its text in a file.

One rule: a secret never travels. A peer proves that it has the secret by an HMAC over the nonces of both ends. A right
contains the lesser ones: their keys are derived from its key, and none leads back. Pure; handshake.py exchanges the proofs.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from orchestrator.errors import RefusedBySafety, WrongUse

KEY_BYTES = 32
_encode = msgspec.msgpack.Encoder().encode


class Right(IntEnum):
    """What a secret allows; each contains those before it."""

    READ = 1  # status, explain, query
    SCALE = 2  # scale-up, scale-down, drain, resume
    JOIN = 3  # be an instance of the group

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Right:
        """Raises WrongUse."""
        if word.upper() not in cls.__members__:
            raise WrongUse(f"'{word[:40]}' is no right; there are {', '.join(right.word for right in cls)}")
        return cls[word.upper()]


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """The key of one right, and so of the lesser ones. It is never shown but by `text`."""

    right: Right
    key: bytes

    def key_of(self, right: Right) -> bytes:
        """The key of this right or of a lesser one. Raises RefusedBySafety for one that it does not contain."""
        if right > self.right:
            raise RefusedBySafety(refusal(self.right, right))
        key = self.key
        for lesser in range(self.right - 1, right - 1, -1):
            key = hmac.digest(key, f"stream-orchestrator {Right(lesser).word}".encode(), hashlib.sha256)
        return key

    def lowered(self, right: Right) -> Secret:
        """The secret that allows no more than `right`. Raises RefusedBySafety."""
        return Secret(right, self.key_of(right))

    def text(self) -> str:
        """One line, as a file holds it: `join 3f...`."""
        return f"{self.right.word} {self.key.hex()}\n"

    @staticmethod
    def parse(text: str, where: str) -> Secret:
        """Raises WrongUse naming where it was read; the message repeats nothing of it."""
        words = text.split()
        try:
            right, key = Right.of(words[0]), bytes.fromhex(words[1])
        except (WrongUse, ValueError, IndexError):
            right, key = Right.READ, b""
        if len(key) != KEY_BYTES or len(words) != 2:
            raise WrongUse(f"{where} holds no secret; copy the whole file that `orchestrator secret APP` names")
        return Secret(right, key)

    def fingerprint(self) -> str:
        """What tells one secret of an application from another, whatever right it is for, and says nothing of it."""
        return hashlib.sha256(b"stream-orchestrator fingerprint" + self.key_of(Right.READ)).hexdigest()[:16]


def refusal(has: Right, needed: Right) -> str:
    """The line for a peer whose secret does not go far enough."""
    return f"a secret to {has.word} does not allow to {needed.word}; give one that does with --secret-file"


def proof(key: bytes, end: str, *facts: str | int | bytes) -> bytes:
    """The proof that an end ("client", "server") of the exchange that `facts` describe has `key`."""
    return hmac.digest(key, _encode([end, *facts]), hashlib.sha256)


def same(one: bytes, other: bytes) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(one, other)
