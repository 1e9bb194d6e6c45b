"""State that is restored from a folder of snapshots: one that may not be used costs time and one line, never an answer."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.clocks import wall_ms
from state import history
from state.log.batches import decode
from state.log.protocol import Partition
from state.log.sqlite import SqliteLog, open_sqlite
from tests.cli.console import Console
from tests.often import often
from tests.process_simulation.snapshots import Facts, write

pytestmark = pytest.mark.processes
FAST = ("--session-timeout", "3s", "--heartbeat", "300ms", "--disconnect-grace", "300ms", "--snapshots", "snapshots")
LOG, CHANGELOG, PARTITIONS = ".orchestrator/bank.db", "bank-balances-changelog", 8
NAMES = "abcdef"
WRONG = (777).to_bytes(8, "big")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bank that has processed three payments of each account, and was stopped."""
    made = Console(tmp_path_factory.mktemp("stopped")).bank()
    made.run(*FAST)
    pay(made, 3)
    assert balances(made) == dict.fromkeys(NAMES, 3)
    stop(made)
    made.close()
    return made.folder


@pytest.fixture
def console(tmp_path: Path, stopped: Path) -> Iterator[Console]:
    made = Console(Path(shutil.copytree(stopped, tmp_path / "place")))
    yield made
    made.close()


def stop(console: Console) -> None:
    fleet = console._background[-1]
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


def pay(console: Console, amount: int) -> None:
    console.pay(*((name, amount) for name in NAMES))


def balances(console: Console) -> dict[str, int]:
    return {name: int(console.balance(name) or 0) for name in NAMES}


def sources(console: Console) -> set[str]:
    """From what tasks with state were opened since the journals were removed."""
    found: set[str] = set()
    for path in (console.folder / ".orchestrator").rglob("journal.jsonl"):
        rows = map(json.loads, path.read_text().splitlines())
        found |= {row["source"] for row in rows if row["what"] == "started" and row["position"]}
    return found


async def _facts(log: SqliteLog, name: str) -> Facts:
    topic = (await log.topics([CHANGELOG]))[CHANGELOG]
    parts = [Partition(CHANGELOG, number) for number in range(PARTITIONS)]
    past, ends, reader = await history.read(log, "bank"), await log.ends(parts), log.reader()
    values: dict[int, dict[bytes, bytes]] = {number: {} for number in range(PARTITIONS)}
    for partition in parts:
        reader.add(partition, 0)
    while fetched := await reader.poll():
        for part in fetched:
            records = decode(part.data, part.position) if part.data else []
            values[part.partition.number] |= {
                r.key: r.value for r in records if r.key is not None and r.value is not None
            }
    await reader.close()
    offsets = {partition.number: end for partition, end in ends.items()}
    pairs = {number: sorted(found.items()) for number, found in values.items()}
    return Facts(name, "bank", log.log_id, topic, wall_ms(), past.id, offsets, pairs)


def snapshot(console: Console, change: Callable[[Facts], Facts] = lambda facts: facts) -> None:
    """Written of the tables as the log has them, newer than whatever else; the one that is changed has wrong values."""

    async def made() -> Facts:
        log = await open_sqlite(console.folder / LOG, create=False)
        try:
            return await _facts(log, "s")
        finally:
            await log.close()

    facts = asyncio.run(made())
    changed = change(facts)
    if changed != facts:
        wrong = {number: [(key, WRONG) for key, _ in pairs] for number, pairs in facts.pairs.items()}
        changed = replace(changed, pairs=wrong)
    write(console.folder / "snapshots", changed)


def start_without_state(console: Console) -> None:
    shutil.rmtree(console.folder / ".orchestrator/state")
    console.run(*FAST)


@dataclass(frozen=True)
class Case:
    """What is wrong with a snapshot; `said`: what the run says of it ("" where it is no snapshot at all)."""

    said: str
    change: Callable[[Facts], Facts] = lambda facts: facts
    damage: Callable[[Path], object] = lambda folder: None


def altered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_each(name: str, act: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        found = list(folder.glob(name))
        assert found
        for path in found:
            act(path)

    return damage


FILES, SCOPES = "0_*/balances/*.sst", "0_*/manifest.json"
CASES = {
    "a byte": Case("does not match its checksum", damage=of_each(FILES, altered)),
    "a half": Case(
        "does not match its checksum", damage=of_each(FILES, lambda path: path.write_bytes(path.read_bytes()[:99]))
    ),
    "a file": Case("cannot be read (No such file or directory)", damage=of_each(FILES, Path.unlink)),
    "a scope": Case("was changed since the snapshot was published", damage=of_each(SCOPES, altered)),
    "unfinished": Case("", damage=lambda folder: (folder / "manifest.json").unlink()),
    "another log": Case("", lambda facts: replace(facts, log_id="another")),
    "another app": Case("", lambda facts: replace(facts, application="another")),
    "another topic": Case(
        "was deleted and made again", lambda facts: replace(facts, topic=replace(facts.topic, topic_id="another"))
    ),
    "another history": Case("another history of this log", lambda facts: replace(facts, history="another")),
    "too far": Case("past the end", lambda facts: replace(facts, offsets=dict.fromkeys(facts.offsets, 999))),
    "a base": Case("", lambda facts: replace(facts, base=True)),
}
SHORT = ("a byte", "unfinished", "another history")


def test_state_is_restored_from_a_snapshot_and_what_follows_it(console: Console) -> None:
    snapshot(console)
    console.run(*FAST)
    pay(console, 2)
    stop(console)
    start_without_state(console)
    assert balances(console) == dict.fromkeys(NAMES, 5) and "snapshot" in sources(console)
    assert "is not used" not in console.said("run")


@pytest.mark.parametrize("name", often(CASES, *SHORT))
def test_what_may_not_be_used_is_named_and_costs_a_replay(console: Console, name: str) -> None:
    case = CASES[name]
    snapshot(console, case.change)
    case.damage(console.folder / "snapshots/s")
    start_without_state(console)
    assert balances(console) == dict.fromkeys(NAMES, 3)
    pay(console, 1)
    assert balances(console) == dict.fromkeys(NAMES, 4) and "snapshot" not in sources(console)
    said = console.said("run")
    assert ("snapshot s is not used" in said and case.said in said) if case.said else "is not used" not in said


@pytest.mark.long
def test_a_snapshot_of_what_a_restored_log_has_lost_is_not_used(console: Console) -> None:
    """The log is put back to an older copy and goes on beyond the snapshot: its offsets fit, its history does not."""
    assert console.here("log", "backup", "bank", "copy.db").code == 0
    console.run(*FAST)
    pay(console, 2)
    stop(console)
    snapshot(console)
    for suffix in ("", "-wal", "-shm"):
        (console.folder / f"{LOG}{suffix}").unlink(missing_ok=True)
    shutil.copy(console.folder / "copy.db", console.folder / LOG)
    start_without_state(console)
    pay(console, 4)
    for _ in range(2):
        pay(console, 0)
    assert balances(console) == dict.fromkeys(NAMES, 7)
    stop(console)
    start_without_state(console)
    assert balances(console) == dict.fromkeys(NAMES, 7) and "snapshot" not in sources(console)
    assert "the log was restored from an older copy" in console.said("run")
