"""House rules as tests: sizes, and what the pure cores may not import or call. Fails with file and line."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("orchestrator", "workers", "state", "pipeline", "examples")
MODULE_LINES_MAX = 420
FUNCTION_LINES_MAX = 72

# Words that the project's vocabulary replaces by the field's: none stands in a name of these packages.
WORDS_CHECKED = ROOMS
PRIVATE_WORDS = {
    *(
        "wish",
        "told",
        "tell",
        "heard",
        "hear",
        "said",
        "roster",
        "hello",
        "placement",
        "placing",
        "placer",
        "asker",
        "askers",
    ),
    *(
        "aside",
        "silence",
        "excuse",
        "adopt",
        "growing",
        "climate",
        "freed",
        "stirred",
        "deposed",
        "deeds",
        "nonsense",
        "nobodys",
    ),
}
# Names of fields on the wire, which change only with a version; and a list that is put aside, which is plain English.
WORDS_ALLOWED = {("orchestrator/coordinator/messages.py", "hello"), ("", "set_aside")}

# Pure cores: events and the time come in as arguments, effects go out.
PURE = [
    "orchestrator/model.py",
    "orchestrator/settings.py",
    "orchestrator/names.py",
    "orchestrator/durations.py",
    "orchestrator/weights.py",
    "orchestrator/group/*.py",
    "orchestrator/task_assignor/*.py",
    "orchestrator/partition_assignors/*.py",
    "orchestrator/member/*.py",
    "orchestrator/explain/*.py",
    "orchestrator/simulator/**/*.py",
    "orchestrator/coordinator/assignor_codec.py",
    "orchestrator/coordinator/election.py",
    "orchestrator/coordinator/heartbeat_delta.py",
    "workers/throttle.py",
    "pipeline/*.py",
    "workers/commit_machine.py",
]
NOT_PURE = {"orchestrator/partition_assignors/aiokafka.py", "pipeline/commands.py"}
BANNED = {
    *("asyncio", "socket", "time", "random", "threading", "os", "subprocess", "logging", "secrets", "uuid"),
    *("select", "selectors", "multiprocessing", "signal", "tempfile", "sqlite3"),
}
# Pure, but defines what awaits user code; may name asyncio and nothing else of the banned.
MAY_AWAIT = {"pipeline/calls.py", "pipeline/driver.py", "pipeline/overlap.py"}


def sources() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def test_sizes() -> None:
    problems: list[str] = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > MODULE_LINES_MAX:
            problems.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines (at most {MODULE_LINES_MAX})")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines")
    assert not problems, "\n".join(problems)


def test_modules_begin_with_prose() -> None:
    problems = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not problems, "no docstring at the head: " + ", ".join(problems)


def test_no_junk_drawers() -> None:
    bad = [str(p) for p in sources() if p.stem in {"utils", "util", "common", "helper", "helpers", "manager", "misc"}]
    assert not bad


def pure_modules() -> set[Path]:
    found = {path for pattern in PURE for path in ROOT.glob(pattern)}
    return {path for path in found if str(path.relative_to(ROOT)) not in NOT_PURE}


def test_pure_cores_touch_no_world() -> None:
    problems: list[str] = []
    for path in sorted(pure_modules()):
        allowed = {"asyncio"} if str(path.relative_to(ROOT)) in MAY_AWAIT else set()
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module.split(".")[0]]
            for name in names:
                if name in BANNED - allowed:
                    problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: imports {name}")
            if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
                problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: reads a clock ({node.attr})")
    assert not problems, "\n".join(problems)


def test_there_are_pure_cores() -> None:
    """The patterns above must go on matching something, or the ban bans nothing."""
    assert len(pure_modules()) >= 5


# ---- imports


def imports_of(path: Path, modules: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each of `modules` that the file imports, wherever in the file: also in functions
    and in TYPE_CHECKING blocks, where a circle hides."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield node.lineno, inner if inner in modules else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in modules)


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted name -> file of the modules below a folder; a package is its `__init__`."""
    found = {".".join(p.relative_to(package.parent).with_suffix("").parts): p for p in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def circles(graph: Mapping[str, Collection[str]]) -> list[str]:
    """One line for each circle: a shortest way from a module back to itself, named once."""
    found: dict[frozenset[str], str] = {}
    for start in sorted(graph):
        ways = [[start]]
        seen = {start}
        while ways:
            way = ways.pop(0)
            for step in sorted(graph[way[-1]]):
                if step == start:
                    found.setdefault(frozenset(way), " -> ".join([*way, start]))
                elif step not in seen:
                    seen.add(step)
                    ways.append([*way, step])
    return list(found.values())


def graph_of(package: Path) -> dict[str, set[str]]:
    modules = modules_of(package)
    return {
        name: {other for _, other in imports_of(path, modules.keys()) if other != name}
        for name, path in modules.items()
    }


@pytest.mark.parametrize("package", ROOMS)
def test_modules_import_in_one_direction(package: str) -> None:
    """No circle of modules, and none of rooms (the packages within), also not through TYPE_CHECKING."""
    graph = graph_of(ROOT / package)
    rooms: dict[str, set[str]] = {}
    for name, others in graph.items():
        here = room_of(name)
        rooms.setdefault(here, set()).update(room_of(other) for other in others)
        rooms[here].discard(here)
    assert not circles(graph), "modules import each other: " + "; ".join(circles(graph))
    assert not circles(rooms), "rooms import each other: " + "; ".join(circles(rooms))


def room_of(module: str) -> str:
    """`orchestrator.group.step` -> `orchestrator.group`; a module that lies in no room is one by itself."""
    return ".".join(module.split(".")[:2])


def test_circles_are_seen(tmp_path: Path) -> None:
    """The check above sees a circle that hides behind TYPE_CHECKING, and one through a function."""
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sample import b\n")
    (package / "b.py").write_text("def late():\n    from sample.c import x\n")
    (package / "c.py").write_text("import sample.a\nx = 1\n")
    assert circles(graph_of(package)) == ["sample.a -> sample.b -> sample.c -> sample.a"]
    (package / "c.py").write_text("x = 1\n")
    assert circles(graph_of(package)) == []


# ---- words


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a file gives to something: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)):
                yield node.lineno, name


def test_names_are_words_of_the_field() -> None:
    problems: list[str] = []
    for path in sources():
        where = str(path.relative_to(ROOT))
        if where.startswith(WORDS_CHECKED):
            names = [*names_in(ast.parse(path.read_text())), (1, path.stem)]
            for line, name in names:
                words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
                allowed = {(where, name), ("", name)} & WORDS_ALLOWED
                problems += [f"{where}:{line}: {name} says '{w}'" for w in sorted(words & PRIVATE_WORDS) if not allowed]
    assert not problems, "\n".join(problems)


# ---- the group's state

CHANGES_THE_GROUP = ("orchestrator/group/apply.py", "orchestrator/group/members.py")  # rules, and the table of members
# What changes a container or a table of the group.
CHANGING_CALLS = {
    *("add", "append", "become", "bind", "clear", "discard", "extend", "keep", "note_progress", "pop", "record_sent"),
    *("remove", "replaced", "report", "setdefault", "unbind", "update"),
}
STATE_NAMES = ("group", "member", "move", "operation")


def changes_of_state(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a file changes something that belongs to a `group`, a `member`, a `move` or an `operation`."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(targets=found) | ast.Delete(targets=found):
                targets = found
            case ast.AugAssign(target=found) | ast.AnnAssign(target=found):
                targets = [found]
            case ast.Call(func=ast.Attribute(attr=called, value=container)) if called in CHANGING_CALLS:
                targets = [ast.Attribute(container, called, ast.Store(), lineno=node.lineno)]
        for target in [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]:
            owner = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
            words = re.findall(r"\w+", ast.unparse(owner)) if owner is not None else []
            if words and (words[0] in STATE_NAMES or words[:2] == ["self", "group"]):
                yield target.lineno, ast.unparse(target)


def test_the_groups_state_changes_in_one_place() -> None:
    """Rules yield changes; apply.py alone carries them out. Whoever hosts a group gives it events."""
    problems = [
        f"{path.relative_to(ROOT)}:{line}: changes {what}"
        for path in sorted((ROOT / "orchestrator").rglob("*.py"))
        for line, what in changes_of_state(ast.parse(path.read_text()))
        if str(path.relative_to(ROOT)) not in CHANGES_THE_GROUP
        and path.parent.name in ("group", "coordinator", "explain", "simulator")
    ]
    assert not problems, "yield a change instead (orchestrator/group/changes.py): " + "; ".join(problems)
    assert len(list(changes_of_state(ast.parse((ROOT / CHANGES_THE_GROUP[0]).read_text())))) > 40


def test_changes_of_state_are_seen() -> None:
    seen = "group.moves[t] = 1; del group.moves[t]; member.sent = None; self.group.held = 1; group.a.b.add(1)"
    assert [line for line, _ in changes_of_state(ast.parse(seen.replace("; ", "\n")))] == [1, 2, 3, 4, 5]
    unseen = "found.add(1)\nself.group = 2\ngroup.moves.get(t)\nx = group.moves"
    assert not list(changes_of_state(ast.parse(unseen)))
