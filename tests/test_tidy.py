"""House rules as tests: sizes, and what the pure cores may not import or call. Fails with file and line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("orchestrator", "workers", "state", "pipeline", "examples")
MODULE_LINES_MAX = 420
FUNCTION_LINES_MAX = 72

# Pure cores: events and the time come in as arguments, effects go out.
PURE = [
    "orchestrator/model.py",
    "orchestrator/events.py",
    "orchestrator/group*.py",
    "orchestrator/member*.py",
    "orchestrator/refine*.py",
    "orchestrator/staleness.py",
    "orchestrator/placement*.py",
    "orchestrator/views.py",
    "orchestrator/stability.py",
    "orchestrator/bench/*.py",
    "orchestrator/versions.py",
    "orchestrator/timing.py",
    "orchestrator/weights.py",
    "orchestrator/recovery.py",
    "workers/throttle.py",
    "orchestrator/roster.py",
    "orchestrator/beats.py",
    "orchestrator/columns.py",
    "orchestrator/ends.py",
    "orchestrator/silence.py",
    "orchestrator/leaving.py",
    "orchestrator/names.py",
    "orchestrator/grants.py",
    "orchestrator/scale.py",
    "orchestrator/world.py",
    "orchestrator/durations.py",
    "orchestrator/operations.py",
    "orchestrator/invariants.py",
    "orchestrator/explain*.py",
    "orchestrator/election.py",
    "orchestrator/shares.py",
    "orchestrator/scenario*.py",
    "orchestrator/assignors/*.py",
    "pipeline/*.py",
]
NOT_PURE = {"orchestrator/assignors/aiokafka.py", "orchestrator/bench/command.py", "pipeline/commands.py"}
BANNED = {
    *("asyncio", "socket", "time", "random", "threading", "os", "subprocess", "logging", "secrets", "uuid"),
    *("select", "selectors", "multiprocessing", "signal", "tempfile", "sqlite3"),
}
# Pure, but defines what awaits user code; may name asyncio and nothing else of the banned.
MAY_AWAIT = {"pipeline/process.py", "pipeline/driver.py"}


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
