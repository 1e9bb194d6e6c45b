"""Docstrings as tests: a public function that raises an error says so, with `Raises ...`.

One rule: the list of those that do not may only shrink; one that was mended leaves it. A method without a docstring is
described by the interface that it fills in: a Protocol of ours with a method of that name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_tidy import ROOT, sources

SAYS = re.compile(r"\b[Rr]aises?\b")
INTERNAL = {"AssertionError", "NotImplementedError"}  # a defect of ours, which nobody is to catch

SILENT = {
    "orchestrator/cli/arguments.py:Parser.error",
    "orchestrator/partition_assignors/cooperative.py:ConstrainedCooperativeStickyAssignor.assign",
    "pipeline/spark/hosting.py:SparkHandle.wait",
    "state/log/kafka/topics.py:Topics.delete",
    "state/log/memory.py:MemoryLog.compact",
    "state/log/memory.py:MemoryLog.part",
}


def raised(node: ast.AST) -> Iterator[str]:
    """What the function itself raises, without those it defines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            yield ast.unparse(child.exc.func if isinstance(child.exc, ast.Call) else child.exc)
        yield from raised(child)


def public(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods with their names, where neither they nor their class begins with an underscore."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield inside + node.name, node


def interfaces() -> set[str]:
    """Names of methods of our Protocols that say what they raise."""
    return {
        method.name
        for path in sources()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for _, method in public(node.body)
        if SAYS.search(ast.get_docstring(method) or "")
    }


def silent(tree: ast.Module, described: set[str]) -> Iterator[str]:
    for name, node in public(tree.body):
        doc = ast.get_docstring(node)
        by_interface = doc is None and "." in name and node.name in described
        if set(raised(node)) - INTERNAL and not SAYS.search(doc or "") and not by_interface:
            yield name


def test_what_raises_says_so() -> None:
    described = interfaces()
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in sources()
        for name in silent(ast.parse(path.read_text()), described)
    }
    assert not found - SILENT, f"say what it raises (Raises ...): {sorted(found - SILENT)}"
    assert not SILENT - found, f"mended, or gone: take it off the list: {sorted(SILENT - found)}"


def test_a_silent_function_is_seen() -> None:
    text = 'def a():\n    raise X\ndef b():\n    "Raises X."\n    raise X\ndef _c():\n    raise X\nclass D:\n    def e(self): raise X'
    assert list(silent(ast.parse(text), set())) == ["a", "D.e"]
    assert list(silent(ast.parse(text), {"e"})) == ["a"]
