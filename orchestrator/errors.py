"""The errors of the control plane. One rule: `str(error)` says what, where, and what to do about it, in one line."""

from __future__ import annotations


class OrchestratorError(Exception):
    """Base of the control plane's errors; `exit_code` is what a command ends with."""

    exit_code = 1


class WrongUse(OrchestratorError):
    """A bad number, an unknown name, options that exclude each other."""

    exit_code = 2


class RefusedBySafety(OrchestratorError):
    """A safety rule says no: no coordinator, another one runs, a plan that no longer fits."""

    exit_code = 3


class TimedOut(OrchestratorError):
    """It took longer than allowed; what could be undone was undone."""

    exit_code = 4


class NotThere(OrchestratorError):
    """The key asked for does not exist."""

    exit_code = 5


class ProtocolError(OrchestratorError):
    """A peer sent a frame that is not of the protocol."""


class InvariantBroken(OrchestratorError):
    """A safety rule does not hold: an internal error."""
