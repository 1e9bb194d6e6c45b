"""What a coordinator keeps in the log: scale-downs and generations. Law: what older versions wrote is read, and they read one alone."""

from __future__ import annotations

import json
from typing import Any

from state.log.memory import MemoryLog
from workers.instance.ledger import GENERATION, OPERATION, LogLedger


def operation(name: str) -> dict[str, Any]:
    return {"id": name, "leaving": [name], "deadline_wall_ms": None, "force": False}


async def test_one_is_written_as_ever_and_several_are_read_again() -> None:
    log = MemoryLog()
    lease = await log.acquire("app", "i1", "", None)
    assert lease is not None
    ledger = LogLedger(log, lease)
    assert await ledger.scale_downs() == ((), {})
    one, two, three = operation("i2"), operation("i3"), operation("i4")
    await ledger.put_operations([one])
    found = await log.metadata("app", OPERATION, "scale-down")
    assert found is not None and json.loads(found) == one
    assert await ledger.scale_downs() == ([one], {})
    await ledger.put_operations([one, two, three])
    assert await ledger.scale_downs() == ([one, two, three], {})
    await ledger.put_leavers({"i2": "a"})
    assert await LogLedger(log, lease).scale_downs() == ([one, two, three], {"i2": "a"})
    await ledger.put_operations([])
    assert await ledger.scale_downs() == ((), {"i2": "a"})
    await ledger.put_leavers({})
    assert await log.metadata_of("app", OPERATION) == {}


async def test_the_members_of_the_last_generation_are_kept_beside_its_number() -> None:
    log = MemoryLog()
    lease = await log.acquire("app", "i1", "", None)
    assert lease is not None
    ledger = LogLedger(log, lease)
    assert await ledger.generation() == (0, frozenset())
    await ledger.put_generation(4, frozenset({"i1", "i2"}))
    assert await LogLedger(log, lease).generation() == (4, frozenset({"i1", "i2"}))
    assert await log.metadata("app", GENERATION, "generation") == b"4", "older versions read the number alone"
    await ledger.put_generation(5, frozenset({"i1"}))
    assert await LogLedger(log, lease).generation() == (5, frozenset({"i1"}))
