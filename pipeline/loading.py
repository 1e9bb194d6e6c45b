"""From `MODULE:APP` to an App. One rule: whatever is wrong with the user's module is said in one line, by name.

The current folder comes first, as with `python -m`. Importing runs the user's module and nothing else of theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.app import App
from pipeline.errors import LoadError
from pipeline.failures import user_frames

ROOMS = ("orchestrator", "pipeline", "state", "workers")
_HOME = Path(__file__).resolve().parent.parent


def load(target: str, folder: Path | None = None) -> App:
    """The App that `MODULE:APP` names, or that `MODULE:FACTORY()` makes. Raises LoadError."""
    folder = (folder or Path.cwd()).resolve()
    module_name, attribute, call = _parts(target)
    _refuse_hiding(folder)
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    module = _imported(module_name, folder)
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
    module, colon, attribute = target.partition(":")
    call = attribute.endswith("()")
    attribute = attribute.removesuffix("()")
    if module.endswith(".py"):
        raise LoadError(f"{target!r}: {module} is a file; write {_as_module(module)}:{attribute or 'app'}")
    if not colon or not attribute:
        raise LoadError(f"{target!r} names no app; write MODULE:APP, for example {module or 'bank'}:app")
    if module == "__main__":
        raise LoadError(
            f"{target!r}: an app in a script or a notebook cannot be imported by other processes; save it as a module "
            f"and write its name, for example bank:{attribute}"
        )
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise LoadError(f"{target!r} is not MODULE:APP or MODULE:FACTORY()")
    return module, attribute, call


def _refuse_hiding(folder: Path) -> None:
    """A module of the user's under the name of one of our rooms would be imported in its place, sooner or later."""
    if folder == _HOME:
        return
    for room in ROOMS:
        for path in (folder / f"{room}.py", folder / room / "__init__.py"):
            if path.exists():
                shown = path.relative_to(folder)
                raise LoadError(f"{shown} in {folder} hides the package {room!r} of stream-orchestrator; rename it")


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(f"{name} imports {error.name}, which is not installed", user_frames(error)) from error
        raise LoadError(
            f"there is no module {name!r} in {folder} or where Python looks{_close(name, _modules_in(folder))}"
        ) from None
    except SystemExit as error:
        raise LoadError(
            f'{name} ends the program when it is imported; put what runs below if __name__ == "__main__":'
        ) from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise LoadError(f"{name} cannot be imported: {said}", user_frames(error)) from error


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
    except Exception as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise LoadError(f"{shown} raised {said}", user_frames(error)) from error


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


def _as_module(path: str) -> str:
    return path.removesuffix(".py").removeprefix("./").replace("/", ".")


def _close(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
