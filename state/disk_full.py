"""A disk that is full, as the libraries that write to it put it.

One rule: which folder it is, is known where it is written; an error of a library names none, or a file of a folder that is removed
at once.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from state.errors import NoSpaceLeft

CODES = (errno.ENOSPC, errno.EDQUOT)
WORDS = ("No space left on device", "Disk quota exceeded")


@contextmanager
def writing_to(folder: Path, advice: str) -> Iterator[None]:
    """Raises NoSpaceLeft, which names the folder, where what is written in the block finds its disk full."""
    try:
        yield
    except Exception as error:  # RocksDB's own class is Exception
        if not is_no_space(error):
            raise
        raise NoSpaceLeft(f"no space is left on the disk of {folder}: {advice}") from None


def is_no_space(error: Exception) -> bool:
    """Whether an error says that a disk is full: one of the system, of Arrow, or of RocksDB, which knows no numbers."""
    return getattr(error, "errno", None) in CODES or (type(error) is Exception and any(w in str(error) for w in WORDS))
