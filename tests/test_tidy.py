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

# Pure rooms: events and the time come in as arguments, effects go out. Every module below is pure, or named with why not.
PURE_ROOMS = (
    "orchestrator/*.py",
    "orchestrator/group/*.py",
    "orchestrator/task_assignor/*.py",
    "orchestrator/partition_assignors/*.py",
    "orchestrator/member/*.py",
    "orchestrator/explain/*.py",
    "orchestrator/simulator/**/*.py",
    "pipeline/*.py",
    "pipeline/calls/*.py",
    "pipeline/columns/*.py",
    "pipeline/definitions/*.py",
    "pipeline/tables/*.py",
    "pipeline/time/*.py",
    "pipeline/values/*.py",
)
# Pure modules of rooms that are not.
PURE_MODULES = (
    *("orchestrator/coordinator/assignor_codec.py", "orchestrator/coordinator/election.py"),
    *("orchestrator/coordinator/heartbeat_delta.py", "orchestrator/coordinator/messages.py"),
    *("orchestrator/coordinator/requests.py", "workers/worker/throttle.py", "workers/tasks/commit_machine.py"),
    *("state/errors.py", "state/history.py", "state/log/batches.py", "state/log/compaction.py"),
)
NOT_PURE = {
    "orchestrator/clocks.py": "it is the clocks",
    "orchestrator/error_report.py": "prints the line in which a command ends",
    "orchestrator/partition_assignors/aiokafka.py": "runs in a client of Kafka, and logs as that does",
    "pipeline/loading.py": "imports the user's module",
}
BANNED = {
    *("asyncio", "socket", "time", "random", "threading", "os", "subprocess", "logging", "secrets", "uuid"),
    *("select", "selectors", "multiprocessing", "signal", "tempfile", "sqlite3", "sys", "importlib", "io", "shutil"),
}
BANNED_CALLS = {"open", "print", "input"}
CLOCKS = {"now", "utcnow", "today"}
# What one pure module may use, and for what.
MAY_USE = {
    "orchestrator/__init__.py": {"importlib"},  # a lazy table of public names
    "orchestrator/__main__.py": {"sys"},  # the exit code
    "orchestrator/testing.py": {"importlib"},  # names what it re-exports as text
    "orchestrator/spark.py": {"importlib"},  # the same
    "pipeline/calls/call.py": {"asyncio"},  # awaits user code
    "pipeline/calls/call_failures.py": {"asyncio"},  # the class of a cancellation alone
    "pipeline/calls/timeouts.py": {"asyncio"},  # ends calls of user code
    "pipeline/driver.py": {"asyncio"},  # awaits user code
    "pipeline/calls/overlap.py": {"asyncio"},  # awaits user code
    "pipeline/app.py": {"importlib", "sys"},  # the module that declares an app; who runs one is named as text
    "pipeline/columns/declared.py": {"importlib"},  # looks whether pyarrow is there
    "pipeline/time/windows.py": {"sys"},  # the line where a window that cannot be is written
    "pipeline/values/key_schemas.py": {"uuid"},  # the type alone: none is made
    "pipeline/failures.py": {"importlib"},  # frames of the import machinery are left out
    "orchestrator/simulator/benchmark/yardstick.py": {"random"},  # drawn from the seed that it is given
}


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


def impurities(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of whatever in a file reaches the world: a module that is imported, a clock, a file, a terminal."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name.split(".")[0]) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module.split(".")[0]
            case ast.Attribute(attr=name) if name in CLOCKS:
                yield node.lineno, name
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield node.lineno, name


def reaches_of(where: str) -> list[tuple[int, str]]:
    tree = ast.parse((ROOT / where).read_text())
    return [(line, name) for line, name in impurities(tree) if name in BANNED | BANNED_CALLS | CLOCKS]


def modules_of_pure_rooms() -> set[str]:
    return {str(path.relative_to(ROOT)) for pattern in PURE_ROOMS for path in ROOT.glob(pattern)}


def test_pure_cores_touch_no_world() -> None:
    problems = [
        f"{where}:{line}: uses {name}"
        for where in sorted((modules_of_pure_rooms() | set(PURE_MODULES)) - NOT_PURE.keys())
        for line, name in reaches_of(where)
        if name not in MAY_USE.get(where, ())
    ]
    assert not problems, "\n".join(problems)


def test_the_lists_of_pure_modules_are_exact() -> None:
    """Each pattern and each name stands for a module that is there; what is excused reaches the world indeed."""
    assert all(any(ROOT.glob(pattern)) for pattern in PURE_ROOMS)
    assert modules_of_pure_rooms().isdisjoint(PURE_MODULES), "listed twice"
    assert modules_of_pure_rooms() >= NOT_PURE.keys(), "not of a pure room"
    assert not [where for where in NOT_PURE if not reaches_of(where)], "pure, and listed as not"
    unused = {where: names - {name for _, name in reaches_of(where)} for where, names in MAY_USE.items()}
    assert not any(unused.values()), f"not used: {unused}"


def test_what_reaches_the_world_is_seen() -> None:
    seen = "import os.path\nfrom time import sleep\nx = datetime.now()\nopen('f')"
    assert sorted(impurities(ast.parse(seen))) == [(1, "os"), (2, "time"), (3, "now"), (4, "open")]


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
    *("remove", "replaced", "report", "setdefault", "unbind", "update", "wait_longer"),
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


def test_a_room_says_what_it_is_for() -> None:
    """What it is for, its one rule, who may import it, where to start: at the head of each package."""
    problems = [
        f"{path.relative_to(ROOT)}: does not say '{word}'"
        for path in sources()
        if path.name == "__init__.py" and path.parent.parent != ROOT.parent
        for word in ("One rule:", "mported by", "tart at")
        if word not in (ast.get_docstring(ast.parse(path.read_text())) or "").replace("\n", " ")
    ]
    assert not problems, "\n".join(problems)


SIMULATED_ROOMS = {("workers", room) for room in ("connection", "fleet", "instance", "tasks", "worker")}
CLOCK_READINGS = {"monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns"}


def test_clocks_are_read_in_one_module_of_each_side() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{node.lineno}: time.{node.attr}"
        for path in sources()
        if path.name != "clocks.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in CLOCK_READINGS
        if isinstance(node.value, ast.Name) and node.value.id == "time"
    ]
    assert not problems, "\n".join(problems)


def test_what_is_simulated_measures_with_the_clock_of_its_loop() -> None:
    """Else the time that a real machine takes shows in a life that is lived again."""
    problems = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {alias.name}"
        for path in sources()
        if path.relative_to(ROOT).parts[:2] in SIMULATED_ROOMS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "orchestrator.clocks"
        for alias in node.names
        if alias.name in ("monotonic_s", "lasting_s")
    ]
    assert not problems, "\n".join(problems)


def test_tests_import_no_benchmarks() -> None:
    benchmarks = {f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py")} | {"benchmarks"}
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in imports_of(path, benchmarks)
    ]
    assert not problems, "\n".join(problems)
