"""What the site makes of this repository's pages: mkdocs calls these functions (`hooks` in mkdocs.yml).

One rule: a page reads the same here and in the repository. Pages at the root (ARCHITECTURE.md) become pages of the site, links
to them and between folders follow, and diagrams that a browser would need a script from elsewhere for become tables.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OF_THE_ROOT = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
DECISIONS = "decisions.md"

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
ARROW = re.compile(r"^\s*(\S+)\s*-->\s*(?:\|([^|]*)\|\s*)?(\S+?)(?:\s*:\s*(.*))?$", re.MULTILINE)


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages of the root, and a list of the decisions."""
    from mkdocs.structure.files import File

    for name, page in OF_THE_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, DECISIONS, content=list_of_decisions()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The page's text with links and diagrams as the site has them."""
    source = page.file.src_uri
    at_root = {site: name for name, site in OF_THE_ROOT.items()}.get(source)
    there = at_root or posixpath.join("docs", source)  # the page's own path in the repository
    markdown = MERMAID.sub(lambda found: table_of(found[1]), markdown)
    return LINK.sub(lambda found: link(found, there, source), markdown)


def link(found: re.Match[str], there: str, source: str) -> str:
    """A link of the page `there` in the repository, as the page `source` of the site has it."""
    text, path, anchor = found[1], found[2], found[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(there), path))
    if target in OF_THE_ROOT:
        inside = OF_THE_ROOT[target]
    elif target == "docs/decisions":
        inside = DECISIONS
    elif target.startswith("docs/") or source == DECISIONS:
        inside = target.removeprefix("docs/")
    elif (ROOT / target).exists():
        return text  # a file of the source code: the site names it
    else:
        return found[0]  # leads nowhere: mkdocs says so
    return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(source) or '.')}{anchor})"


def list_of_decisions() -> str:
    """A page with a link to every decision."""
    lines = ["# Decisions", "", "Why it is built this way, ten lines each.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"* [{title.replace('. ', ': ', 1)}](decisions/{path.name})")
    return "\n".join(lines) + "\n"


def table_of(diagram: str) -> str:
    """The arrows of a state diagram as a table; the flow chart of ARCHITECTURE.md as the picture of the same."""
    if diagram.startswith("flowchart LR\n    source[(source topics)]"):
        return "![How a record flows](record-flow.svg)"
    if not diagram.startswith("stateDiagram"):
        raise ValueError(f"no picture for the diagram {diagram.splitlines()[:2]}; give docs/hooks.py one")
    rows = [f"| {state(a)} | {event or ''} | {state(b)} |" for a, _, b, event in ARROW.findall(diagram)]
    return "\n".join(["| from | on | to |", "|---|---|---|", *rows])


def state(name: str) -> str:
    return "(none)" if name == "[*]" else name
