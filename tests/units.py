"""Which tests of a run are one process's: those of a file, and all that share what takes seconds of a core to start.

One rule: it is about time and nothing else. A file that is not recognized starts a session or a broker more, and any test can
be run by itself. Used by tests/conftest.py where the suite runs in several processes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
SESSION, BROKER = "the Spark session", "the broker"
SHARED = (SESSION, BROKER)


@cache
def _of_file(path: str) -> str:
    if path.startswith("tests/contracts/"):
        return BROKER
    return SESSION if "spark: Any" in (ROOT / path).read_text() else path  # the fixture, as a test asks for it


def unit_of(nodeid: str) -> str:
    """What a test is run with: the name of what is shared, or its file."""
    return _of_file(nodeid.partition("::")[0])


def scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return Units(config, log)
