"""What names a version of an app's code, so that `status` shows which instances run the new one while an upgrade is under way.

One rule: it is read where the app was loaded, by the process that runs it, right behind that: what is named is what runs.
A version decides nothing; which tasks an app has is compared by the tasks (orchestrator/group/topology_versions.py).
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from pipeline.app import App
from pipeline.loading import ROOMS

LONGEST = 60  # characters
DIGITS = 8  # of a digest
_ROOMS = tuple(Path(__file__).resolve().parent.parent / room for room in ROOMS)
_PYTHONS = tuple(
    {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
)  # what is imported of it differs by settings
_INSTALLED = {"site-packages", "dist-packages"}


def app_version(app: App) -> str:
    """`__version__` of the module that made the app, or of the package around it; without one a digest of its source and of what it
    imported from beside it; "" where there is no source."""
    names = app.module, app.module.partition(".")[0]
    for name in names:
        named = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(named, str) and named.strip():
            return "".join(one if one.isprintable() else "?" for one in named.strip())[:LONGEST]
    module = sys.modules.get(app.module)
    file = _file(module)
    if module is None or file is None:
        return ""
    depth = app.module.count(".") + (1 if file.name == "__init__.py" else 0)
    folder = file.parents[depth]
    package = names[1] if folder.name in _INSTALLED else ""  # of what is installed beside it, nothing is the app's
    found = sorted(_sources(folder, package), key=lambda one: str(one[0]))
    if not found:
        return ""
    digest = hashlib.sha256()
    for path, source in found:
        digest.update(f"{path.relative_to(folder)} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:DIGITS]


def package_version() -> str:
    """That of this package as it is installed; "" where it is not (its folders alone were copied)."""
    try:
        return version("stream-orchestrator")
    except PackageNotFoundError:
        return ""


def _sources(folder: Path, package: str = "") -> Iterator[tuple[Path, bytes]]:
    """Of the modules that are imported and lie in the folder (with a name: in that package), but for installed ones and our own.
    The folder itself may be among what is installed: a wheel of an app, an executor's folder in that of Spark."""
    for name, module in list(sys.modules.items()):
        file = _file(module)
        if file is None or not file.is_relative_to(folder) or (package and name.partition(".")[0] != package):
            continue
        if _is_installed(file.relative_to(folder)) or any(file.is_relative_to(room) for room in _ROOMS):
            continue
        if any(file.is_relative_to(lib) and not _is_installed(file.relative_to(lib)) for lib in _PYTHONS):
            continue
        source = _source(module, file)
        if source is not None:
            yield file, source


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _file(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and file else None


def _source(module: ModuleType, file: Path) -> bytes | None:
    """By its loader, as it may lie in an archive; None where that has no such thing."""
    read = getattr(getattr(module, "__loader__", None), "get_data", None)
    try:
        return bytes(read(str(file))) if read is not None else None
    except OSError:
        return None
