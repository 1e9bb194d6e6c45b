"""Importing the public names loads nothing heavy, and they are what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("pyspark", "faust", "aiokafka", "rocksdict", "rich", "pyarrow", "numpy", "pandas")


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import orchestrator; [getattr(orchestrator, name) for name in orchestrator.__all__]",
        "import examples.bank",
        "from orchestrator.testing import Driver",
    ],
)
def test_no_spark_faust_or_kafka_client_is_loaded(code: str) -> None:
    assert not loaded_by(code) & set(HEAVY)


def test_importing_the_package_loads_no_room() -> None:
    assert not loaded_by("import orchestrator") & {"pipeline", "workers", "state", "msgspec", "asyncio"}


def test_every_public_name_is_there() -> None:
    assert set(orchestrator.__all__) == set(orchestrator.PUBLIC)
    for name in orchestrator.__all__:
        assert getattr(orchestrator, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        orchestrator.Nothing
