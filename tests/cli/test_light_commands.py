"""Commands that look at a group have no app, and import nothing of what runs one: a fifth of what their start takes of a core."""

from __future__ import annotations

import subprocess
import sys

COMMANDS = ("status", "wait", "explain", "consume", "query", "settings", "scale_down", "drain", "resume")
LOOK = "import sys, importlib; [importlib.import_module(f'workers.commands.{one}') for one in sys.argv[1:]]; print(*sys.modules)"


def test_commands_without_an_app_import_none_of_what_runs_one() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK, *COMMANDS], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "workers.commands.status" in loaded
    assert {"pipeline.app", "pipeline.process", "workers.tasks.task", "rocksdict"}.isdisjoint(loaded)
