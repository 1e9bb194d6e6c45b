"""Scale-downs as the log keeps them. Law: what was written before there were several is read; one alone is written so."""

from __future__ import annotations

import json
from typing import Any

from state.log.memory import MemoryLog
from workers.instance.ledger import OPERATION, LogLedger


def operation(name: str) -> dict[str, Any]:
    return {"id": name, "leaving": [name], "deadline_wall_ms": None, "force": False}


async def test_one_is_written_as_ever_and_several_are_read_again() -> None:
    log = MemoryLog()
    lease = await log.acquire("app", "i1", "", None)
    assert lease is not None
    ledger = LogLedger(log, lease)
    assert await ledger.operations() == []
    one, two, three = operation("i2"), operation("i3"), operation("i4")
    await ledger.put_operations([one])
    found = await log.metadata("app", OPERATION, "scale-down")
    assert found is not None and json.loads(found) == one
    assert await ledger.operations() == [one]
    await ledger.put_operations([one, two, three])
    assert await ledger.operations() == [one, two, three]
    await ledger.put_operations([])
    assert await ledger.operations() == []
