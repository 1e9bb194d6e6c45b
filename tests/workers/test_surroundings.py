"""What a worker process is given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from workers.spec import InstanceSpec, WorkerSpec
from workers.surroundings import start_worker

APP = """
from pathlib import Path
import pyarrow as pa
from orchestrator import App
Path(__file__).with_suffix(".txt").write_text(pa.default_memory_pool().backend_name)
app = App("pools")
"""


@pytest.mark.parametrize("wanted", [None, "mimalloc"])
async def test_a_worker_gives_back_what_columns_do_not_need(
    wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    if wanted is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", wanted)
    (tmp_path / "pools.py").write_text(APP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = InstanceSpec("pools:app", "pools", "i1", f"sqlite:{tmp_path / 'log.db'}", str(tmp_path / "state"))
    worker = await start_worker(WorkerSpec(spec, 1, "one"))
    try:
        async with asyncio.timeout(30):
            await worker.wait()  # there is no such log
    finally:
        worker.kill()
    assert (tmp_path / "pools.txt").read_text() == (wanted or "system")
