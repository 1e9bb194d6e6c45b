"""The programs of docs/joins.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "joins.md"


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in programs] == ["balance.py", "test_balance.py", "enrich.py", "test_enrich.py"]
    for name, text in programs:
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "2 passed" in ran.stdout, ran.stdout
