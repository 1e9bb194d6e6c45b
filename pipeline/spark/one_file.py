"""The name of one file or folder, where Spark takes patterns: a folder of the user's may be called `[2026]`.

One rule: what this project wrote itself is read by its name from here. Writing takes no patterns.
"""

from __future__ import annotations

from pathlib import Path


def one_file(path: Path | str) -> str:
    """With what would be a pattern taken as it stands."""
    return "".join(f"\\{letter}" if letter in "*?[]{}\\" else letter for letter in str(path))
