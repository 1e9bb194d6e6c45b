"""Defects that the simulation shows today, by name: the shrunk plan that shows each, and how it breaks.

One rule: a defect stays here until it is mended; then it goes, its kind of fault comes out of `plan.NOT_YET`, and the
suite must hold it. `python -m tests.process_simulation --defect NAME --trace` lives one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.process_simulation.plan import Plan


@dataclass(frozen=True, slots=True)
class Defect:
    """`kind` is how the life breaks (`shrink.kind`, its beginning)."""

    what: str
    kind: str
    plan: Plan


DEFECTS: dict[str, Defect] = {}
