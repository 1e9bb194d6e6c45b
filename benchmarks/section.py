"""The sections of docs/benchmarks.md: each benchmark replaces its own, between two marks, and leaves the others alone."""

from __future__ import annotations

from pathlib import Path


def held(bar: float, is_held: bool) -> str:
    """A bar, and whether what was measured keeps to it."""
    return f"{bar:g}: {'holds' if is_held else 'missed'}"


def write_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of `name`, or add it at the end."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    old = path.read_text() if path.exists() else "# Benchmarks\n\n"
    before, found, rest = old.partition(begin)
    after = rest.partition(end)[2] if found else ""
    gap = "" if found or before.endswith("\n\n") else "\n"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{before}{gap}{begin}{text}{end}{after}")
