"""The page that Prometheus reads: text exposition format 0.0.4. One rule: one block a metric, from all that measured it; samples
have the labels of the process that measured before their own. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from workers.metrics.families import FAMILIES, Family
from workers.metrics.measures import Samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


def page(sources: Sequence[tuple[Labels, Samples]]) -> str:
    """Returns the whole text. `sources`: who measured, as labels, and what."""
    lines: list[str] = []
    for family in FAMILIES:
        rows = [
            ({**who, **dict(zip(family.labels, labels, strict=True))}, numbers)
            for who, samples in sources
            for labels, numbers in samples.get(family.name, ())
        ]
        if rows:
            lines += [f"# HELP {family.name} {_text(family.help)}", f"# TYPE {family.name} {family.kind}"]
            for labels, numbers in rows:
                lines += _lines(family, labels, numbers)
    return "\n".join(lines) + "\n"


def _lines(family: Family, labels: Labels, numbers: Sequence[float]) -> Iterable[str]:
    if not family.buckets:
        yield f"{family.name}{_labels(labels)} {_number(numbers[0])}"
        return
    count = 0.0
    for bound, one in zip((*(_number(b) for b in family.buckets), "+Inf"), numbers[:-1], strict=True):
        count += one
        yield f"{family.name}_bucket{_labels({**labels, 'le': bound})} {_number(count)}"
    yield f"{family.name}_sum{_labels(labels)} {_number(numbers[-1])}"
    yield f"{family.name}_count{_labels(labels)} {_number(count)}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _quoted(value: str) -> str:
    return _text(value).replace('"', '\\"')


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if not math.isfinite(value):  # as the format writes them
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
