"""The tables of docs/structured-streaming.md: what `benchmarks/structured_streaming.py` has measured, as text. Pure.

One rule: every figure comes from what was seen; what was not measured is said so, and has no row.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.streaming_watch import Seen

NOT_HERE = "Structured Streaming was not measured: STREAMING_PYTHON names no Python that has it with a Kafka connector of its version."


@dataclass(frozen=True, slots=True)
class Phase:
    """From when to when, and the share of a core that the job's processes took (None: not known)."""

    began: float
    ended: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Steady:
    """One job under a steady load. `took_s`: its change from one to two; `driver_s`: of it, the start of Spark's second driver."""

    label: str
    guarantee: str
    rate: int
    one: Phase
    change: Phase
    two: Phase
    how: str
    took_s: float
    driver_s: float | None
    seen: Seen
    wrong: int


@dataclass(frozen=True, slots=True)
class Drain:
    """One backlog. CPU seconds of all processes of the job by record; `outputs`: records that it wrote to its topic of counts. `gave_up_s`:
    it was not through after so long, and has no other figures."""

    label: str
    guarantee: str
    input: str
    records: int
    rate: float
    cpu_s: float
    outputs: int
    wrong: int
    gave_up_s: float | None = None


@dataclass(slots=True)
class Measured:
    steady: list[Steady]
    drains: list[Drain]
    loads: list[float]
    version: str

    def with_more(self, other: Measured) -> Measured:
        """A row that was measured again replaces the one before."""
        steady = {one.label: one for one in (*self.steady, *other.steady)}
        drains = {(one.input, one.label): one for one in (*self.drains, *other.drains)}
        loads = [*self.loads, *other.loads]
        return Measured([*steady.values()], [*drains.values()], loads, other.version or self.version)


def text(found: Measured, head: str) -> str:
    loads = (
        f"load average {min(found.loads):.1f} to {max(found.loads):.1f} when a part began or ended"
        if found.loads
        else ""
    )
    spark = f"Spark {found.version}" if found.version else "Spark not measured"
    parts = [f"`make bench-streaming`, {head}, {spark}; {loads}."]
    if found.steady:
        parts += [_latency(found.steady), _change(found.steady)]
    if found.drains:
        parts.append(_drains(found.drains))
    if not found.version:
        parts.append(NOT_HERE)
    return "\n\n".join(parts) + "\n"


def _latency(rows: list[Steady]) -> str:
    lines = [
        f"### Latency at {rows[0].rate:,} records a second",
        "",
        "Milliseconds from the write of a record until a count with it can be read by a reader of committed records; the share of a core "
        "that all processes of the job take. On one core's worth (an instance, `local[1]`), then on two.",
        "",
        "| job | guarantee | one: p50 | p99 | longest | of a core | two: p50 | p99 | longest | of a core |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        phases = [(row.seen.waited_ms(one.began, one.ended), one.share) for one in (row.one, row.two)]
        cells = [f"{_points(waited)} | {'-' if share is None else f'{share:.0%}'}" for waited, share in phases]
        lines.append(f"| {row.label} | {row.guarantee} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(rows: list[Steady]) -> str:
    lines = [
        "### From one to two under that load",
        "",
        "Seconds of the change, the start of Spark's second driver in brackets; the longest time without a count of some partition, and the "
        "longest wait of a record, in milliseconds; counts that said nothing new of their key, because a batch was done again; keys "
        "whose last count is wrong in the end.",
        "",
        "| job | how | seconds | longest gap in rest | longest gap | longest wait | repeated counts | wrong keys |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        took = f"{row.took_s:.1f}" + (f" ({row.driver_s:.1f})" if row.driver_s is not None else "")
        gaps = [row.seen.longest_gap_ms(one.began, one.ended) for one in (row.one, row.change)]
        waited = max(row.seen.waited_ms(row.change.began, row.change.ended), default=0.0)
        cells = f"{took} | {gaps[0]:,.0f} | {gaps[1]:,.0f} | {waited:,.0f} | {row.seen.repeated:,} | {row.wrong}"
        lines.append(f"| {row.label} | {row.how} | {cells} |")
    return "\n".join(lines)


def _drains(rows: list[Drain]) -> str:
    lines = [
        "### A backlog",
        "",
        f"{rows[0].records:,} records, `hot`: of 20,000 keys, `unique`: each of its own; two instances, `local[2]` whose Java is warm; CPU "
        "seconds of all processes of the job for a million records; how many counts it wrote.",
        "",
        "| input | job | guarantee | records a second | CPU seconds for a million | counts written | wrong keys |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row.input):
        cells = f"{row.rate:,.0f} | {row.cpu_s * 1e6:.1f} | {row.outputs:,} | {row.wrong}"
        if row.gave_up_s is not None:
            cells = f"not through after {row.gave_up_s:.0f} s | - | - | -"
        lines.append(f"| {row.input} | {row.label} | {row.guarantee} | {cells} |")
    return "\n".join(lines)


def _points(values: list[float]) -> str:
    if not values:
        return "- | - | -"
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return f"{statistics.median(values):,.0f} | {cuts[98]:,.0f} | {max(values):,.0f}"
