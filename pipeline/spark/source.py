"""The app's source on its way to the executors: they need neither its folder nor ours.

One rule: what travels is source and the name of the app, never a pickled definition; so what runs there is what a
worker imports. An app that is a module of its own goes with the modules and the data files beside it that it names, a
package whole, with the data in it. On a cluster our own packages go the same way; what they import (msgspec, pyarrow, rocksdict and the
like, and what the app imports from elsewhere) must be installed on the executors.
Packed and sent by the driver (`ship`); unpacked once an executor and imported there (`Source.load`).
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from orchestrator.errors import WrongUse
from pipeline.app import App
from pipeline.loading import ROOMS, load, module_of, moved
from state.disk_full import writing_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_MAX = 64 << 20
NAME_MAX = 255
HOME = Path(__file__).resolve().parent.parent.parent
_IMPORT = re.compile(r"^\s*(?:from\s+(\w+)|import\s+([\w., \t]+))", re.MULTILINE)
_UNPACKED = re.compile(r"-[0-9a-f]{16}$")
_SHIPPED: dict[str, tuple[App, str]] = {}  # the app as it was when its source was sent first, and a sum of that
_SAME_TIME = (1980, 1, 1, 0, 0, 0)  # the same source is the same archive


class Source(msgspec.Struct, frozen=True):
    """An app as executors get it: `archive` is one of the files that Spark sends them."""

    app: str
    archive: str

    def folder(self) -> Path:
        """On an executor: where the source lies. The first task that comes unpacks it."""
        from pyspark import SparkFiles

        archive = Path(SparkFiles.get(self.archive))
        target = archive.with_suffix("")
        if not target.exists():
            draft = archive.with_name(f".{target.name}.{os.getpid()}")
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(draft)
            try:
                draft.rename(target)
            except OSError:  # another task was faster
                shutil.rmtree(draft)
        return target

    def load(self) -> App:
        """On an executor: the app itself, and nothing of another archive: a process of an executor runs many tasks."""
        folder = self.folder()
        _forget_others(folder)
        return load(self.app, folder)


def _forget_others(folder: Path) -> None:
    """Modules of earlier archives go, for their names are those of this one: of some of them it would use what they were."""
    files = f"{folder.parent}/"

    def is_other(place: object) -> bool:
        if not isinstance(place, str) or not place.startswith(files):
            return False
        first = place.removeprefix(files).partition("/")[0]
        return bool(_UNPACKED.search(first)) and first != folder.name

    def places(module: ModuleType) -> list[object]:
        return [getattr(module, "__file__", None), *(getattr(module, "__path__", None) or ())]

    # All are found before any goes: a package without an `__init__.py` looks for its places in the one that it lies in.
    gone = [name for name, module in list(sys.modules.items()) if any(map(is_other, places(module)))]
    for name in gone:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not is_other(entry)]


def ship(session: SparkSession, app_ref: str) -> Source:
    """Send the source of an app, and ours where executors are other machines. Raises LoadError, WrongUse, NoSpaceLeft, SparkFailed."""
    app = load(app_ref)
    folder = ship_ours(session)
    module = module_of(app_ref)
    _refuse_changed(app, module)
    archive = _kept(folder, module, pieces(module))
    _send(session, session.sparkContext.addFile, archive)
    return Source(moved(app_ref), archive.name)


def ship_ours(session: SparkSession) -> Path:
    """Send this project where executors are other machines, for jobs that need no app as well; the folder of what is sent. Raises
    NoSpaceLeft, SparkFailed."""
    from pipeline.spark.session import folder_of  # the driver's alone, and what it imports
    from workers.commands.cluster import IN_DRIVER

    context = session.sparkContext
    folder = folder_of(session) / "source"
    folder.mkdir(exist_ok=True)
    if not IN_DRIVER.match(str(context.master)):
        ours = _kept(folder, "stream-orchestrator", ((HOME, HOME / room) for room in ROOMS))
        _send(session, context.addPyFile, ours)  # on the path before anything of ours is unpickled
    return folder


def _send(session: SparkSession, send: Callable[[str], None], archive: Path) -> None:
    """Spark keeps a copy in a folder of its own, which may have no room. Raises SparkFailed."""
    from py4j.protocol import Py4JJavaError

    from pipeline.spark.session import failure

    try:
        send(str(archive))
    except Py4JJavaError as error:
        raise failure(session, error) from None


def _refuse_changed(app: App, module: str) -> None:
    """Raises WrongUse where the source of the app is not that of the app as it is known here: it would run on executors."""
    found = hashlib.blake2b(digest_size=16)
    for root, piece in pieces(module):
        for file in (piece,) if piece.is_file() else _files(piece):
            if file.suffix == ".py":
                found.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode() + file.read_bytes())
    known, digest = _SHIPPED.get(module, (app, found.hexdigest()))
    if known is app and digest != found.hexdigest():
        raise WrongUse(
            f"the source of '{module}' has changed since a job of this process began with it, and what it defines is known here as it was: begin a "
            "new process (in a notebook restart the kernel)"
        )
    _SHIPPED[module] = app, found.hexdigest()


def pieces(module: str) -> Iterator[tuple[Path, Path]]:
    """(folder, file or package in it) of an imported top-level module and of what it names beside it.
    Raises WrongUse."""
    origin = getattr(sys.modules[module], "__file__", None)
    path = Path(origin) if origin else Path(next(iter(getattr(sys.modules[module], "__path__", [module]))))
    top = path.parent if path.name == "__init__.py" else path
    if top.suffix not in ("", ".py") or not top.exists():
        raise WrongUse(f"module {module!r} has no source that Spark could be sent ({top}); save it as a module")
    root = top.parent
    alone = root in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
    found = {top.stem: top}
    waiting = [top]
    while waiting and not alone:
        for name in _named(waiting.pop()):
            beside = next((at for at in (root / name, root / f"{name}.py") if _importable(at)), None)
            if beside is not None and name not in found and name not in ROOMS:
                found[name] = beside
                waiting.append(beside)
    for name in sorted(found):
        yield root, found[name]
    if not alone:
        yield from ((root, path) for path in sorted(_data(root, found.values())))


def _data(root: Path, modules: Iterable[Path]) -> set[Path]:
    """The files beside modules that their source names as text, as in Path(__file__).with_name("rates.csv")."""
    found: set[Path] = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_bytes())) if module.suffix == ".py" else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and 0 < len(text) <= NAME_MAX and not {"..", ""} & set(text.split("/")):
                path = root / text
                if "\0" not in text and path.suffix != ".py" and path.is_file():
                    found.add(path)
    return found


def _importable(path: Path) -> bool:
    return path.is_file() or (path / "__init__.py").is_file()


def _named(piece: Path) -> set[str]:
    """The top-level names that source imports, wherever in it; words of a docstring that look so do no harm."""
    found: set[str] = set()
    for file in (piece,) if piece.is_file() else piece.rglob("*.py"):
        for one, several in _IMPORT.findall(file.read_text(errors="replace")):
            found.update([one] if one else (word.strip().partition(".")[0] for word in several.split(",")))
    return {name.split()[0] for name in found if name.strip()}


def _kept(folder: Path, name: str, listed: Iterable[tuple[Path, Path]]) -> Path:
    """The archive of what is listed, named by its content. Raises NoSpaceLeft."""
    data = packed(listed)
    path = folder / f"{name}-{hashlib.blake2b(data, digest_size=8).hexdigest()}.zip"
    if not path.exists():
        draft = path.with_suffix(".draft")
        with writing_to(
            folder, "the app's source is kept there for executors; free some, or name another folder with TMPDIR"
        ):
            draft.write_bytes(data)
        draft.rename(path)
    return path


def packed(listed: Iterable[tuple[Path, Path]]) -> bytes:
    """Files and folders as an archive. Raises WrongUse where a package has too much beside its source."""
    buffer = io.BytesIO()
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for root, piece in listed:
            for file in (piece,) if piece.is_file() else _files(piece):
                total += file.stat().st_size
                if total > BYTES_MAX:
                    raise WrongUse(
                        f"{piece} has more than {BYTES_MAX >> 20} MiB, too much to send to every executor; keep data "
                        "outside of the package"
                    )
                info = zipfile.ZipInfo(str(file.relative_to(root)), _SAME_TIME)
                archive.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files(package: Path) -> Iterator[Path]:
    for path in sorted(package.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path
