"""Defects that lives have shown and that are mended: the plan that showed each one holds. `mended/NAME.json` is lived by
`python -m tests.process_simulation --plan FILE --trace`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.process_simulation.plan import Plan
from tests.process_simulation.shrink import broken

FOLDER = Path(__file__).parent / "mended"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_a_mended_defect_stays_mended(name: str) -> None:
    assert broken(msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Plan))[0] is None
