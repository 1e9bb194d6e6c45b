"""Files and folders that only their owner may read: the log, stores, journals, snapshots and secrets.

One rule: what is made here is private from its first moment, and what an older version left open is closed when it is
used again. Folders that another program made are left as they are, but for the last one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER, FILE, OTHERS = 0o700, 0o600, 0o077


def private_process() -> None:
    """Whatever this process makes from now on is its owner's, also what RocksDB and SQLite make."""
    os.umask(OTHERS)


def make_folder(path: Path) -> None:
    """Makes a folder, with those above it that are missing. Raises OSError."""
    missing = [path, *path.parents]
    for folder in reversed([one for one in missing if not one.exists()]):
        folder.mkdir(mode=FOLDER, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "it is a file", str(path))


def close_to_others(path: Path) -> None:
    """Takes the rights of others from a file or folder of ours; nothing happens where it is not there, or not ours."""
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)


def make_file(path: Path) -> None:
    """Makes an empty file where there is none. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE))


def publish(path: Path, content: bytes) -> bool:
    """Writes a file that is there whole or not at all; False where it is there already. Of several that begin at one moment
    one wins, and the others read what it wrote. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # fails where the name is taken, as a rename does not
        return True
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)


def is_private(path: Path) -> bool:
    """Whether its owner alone has rights to it. Raises OSError."""
    return not stat.S_IMODE(path.stat().st_mode) & OTHERS
