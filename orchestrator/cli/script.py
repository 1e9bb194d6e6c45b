"""The console script: interrupts are looked after first, then the command line is imported."""

from orchestrator.cli import early

early.begin()

from orchestrator.cli.main import entry  # noqa: E402

__all__ = ["entry"]
