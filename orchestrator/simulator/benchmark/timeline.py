"""A picture of rehearsals: a panel per protocol, a row per task, coloured by the instance that runs it.

One rule: a task that runs nowhere is left white between two red marks; a learner is a thin line in the colour of its instance
below the bar of the owner. Plain SVG, no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from orchestrator.model import TaskId
from orchestrator.names import natural
from orchestrator.simulator.benchmark.history import Doing, Span
from orchestrator.simulator.benchmark.workload import Change

COLOURS = ("#4269d0", "#efb118", "#3ca951", "#9c6b4e", "#a463f2", "#6cc5b0", "#ff8ab7", "#97bbf5", "#9498a0", "#ff725c")
LEFT, RIGHT, HEAD, ROW, GAP, WIDTH = 52, 16, 34, 6, 22, 980
SILENT = "#d62728"


@dataclass(frozen=True, slots=True)
class Panel:
    """One run: its title, its spans, and when its stable start was."""

    title: str
    spans: Sequence[Span]
    begin_ms: int
    end_ms: int


def draw(panels: Sequence[Panel], tasks: Sequence[TaskId], changes: Sequence[Change]) -> str:
    """The whole picture as SVG text."""
    length = max(panel.end_ms - panel.begin_ms for panel in panels)
    instances = sorted({span.instance for panel in panels for span in panel.spans}, key=natural)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(instances)}
    height = HEAD + len(panels) * (len(tasks) * ROW + GAP + 20) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _legend(colours),
    ]
    top = HEAD
    for panel in panels:
        parts += _panel(panel, tasks, changes, colours, top, length)
        top += len(tasks) * ROW + GAP + 20
    parts += [_axis(top, length), "</svg>"]
    return "\n".join(parts) + "\n"


def _x(ms: float, length: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * ms / max(1, length), 2)


def _legend(colours: dict[str, str]) -> str:
    marks, at = [], LEFT
    for name, colour in colours.items():
        marks.append(f'<rect x="{at}" y="8" width="10" height="10" fill="{colour}"/>')
        marks.append(f'<text x="{at + 14}" y="17">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    marks.append(f'<rect x="{at}" y="8" width="10" height="10" fill="none" stroke="{SILENT}"/>')
    marks.append(f'<text x="{at + 14}" y="17">nobody runs it</text>')
    marks.append(f'<rect x="{at + 110}" y="12" width="14" height="2" fill="#444"/>')
    marks.append(f'<text x="{at + 128}" y="17">thin: a learner restores or follows</text>')
    return "".join(marks)


def _panel(
    panel: Panel, tasks: Sequence[TaskId], changes: Sequence[Change], colours: dict[str, str], top: int, length: int
) -> list[str]:
    body = top + 18
    parts = [f'<text x="{LEFT}" y="{top + 12}" font-weight="600">{escape(panel.title)}</text>']
    rows = {task: body + index * ROW for index, task in enumerate(tasks)}
    for task, y in rows.items():
        if task.partition == 0:
            parts.append(f'<text x="{LEFT - 6}" y="{y + ROW}" text-anchor="end">{task}</text>')
    for span in panel.spans:
        begin, end = max(span.begin_ms, panel.begin_ms) - panel.begin_ms, span.end_ms - panel.begin_ms
        if end <= begin or span.doing not in (Doing.RUN, Doing.LEARN):
            continue
        thin = span.doing is Doing.LEARN
        y, high = (rows[span.task] + ROW - 2, 2) if thin else (rows[span.task], ROW - 2)
        x = _x(begin, length)
        wide = max(0.6, round(_x(end, length) - x, 2))
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{colours[span.instance]}">'
            f"<title>{span.task} {span.instance} {span.doing} {begin / 1000:.2f}-{end / 1000:.2f} s</title></rect>"
        )
    parts += _silences(panel, tasks, rows, length)
    low = body + len(tasks) * ROW
    for change in changes:
        x = _x(change.at_ms, length)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{body - 3}" y2="{low}" stroke="#555" stroke-dasharray="2 2"/>')
        parts.append(f'<text x="{x + 2}" y="{body - 5}" fill="#555">{escape(str(change))}</text>')
    return parts


def _silences(panel: Panel, tasks: Sequence[TaskId], rows: dict[TaskId, int], length: int) -> list[str]:
    """Frames around the times in which a task ran nowhere, where they are long enough to be seen."""
    parts: list[str] = []
    for task in tasks:
        ran = sorted((s.begin_ms, s.end_ms) for s in panel.spans if s.task == task and s.doing is Doing.RUN)
        until = panel.begin_ms
        for begin, end in [*ran, (panel.end_ms, panel.end_ms)]:
            if begin > until:
                x = _x(until - panel.begin_ms, length)
                wide = max(0.5, round(_x(begin - panel.begin_ms, length) - x, 2))
                frame = f'fill="#ffffff" stroke="{SILENT}" stroke-width="0.6"'
                parts.append(f'<rect x="{x}" y="{rows[task]}" width="{wide}" height="{ROW - 2}" {frame}/>')
            until = max(until, end)
    return parts


def _axis(top: int, length: int) -> str:
    step = next((s for s in (10, 30, 60, 120, 300, 600, 1800, 3600) if length / 1000 / s <= 12), 7200)
    marks = [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top}" y2="{top}" stroke="#555"/>']
    for second in range(0, length // 1000 + 1, step):
        x = _x(second * 1000, length)
        marks.append(f'<line x1="{x}" x2="{x}" y1="{top}" y2="{top + 4}" stroke="#555"/>')
        marks.append(f'<text x="{x}" y="{top + 16}" text-anchor="middle">{second} s</text>')
    return "".join(marks)
