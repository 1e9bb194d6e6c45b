"""The errors of running instances. One rule: what, where, and what to do about it, in one line."""

from __future__ import annotations

from orchestrator.errors import OrchestratorError


class AppRefused(OrchestratorError):
    """The app does not fit what the log knows of it."""

    exit_code = 3
