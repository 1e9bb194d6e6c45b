"""The parent of Python workers on this machine: Spark's own, with the pyspark that is installed here.

One rule: it is Spark's daemon as it stands; only where its modules come from differs. Spark names its archive of pyspark before
everything else, and Python compiles what it imports from an archive with each start (half a second of a core), but keeps what
it has compiled of files. In the flow: `properties` names it for a local master, Spark starts it, each worker is forked from it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def without_archives(paths: Sequence[str]) -> list[str]:
    """But for archives of an installed pyspark whose own folder is among the paths: the same modules lie there as files."""
    return [path for path in paths if not _is_beside(Path(path), paths)]


def _is_beside(path: Path, paths: Sequence[str]) -> bool:
    return path.suffix == ".zip" and path.parts[-4:-1] == ("pyspark", "python", "lib") and str(path.parents[3]) in paths


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()
