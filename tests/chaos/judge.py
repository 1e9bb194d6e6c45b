"""The end of a life, judged by ids: input, outputs, changelog and the table that the group answers with.

One rule: what is compared was read as a consumer of committed records reads it, when all of the input was processed.
"""

from __future__ import annotations

import asyncio
import json
import time

from pipeline.values.codecs import codec_for
from state.errors import StateError
from state.log.protocol import GroupLog, Partition
from tests.chaos.oracle import expected, problems
from tests.chaos.world import APP, World
from tests.kills.harness import read_topic

DEADLINE_S = 180.0  # a loaded machine, and three brokers on it
TABLE, OUTPUT, INPUT = "balances", "receipts", "payments"


async def begun(log: GroupLog) -> list[Partition]:
    """The input's partitions, once the producer has made them and something is committed."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, "nothing was processed at the beginning"
        found = (await log.topics([INPUT])).get(INPUT)
        inputs = [] if found is None else [Partition(INPUT, number) for number in range(found.partitions)]
        if inputs and sum((await log.positions(APP, inputs)).values()):
            return inputs
        await asyncio.sleep(0.1)


async def _read_by_app(log: GroupLog) -> list[Partition]:
    names = [INPUT, f"{APP}-by-shop-repartition"]
    return [Partition(name, n) for name, info in (await log.topics(names)).items() for n in range(info.partitions)]


async def processed(world: World, log: GroupLog) -> None:
    """Waits until nothing is left in the input, nor in the topic of a re-key behind it."""
    deadline = time.monotonic() + DEADLINE_S
    left: dict[Partition, int] = {}
    while time.monotonic() < deadline:
        try:
            inputs = await _read_by_app(log)
            ends = await log.ends(inputs, settled=True)
            positions = await log.positions(APP, inputs)
        except StateError:
            continue  # a broker that is back for a moment only
        left = {one: end - positions.get(one, 0) for one, end in ends.items() if positions.get(one, 0) < end}
        if not left:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not processed after {DEADLINE_S:.0f} s: {left}; see {world.folder}")


async def differences(world: World, log: GroupLog) -> list[str]:
    """What is lost, doubled or wrong, in a line each."""
    payments: list[tuple[str, int, int]] = []
    for _, record in await read_topic(log, INPUT):
        value = json.loads(record.value)
        payments.append((record.key.decode(), value["id"], value["amount"]))
    number = codec_for(int, what="receipts")
    outputs = [(record.key.decode(), number.decode(record.value)) for _, record in await read_topic(log, OUTPUT)]
    changelog = {
        record.key.decode(): number.decode(record.value)
        for _, record in await read_topic(log, f"{APP}-{TABLE}-changelog")
    }
    world.outcome.records = len(payments)
    wanted = expected(payments, by_shop=world.plan.shape == "by-shop")
    return problems(wanted, outputs, {"changelog": changelog, "table": await _scanned(world)})


async def _scanned(world: World) -> dict[str, int]:
    """The table as the owners of its tasks have it in their stores."""
    scanning = world.asked("table", "dump", APP, TABLE, "--out", str(world.folder / "table.jsonl"), out="table")
    code = await asyncio.to_thread(scanning.wait)
    assert code == 0, f"the table cannot be read ({code}): {world.said('table')}"
    rows = [json.loads(line) for line in (world.folder / "table.jsonl").read_text().splitlines()]
    return {row["key"]: row["value"] for row in rows}
