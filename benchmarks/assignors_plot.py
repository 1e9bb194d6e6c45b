"""A log-log line plot as SVG text, with nothing but strings. One rule: every line is named at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 520, 70, 250, 30, 50
COLOURS = ("#c0392b", "#e67e22", "#7f8c8d", "#8e44ad", "#2471a3", "#5dade2", "#117864", "#58d68d", "#34495e")


def plot(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Milliseconds over partitions."""
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    left, right = floor(log10(min(xs))), ceil(log10(max(xs)))
    low, high = floor(log10(min(ys))), ceil(log10(max(ys)))

    def across(x: float) -> float:
        return LEFT + (log10(x) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (log10(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for power in range(left, right + 1):
        x = across(10**power)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(low, high + 1):
        y = up(10**power)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g} ms</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">partitions</text>')
    ends: list[float] = []
    order = sorted(lines.items(), key=lambda item: up(item[1][-1][1]))
    for colour, (name, line) in zip(COLOURS * 2, order, strict=False):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        place = max(up(line[-1][1]), ends[-1] + 16 if ends else 0)  # names keep apart
        ends.append(place)
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{place + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
