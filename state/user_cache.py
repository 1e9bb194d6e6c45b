"""Where this project keeps for a user what can be made or fetched again: the broker's jars, Java's classes of Spark.

One rule: whatever lies here may be deleted at any time, and costs time alone.
"""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder, which may not be there yet. Raises RuntimeError where the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-orchestrator"
