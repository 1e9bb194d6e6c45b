"""`python -m tests.time.one_answer --apps 20 [--seed 1]`: random apps and records (`tests.time.drawn`) through the Driver, live with two
instances, a kill and a scale-up, and as history on Spark.

What is sent is compared by key and who sent it, in order; tables of what any order gives by their rows. What lies behind the re-key goes by the order in
which live tasks wrote, so it is compared with a Driver that is given the records in that order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.testing import Driver
from tests.cli.console import Console
from tests.time.drawn import Beat, Drawn, drawn

FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms")
BEHIND = "drawn-by-group-repartition"
ByKey = dict[str, list[str]]


class Answer(NamedTuple):
    """What an app sends, by key and sender, and what its tables hold at the end, where any order of arrival gives the same."""

    out: ByKey
    behind: ByKey
    tables: dict[str, dict[Any, int]]


class Different(AssertionError):
    """Two answers that should be one."""


def by_key(pairs: Iterable[tuple[str, str]]) -> ByKey:
    found: ByKey = defaultdict(list)
    for key, value in pairs:
        sender, _, said = value.partition(" ")
        found[f"{key} {sender}"].append(said)
    return dict(found)


def module_of(text: str, *, replay: bool = False) -> types.ModuleType:
    """The app of a text in this process; with `replay` what lies behind the re-key alone."""
    module = types.ModuleType("drawn")
    before = os.environ.pop("REPLAY_BEHIND", None)
    try:
        if replay:
            os.environ["REPLAY_BEHIND"] = "1"
        exec(compile(text, "drawn.py", "exec"), module.__dict__)
    finally:
        os.environ.pop("REPLAY_BEHIND", None)
        if before is not None:
            os.environ["REPLAY_BEHIND"] = before
    return module


def of_driver(text: str, records: Iterable[tuple[str, str, int, int]], *, replay: bool = False) -> Answer:
    module = module_of(text, replay=replay)
    app = module.app
    with Driver(app) as driver:
        with driver.together():
            for topic, key, value, at_ms in records:
                driver.send(app.topics[topic], key, value, timestamp_ms=at_ms)
        tables = {
            name: {key if isinstance(key, str) else (key[0], key[1].start_ms): value for key, value in rows.items()}
            for name in ("group_counts", "group_settled")
            for rows in [driver.table(module.__dict__[name])]
        }
        return Answer(by_key(driver.items(module.out)), by_key(driver.items(module.behind)), tables)


# real processes


def produce(console: Console, records: Iterable[Beat]) -> None:
    lines: dict[str, list[str]] = defaultdict(list)
    for topic, key, value, at_ms in records:
        lines[topic].append(json.dumps({"key": key, "value": value, "timestamp_ms": at_ms}))
    for topic, of_topic in lines.items():
        done = console.here("produce", "drawn:app", topic, stdin="\n".join(of_topic))
        assert done.code == 0, done


def consumed(console: Console, topic: str) -> list[dict[str, Any]]:
    done = console.here("consume", "drawn", topic)
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def sent(console: Console, topic: str) -> ByKey:
    return by_key((row["key"], row["value"]) for row in consumed(console, topic))


def table(console: Console, name: str) -> dict[Any, int]:
    done = console.here("table", "dump", "drawn", name)
    assert done.code == 0, done
    rows = [json.loads(line) for line in done.out.splitlines()]
    return {(row["key"], row["start_ms"]) if "start_ms" in row else row["key"]: row["value"] for row in rows}


def is_done(console: Console) -> bool:
    tasks = console.here("status", "drawn", "--json").json["tasks"]
    return bool(tasks) and all(task["input_lag"] == 0 for task in tasks)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The instances of a fleet, which are its children."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def of_live(app: Drawn, expected: Answer, chance: random.Random, folder: Path) -> tuple[Answer, list[Beat]]:
    """Two instances, one of which is killed at some progress, and a third one; and the records behind the re-key in their order."""
    console = Console(folder / "live", app="drawn")
    try:
        console.write("drawn.py", app.text)
        produce(console, app.records)
        fleet = console.run("--instances", "2", *FAST, wait=False)
        all_of_it = sum(map(len, expected.out.values()))
        some = chance.randrange(1, max(2, all_of_it // 2))
        console.until("some progress", lambda: len(consumed(console, "out")) >= some)
        for pid in chance.sample(workers_of(fleet), 1):
            os.kill(pid, signal.SIGKILL)
        # Where the coordinator was killed, the next one first waits for who is still there.
        console.until("the scale-up", lambda: console.here("scale-up", "drawn", "--to", "3", "--wait").code == 0)
        console.until("the end", lambda: is_done(console) and len(consumed(console, "out")) >= all_of_it)
        order = [Beat(BEHIND, row["key"], row["value"], row["timestamp_ms"]) for row in consumed(console, BEHIND)]
        tables = {name: table(console, name) for name in expected.tables}
        return Answer(sent(console, "out"), sent(console, "behind"), tables), order
    finally:
        console.close()


def of_spark(app: Drawn, folder: Path, session: Any) -> Answer:
    from pipeline.spark.backfill import backfill

    console = Console(folder / "history", app="drawn")
    try:
        file = console.write("drawn.py", app.text)
        produce(console, app.records)
        log = f"sqlite:{console.folder}/.orchestrator/drawn.db"
        facts = asyncio.run(
            backfill(f"{file}:app", log, console.folder / "snapshots", session=session, say=lambda *words: None)
        )
        assert facts["records_in"] >= len(app.records)
        return Answer(sent(console, "out"), sent(console, "behind"), {})
    finally:
        console.close()


def same(what: str, one: Any, other: Any) -> None:
    if one == other:
        return
    wrong = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))[:3]
    shown = "; ".join(f"{key}: {_first(one.get(key), other.get(key))}" for key in wrong)
    raise Different(f"{what}: {shown}")


def _first(one: Any, other: Any) -> str:
    if not isinstance(one, list) or not isinstance(other, list):
        return f"{one} and {other}"
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"from {at} of {len(one)} and {len(other)}: {one[at : at + 3]} and {other[at : at + 3]}"


def one_answer(seed: int, folder: Path, session: Any = None) -> str:
    """Raises Different. With a Spark session over history, too."""
    app = drawn(seed)
    chance = random.Random(seed)
    expected = of_driver(app.text, app.records)
    live, order = of_live(app, expected, chance, folder)
    same("live, by the Driver: what is sent", live.out, expected.out)
    for name, rows in expected.tables.items():
        same(f"live, by the Driver: table {name}", live.tables[name], rows)
    replayed = of_driver(app.text, order, replay=True)
    same("live, by the Driver in the live order: what is sent behind the re-key", live.behind, replayed.behind)
    if session is not None:
        history = of_spark(app, folder, session)
        same("history, by the Driver: what is sent", history.out, expected.out)
        same("history, by the Driver: what is sent behind the re-key", history.behind, expected.behind)
    moved = sum(live.behind.get(key) != values for key, values in expected.behind.items())
    return f"{sum(map(len, expected.out.values()))} records sent; behind the re-key {len(order)} in, {moved} of {len(expected.behind)} in another order"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-spark", action="store_true")
    args = parser.parse_args()
    session = None
    if not args.no_spark:
        from pipeline.spark.session import spark_session
        from workers.commands.cluster import Cluster

        session = spark_session("one-answer", Cluster("local[2,4]"))
    fine = 0
    for seed in range(args.seed, args.seed + args.apps):
        folder = Path(tempfile.mkdtemp(prefix=f"one-answer-{seed}-"))
        try:
            print(f"app {seed}: {one_answer(seed, folder, session)}", flush=True)
        except AssertionError as error:
            print(f"app {seed}: DIFFERENT: {error}; kept in {folder}", flush=True)
        else:
            fine += 1
            shutil.rmtree(folder)
    print(f"{fine} of {args.apps} apps give one answer", flush=True)
    return 0 if fine == args.apps else 1


if __name__ == "__main__":
    sys.exit(main())
