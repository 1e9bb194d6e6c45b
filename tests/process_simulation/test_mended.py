"""Defects that lives have shown and that are mended: the plan that showed each one holds. `mended/NAME.json` is lived by
`python -m tests.process_simulation --plan FILE --trace`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.process_simulation.mutations import OF_MENDED
from tests.process_simulation.plan import Plan
from tests.process_simulation.shrink import broken

FOLDER = Path(__file__).parent / "mended"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_a_mended_defect_stays_mended(name: str) -> None:
    assert broken(msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Plan))[0] is None


@pytest.mark.parametrize("name", OF_MENDED)
def test_without_its_rule_a_mended_defect_is_there_again(name: str) -> None:
    if name == "cancelled_with_its_loops" and sys.version_info >= (3, 12):
        pytest.skip("asyncio of 3.12 and later has no moment at which the loops fail as the candidate is cancelled")
    plan = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Plan)
    with ExitStack() as stack:
        OF_MENDED[name](stack)
        assert broken(plan)[0] is not None
