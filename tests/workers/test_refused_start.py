"""A first start that is refused leaves nothing in the way of a correct one, here or on another machine: no secret, whose fingerprint
would refuse every other, and no note of a process that runs the app."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from orchestrator import App, Record, Table
from orchestrator.clocks import wall_ms
from orchestrator.errors import RefusedBySafety, WrongUse
from state.log.protocol import GroupLog, TopicSpec
from state.log.sqlite import open_sqlite
from tests.small_disk import small
from workers.commands.run import run_fleet
from workers.connection.credentials import SECRET, agree, make_secret, new_secret, secret_path
from workers.errors import AppRefused
from workers.fleet.hosts import ProcessHost
from workers.fleet.presence import FLEET, NAMED, is_looked_after
from workers.prepare import REPARTITION
from workers.spec import InstanceSpec

__all__ = ["small"]

app = App("refused", partitions=4)
sums = app.table("sums", key=str, value=int)
left = app.topic("left", key=str, value=int)
right = app.topic("right", key=str, value=int)


@app.processor(left, sums)
def add_left(record: Record[str, int], sums: Table[str, int]) -> None:
    sums[record.key] = record.value


@app.processor(right, sums)
def add_right(record: Record[str, int], sums: Table[str, int]) -> None:
    sums[record.key] = record.value


async def opened(tmp_path: Path, **partitions: int) -> tuple[GroupLog, InstanceSpec]:
    log = await open_sqlite(tmp_path / "log.db", create=True)
    for name, count in partitions.items():
        await log.create_topic(TopicSpec(name, count))
    app_name = "tests.workers.test_refused_start:app"
    return log, InstanceSpec(app_name, app.id, "", f"sqlite:{tmp_path / 'log.db'}", str(tmp_path / "state"))


@pytest.mark.parametrize("name", ["", "one"])
async def test_it_leaves_neither_secret_nor_note(tmp_path: Path, name: str) -> None:
    log, spec = await opened(tmp_path, left=3, right=4)
    with pytest.raises(AppRefused, match="partition counts differ"):
        await run_fleet(ProcessHost(), msgspec.structs.replace(spec, instance=name), 1)
    assert not secret_path(app.id, spec.log, spec.state_dir).exists()
    assert await log.metadata(app.id, SECRET, "fingerprint") is None
    assert not await log.metadata_of(app.id, FLEET) and not await log.metadata_of(app.id, NAMED)
    await log.close()


async def test_the_note_of_a_fleet_on_another_machine_stays(tmp_path: Path) -> None:
    """A start that was refused took it away: a reset of the app that ran there was not refused any more."""
    log, spec = await opened(tmp_path, left=3, right=4)
    there = json.dumps(
        {"pid": 1, "started": "1", "host": "another", "state_dir": "/state", "instances": ["i1"], "at_ms": wall_ms()}
    )
    await log.put_metadata(app.id, FLEET, "fleet", there.encode())
    with pytest.raises(AppRefused, match="partition counts differ"):
        await run_fleet(ProcessHost(), spec, 1)
    assert await log.metadata(app.id, FLEET, "fleet") == there.encode()
    assert await is_looked_after(log, app.id)
    await log.close()


async def test_what_did_not_end_is_named_where_the_log_is_full(tmp_path: Path, small: Path) -> None:
    """The error spoke of the log's space alone, and with some the app would not have started either."""
    log, spec = await opened(small, left=4, right=4)
    lease = await log.acquire(app.id, "c", "", None)
    assert lease is not None
    await log.put_metadata(app.id, REPARTITION, "to", b"8", lease=lease)
    with suppress(OSError), (small / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    spec = msgspec.structs.replace(spec, state_dir=str(tmp_path / "state"), log_timeout_ms=300)
    with pytest.raises(AppRefused, match=r"run `orchestrator repartition MODULE:APP --to 8` again"):
        await run_fleet(ProcessHost(), spec, 1)
    await log.close()


async def test_wrong_weights_are_refused_before_that(tmp_path: Path) -> None:
    log, spec = await opened(tmp_path)
    with pytest.raises(WrongUse, match="--task-weights: 7 is no task"):
        await run_fleet(ProcessHost(), msgspec.structs.replace(spec, task_weights=(("7", 2.0),)), 1)
    assert await log.metadata(app.id, SECRET, "fingerprint") is None
    await log.close()


async def test_another_secret_is_refused_before_topics_are_made(tmp_path: Path) -> None:
    log, spec = await opened(tmp_path)
    await agree(log, app.id, new_secret())
    with pytest.raises(RefusedBySafety, match="there is no secret at"):
        await run_fleet(ProcessHost(), spec, 1)
    make_secret(secret_path(app.id, spec.log, spec.state_dir))
    with pytest.raises(RefusedBySafety, match="has another secret"):
        await run_fleet(ProcessHost(), spec, 1)
    assert not await log.names()
    await log.close()
