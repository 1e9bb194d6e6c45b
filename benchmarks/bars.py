"""Bars of rates as SVG text, with nothing but strings. One rule: every bar is named, and carries its figure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

WIDTH, HEIGHT, NAMES, FIGURES = 900, 22, 300, 100
OURS, OTHERS = "#2471a3", "#7f8c8d"
NOT_OURS = ("bare", "Quix", "Kafka Streams")


def bars(rates: Mapping[str, float]) -> str:
    """A bar for each name, "input: form", in the order given; grey where it is not ours."""
    most = max(rates.values())
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * (len(rates) + 1)}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (name, rate) in enumerate(rates.items()):
        top = HEIGHT * number + HEIGHT / 2
        long = (WIDTH - NAMES - FIGURES) * rate / most
        colour = OTHERS if name.partition(": ")[2].startswith(NOT_OURS) else OURS
        out += [
            f'<text x="{NAMES - 8}" y="{top + 12:.1f}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{top:.1f}" width="{long:.1f}" height="{HEIGHT - 6}" fill="{colour}"/>',
            f'<text x="{NAMES + long + 6:.1f}" y="{top + 12:.1f}">{rate / 1000:,.0f} k</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"
