"""`python -m orchestrator`: the command line. One rule: what lies in the current folder hides nothing of ours."""

from orchestrator.cli import early

early.begin()

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

if (
    not sys.flags.safe_path
    and Path(sys.path[0] or ".").resolve() == Path.cwd() != Path(__file__).resolve().parent.parent
):
    del sys.path[0]

from orchestrator.cli.main import entry  # noqa: E402

entry()
