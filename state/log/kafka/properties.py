"""Properties files as Kafka's own tools read them: lines to names and values, with secrets taken from elsewhere. Pure, but
for what `resolved` reads.

One rule: a value never appears in an error, because it may be a secret; a name and a line number do. `${env:NAME}`,
`${file:PATH:KEY}` and `${directory:PATH:NAME}` stand for a variable, a key of another properties file, and a file, as with
the config providers of Kafka's Java clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from state.errors import StateError

_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_SETTING = re.compile(r"((?:\\.|[^=:\s\\])+)(?:[ \t]*[=:][ \t]*|[ \t]+)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_REFERENCE = re.compile(r"\$\{(\w+):([^}]*)\}")


class BadClientConfig(StateError):
    """A file of client settings that cannot be used: unreadable, or with a setting that is wrong or unknown."""

    exit_code = 2


def read(path: Path) -> str:
    """The text of a file of settings or secrets. Raises BadClientConfig."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadClientConfig(
            f"{path} cannot be read ({error.strerror}): name a file that this user may read"
        ) from None
    except UnicodeDecodeError:
        raise BadClientConfig(f"{path} is not UTF-8 text: write it as a properties file, NAME=VALUE a line") from None


def parsed(text: str, where: str) -> dict[str, str]:
    """Names and values. Raises BadClientConfig for a line that is no setting, and for a name that comes twice."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        setting = _SETTING.fullmatch(line)
        if setting is None:
            raise BadClientConfig(
                f"{where}, line {number}: no NAME=VALUE; correct it, or begin it with # if it is a comment"
            )
        name, value = _unescaped(setting[1]), _unescaped(setting[2].rstrip())
        if name in found:
            raise BadClientConfig(f"{where}, line {number}: {name} is given twice; keep one of them")
        found[name] = value
    return found


def referred(values: Mapping[str, str]) -> list[Path]:
    """The files that the values refer to, whether they are there or not."""
    found = [match for value in values.values() for match in _REFERENCE.finditer(value)]
    return [_path(one[1], one[2]) for one in found if one[1] in ("file", "directory")]


def _path(kind: str, given: str) -> Path:
    folder, _, key = given.rpartition(":")
    return Path(folder) / key if kind == "directory" else Path(folder)


def resolved(values: Mapping[str, str], where: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The values with what they refer to. Raises BadClientConfig."""

    def one(name: str, kind: str, given: str) -> str:
        if kind == "env":
            if given not in environment:
                raise BadClientConfig(f"{where}: {name} refers to the variable {given}, which is not set; export it")
            return environment[given]
        folder, _, key = given.rpartition(":")
        if kind not in ("file", "directory") or not folder or not key:
            raise BadClientConfig(
                f"{where}: {name} refers to what is unknown here; write ${{env:NAME}}, ${{file:PATH:KEY}} or "
                "${directory:PATH:NAME}"
            )
        path = _path(kind, given)
        text = read(path)
        if kind == "directory":
            return text.strip()
        kept = parsed(text, str(path))
        if key not in kept:
            raise BadClientConfig(f"{where}: {name} refers to {key} in {path}, which has no such key; add it there")
        return kept[key]

    texts = dict(values)
    for name, value in values.items():
        for match in reversed(list(_REFERENCE.finditer(value))):
            texts[name] = texts[name][: match.start()] + one(name, match[1], match[2]) + texts[name][match.end() :]
    return texts


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments, those that end with a backslash joined with the next; each with its number."""
    found: list[tuple[int, str]] = []
    begun, pieces = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not pieces and (not line or line[0] in "#!"):
            continue
        begun = begun if pieces else number
        if _CONTINUED.search(line):
            pieces += line[:-1]
            continue
        found.append((begun, pieces + line))
        pieces = ""
    if pieces:
        found.append((begun, pieces))
    return found


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _PLAIN.get(code, code)

    return _ESCAPE.sub(one, text)
