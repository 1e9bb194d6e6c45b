"""From `MODULE:APP` or `FILE.py:APP` to an App. One rule: whatever is wrong with the user's module is reported in one line.

A module is looked for in the current folder first, as with `python -m`. A file is loaded under a name of its own, and what
lies beside it comes last: so it may be called as one of our rooms is. Importing runs the user's module and nothing else.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.app import App
from pipeline.errors import LoadError, text_of
from pipeline.failures import user_frames

ROOMS = ("orchestrator", "pipeline", "state", "workers")
TERMINATED = 128 + signal.SIGTERM  # the exit code of a command that SIGTERM ended while it imported the app
_HOME = Path(__file__).resolve().parent.parent


def load(target: str, folder: Path | None = None) -> App:
    """The App that `MODULE:APP` or `FILE.py:APP` names, or that `MODULE:FACTORY()` makes. A file is meant from `folder` on.
    Raises LoadError."""
    folder = (folder or Path.cwd()).resolve()
    module_name, attribute, call = _parts(target)
    if names_a_file(target):
        path = _file_of(target, folder)
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        module = _run(module_name, path.parent, lambda: _loaded(module_of(target), path))
    else:
        _refuse_hiding(folder, f"./{module_name.replace('.', '/')}.py:{attribute}{'()' if call else ''}")
        if sys.path[:1] != [str(folder)]:
            sys.path.insert(0, str(folder))
        module = _run(module_name, folder, lambda: import_module(module_name))
        _refuse_another(module, module_name, folder)
    found = _attribute(module, module_name, attribute)
    if call:
        found = _called(found, f"{module_name}:{attribute}()")
    if not isinstance(found, App):
        raise LoadError(f"{target} is {_kind(found)}, not an App; {_apps_of(module, module_name, found)}")
    runnable(found, target)
    return found


def runnable(app: App, what: str) -> None:
    """Raises LoadError for an app that does nothing."""
    if not any(processor.rekey_to is None for processor in app.processors.values()):
        raise LoadError(f"{what}: app {app.id!r} has no processors; declare one with @app.processor(...)")


def _parts(target: str) -> tuple[str, str, bool]:
    module, colon, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    call = attribute.endswith("()")
    attribute = attribute.removesuffix("()")
    if module.endswith(".py") and (not colon or not attribute):
        raise LoadError(f"{target!r} names no app; write FILE.py:APP, for example {module}:app")
    if not colon or not attribute:
        raise LoadError(f"{target!r} names no app; write MODULE:APP, for example {module or 'bank'}:app")
    if module == "__main__":
        raise LoadError(
            f"{target!r}: an app in a script or a notebook cannot be imported by other processes; save it as a module "
            f"and write its name, for example bank:{attribute}"
        )
    parts = [] if module.endswith(".py") else module.split(".")
    if not all(part.isidentifier() for part in (*parts, *attribute.split("."))):
        file = f"; the app of a file is {module}.py:{attribute}" if "/" in module else ""
        raise LoadError(f"{target!r} is not MODULE:APP or MODULE:FACTORY(){file}")
    return module, attribute, call


def names_a_file(target: str) -> bool:
    """`./pipeline.py:app`, with or without the folder."""
    return target.rpartition(":")[0].endswith(".py")


def module_of(target: str) -> str:
    """The top-level name under which the app's module is imported: of a file one that hides nothing."""
    module = target.rpartition(":")[0]
    if not module.endswith(".py"):
        return module.partition(".")[0]
    return "app_file_" + "".join(letter if letter.isalnum() else "_" for letter in Path(module).stem)


def moved(target: str) -> str:
    """The same app once its source lies in another folder, which is given to `load` with it."""
    path, _, attribute = target.rpartition(":")
    return f"./{Path(path).name}:{attribute}" if names_a_file(target) else target


def _file_of(target: str, folder: Path) -> Path:
    path = (folder / target.rpartition(":")[0]).resolve()
    if not path.is_file():
        raise LoadError(f"there is no file {path}; name the file of the app, for example ./bank.py:app")
    return path


def _loaded(name: str, path: Path) -> ModuleType:
    """The module of a file; a second load of the same file is the same module."""
    found = sys.modules.get(name)
    if found is not None and getattr(found, "__file__", None) == str(path):
        return found
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _refuse_hiding(folder: Path, by_file: str) -> None:
    """A module of the user's under the name of one of our rooms would be imported in its place, sooner or later. `by_file`
    is the app named by its file. Raises LoadError."""
    if folder == _HOME:
        return
    for room in ROOMS:
        for path in (folder / f"{room}.py", folder / room / "__init__.py"):
            if path.exists():
                shown = path.relative_to(folder)
                raise LoadError(
                    f"{shown} in {folder} hides the package {room!r} of stream-orchestrator; rename it, or name the file "
                    f"of the app instead of its module: {by_file}"
                )


def _refuse_another(module: ModuleType, name: str, folder: Path) -> None:
    """A module of Python's own, or of a library, has the name of a file in the folder. Raises LoadError."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    found = getattr(module, "__file__", None)
    places = () if found is None else (Path(found), Path(found).resolve())  # the file in the folder may be a link
    if file.is_file() and not any(place.is_relative_to(folder) for place in places):
        raise LoadError(
            f"the name {name!r} is taken by {found or 'a module of Python itself'}, so {file.name} in {folder} is not imported; "
            f"rename it, or name the file of the app: ./{file.relative_to(folder)}:app"
        )


def _run(name: str, folder: Path, importing: Callable[[], ModuleType]) -> ModuleType:
    try:
        return importing()
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(f"{name} imports {error.name}, which is not installed", user_frames(error)) from error
        raise LoadError(
            f"there is no module {name!r} in {folder} or where Python looks{_close(name, _modules_in(folder))}"
        ) from None
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        raise LoadError(
            f'{name} ends the program when it is imported; put what runs below if __name__ == "__main__":'
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {text_of(error)}".rstrip(": ")
        raise LoadError(f"{name} cannot be imported: {problem}", user_frames(error)) from error


def _attribute(module: ModuleType, name: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [key for key in vars(module) if not key.startswith("_")]
            raise LoadError(f"module {name!r} has no {attribute!r}{_close(attribute, known)}; {_apps_of(module, name)}")
        found = getattr(found, part)
    return found


def _called(factory: Any, shown: str) -> Any:
    if isinstance(factory, App) or not callable(factory):
        raise LoadError(f"{shown}: {_kind(factory)} cannot be called; leave out the ()")
    try:
        return factory()
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        raise LoadError(f"{shown} ends the program; let it return the App") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {text_of(error)}".rstrip(": ")
        raise LoadError(f"{shown} raised {problem}", user_frames(error)) from error


def _apps_of(module: ModuleType, name: str, found: Any = None) -> str:
    """What to write instead."""
    if callable(found) and not isinstance(found, type):
        return f"if it makes the App, write {name}:{getattr(found, '__name__', 'make')}()"
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return "write " + " or ".join(f"{name}:{app}" for app in apps)
    return f'{name} has no App; write app = App("{name.rpartition(".")[2]}") in it'


def _modules_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py"))


def _close(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
