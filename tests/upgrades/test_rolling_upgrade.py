"""Two versions of an application side by side, as real processes: one subtopology in both, one only in the old one, one
only in the new one. One rule: a condition is waited for with a deadline; nothing sleeps for a time."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import Settings
from state.log.sqlite import open_sqlite
from tests.cli.console import Console
from workers.journal import read_journals
from workers.spec import InstanceSpec, encode_spec

pytestmark = pytest.mark.processes
VERSION = """
from orchestrator import App, Record, Table

app = App("shop", partitions=2)
orders = app.topic("orders", key=str, value=int)
totals = app.table("totals", key=str, value=int, default=int)
{name} = app.topic("{name}", key=str, value=int)
{name}_seen = app.table("{name}-seen", key=str, value=int, default=int)


@app.processor(orders, totals)
def order(order: Record[str, int], totals: Table[str, int]) -> None:
    totals[order.key] += order.value


@app.processor({name}, {name}_seen)
def one(one: Record[str, int], {name}_seen: Table[str, int]) -> None:
    {name}_seen[one.key] += one.value
"""
SETTINGS = Settings(heartbeat_ms=200, session_timeout_ms=10_000, acceptable_recovery_lag=0)
BOTH, OLD, NEW = {"0_0", "0_1"}, {"1_0", "1_1"}, {"2_0", "2_1"}
KEYS = [f"k{n}" for n in range(5)]


class Shop:
    """Instances of the shop, each started with the version that lies in its folder."""

    def __init__(self, console: Console, url: str = "") -> None:
        """On an embedded log in the folder where no other is named."""
        self.console = console
        self.log = console.folder / "shop.db"
        self.url = url or f"sqlite:{self.log}"
        self.place = ("--log", self.url, "--state-dir", "state")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        if not url:
            asyncio.run(self._make_log())
        for folder, name in (("old", "visits"), ("new", "refunds")):
            (console.folder / folder).mkdir()
            console.write(f"{folder}/shop.py", VERSION.format(name=name))

    async def _make_log(self) -> None:
        await (await open_sqlite(self.log, create=True)).close()

    def start(self, name: str, version: str, on_stop: str = "bounce") -> None:
        spec = InstanceSpec(
            app="shop:app",
            application="shop",
            instance=name,
            log=self.url,
            state_dir=str(self.console.folder / "state"),
            folder=str(self.console.folder / version),
            settings=SETTINGS,
            commit_ms=50,
            on_stop=on_stop,
        )
        with (self.console.folder / "run.err").open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.instance.instance"],
                cwd=self.console.folder,
                env=self.console._environment(),
                stdin=subprocess.PIPE,
                stderr=err,
            )
        (self.console.folder / "run.out").touch()
        assert process.stdin is not None
        process.stdin.write(encode_spec(spec).encode() + b"\n")
        process.stdin.flush()
        self.running[name] = process

    def stop(self, name: str) -> None:
        """SIGTERM, and its end."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

    def produce(self, version: str, topic: str, value: int = 1) -> None:
        lines = "\n".join(json.dumps({"key": key, "value": value}) for key in KEYS)
        folder = self.console.folder / version
        done = self.console("produce", "shop:app", topic, "--log", self.url, stdin=lines, cwd=folder)
        assert done.code == 0, done

    def status(self) -> Any:
        done = self.console.here("status", "shop", "--json", *self.place)
        return done.json if done.code == 0 else {"tasks": [], "stable": False, "instances": []}

    def settled(self, tasks: set[str], instances: set[str]) -> None:
        """Wait until these tasks are there and run, on these instances and no other."""

        def there() -> bool:
            found = self.status()
            active = {t["id"] for t in found["tasks"] if t["active"] in instances}
            return bool(
                found["stable"]
                and {t["id"] for t in found["tasks"]} == tasks == active
                and {i["id"] for i in found["instances"]} == instances
            )

        self.console.until(f"{sorted(tasks)} on {sorted(instances)}", there)

    def versions(self) -> dict[str, list[str]]:
        """What names the code of each instance."""
        return {i["id"]: i["app_versions"] for i in self.status()["instances"]}

    def value(self, table: str, key: str) -> str:
        return self.console.here("query", "shop", table, key, *self.place).out.strip()

    def holds(self, table: str, value: str) -> None:
        """Wait until the table has this value for every key."""
        self.console.until(
            f"{value} for every key of {table}", lambda: {self.value(table, key) for key in KEYS} == {value}
        )


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    console = Console(tmp_path / "place", "shop")
    url = ""
    if request.param == "kafka":
        from tests.kafka.place import Place

        place = Place()
        url = f"kafka://127.0.0.1:{place.port}?prefix={place.prefix}"
    found = Shop(console, url)
    yield found
    for process in found.running.values():
        process.send_signal(signal.SIGTERM)
    for process in found.running.values():
        process.wait(30)
    console.close()


def test_a_new_version_is_rolled_in(shop: Shop) -> None:
    """First by a bounce, then a new instance for each old one that leaves. What both versions have is handed over with
    its state and nothing is lost; what only the old one has runs until the last old instance goes, and holds nobody up."""
    for name in ("i1", "i2"):
        shop.start(name, "old", on_stop="bounce" if name == "i1" else "leave")
    shop.settled(BOTH | OLD, {"i1", "i2"})
    shop.produce("old", "orders")
    shop.produce("old", "visits")

    shop.stop("i1")
    shop.produce("old", "orders")
    shop.start("i1", "new")
    shop.settled(BOTH | OLD | NEW, {"i1", "i2"})
    versions = shop.versions()
    assert versions["i1"] != versions["i2"] and all(len(one) == 1 for one in versions.values()), versions
    placed = {t["id"]: t["active"] for t in shop.status()["tasks"]}
    assert {placed[t] for t in OLD} == {"i2"} and {placed[t] for t in NEW} == {"i1"}, placed
    for topic in ("orders", "refunds"):
        shop.produce("new", topic)
    shop.produce("old", "visits")
    shop.holds("visits-seen", "2")  # the visits of the mixed group

    shop.start("i3", "new")
    shop.settled(BOTH | OLD | NEW, {"i1", "i2", "i3"})
    before = {t["id"]: t["epoch"] for t in shop.status()["tasks"]}
    shop.produce("new", "orders")
    shop.stop("i2")  # hands everything over first, but for what nobody else can run
    shop.settled(BOTH | NEW, {"i1", "i3"})
    shop.produce("new", "orders")
    shop.holds("totals", "5")
    shop.holds("refunds-seen", "1")
    proven = {
        (row["task"], row["epoch"])
        for row in read_journals(shop.console.folder / "state" / "shop")
        if row["what"] == "released"
    }
    for row in shop.status()["tasks"]:
        lost = [e for e in range(before[row["id"]], row["epoch"]) if (row["id"], e) not in proven]
        assert not lost, f"{row['id']} changed hands without a release at epochs {lost}"


def test_versions_with_the_same_tasks_are_told_apart(shop: Shop) -> None:
    """By their own word or by their source, while one instance has the new code, and in the lines of `status` too."""
    for name in ("i1", "i2"):
        shop.start(name, "old")
    shop.settled(BOTH | OLD, {"i1", "i2"})
    first = shop.versions()
    assert first["i1"] == first["i2"] and len(first["i1"]) == 1, first
    code = VERSION.format(name="visits")
    shop.console.write("old/shop.py", f'__version__ = "1.4.2"\n{code}')
    shop.stop("i2")
    shop.start("i2", "old")
    shop.console.until("the new version", lambda: shop.versions() == {"i1": first["i1"], "i2": ["1.4.2"]})
    shown = shop.console.here("status", "shop", *shop.place).out.splitlines()
    assert [line.split()[-1] for line in shown if line.startswith(("i1 ", "i2 "))] == [first["i1"][0], "1.4.2"], shown


@pytest.mark.long
def test_both_versions_can_be_asked_whichever_came_last(shop: Shop) -> None:
    """What tools know of the app is what its versions have between them; what is gone with its last instance is named."""
    shop.start("i1", "new")
    shop.settled(BOTH | {"1_0", "1_1"}, {"i1"})
    shop.start("i2", "old")
    shop.settled(BOTH | {"1_0", "1_1"} | {"2_0", "2_1"}, {"i1", "i2"})
    shop.produce("new", "refunds", 3)
    shop.produce("old", "visits", 4)
    shop.holds("refunds-seen", "3")
    shop.holds("visits-seen", "4")
    assert all(task["topics"] for task in shop.status()["tasks"])
    shop.stop("i1")
    shop.settled(BOTH | {"2_0", "2_1"}, {"i2"})
    done = shop.console.here("query", "shop", "refunds-seen", "k0", *shop.place)
    assert done.code == 2 and "no version of the app that runs has table 'refunds-seen'" in done.err, done


def test_the_new_version_is_taken_back(shop: Shop) -> None:
    """Back to the old version: its own subtopology goes on at the number, the position and the state it had."""
    shop.start("i1", "old")
    shop.settled(BOTH | OLD, {"i1"})
    shop.produce("old", "visits")
    for version, tasks in (("new", BOTH | NEW), ("old", BOTH | OLD)):
        shop.stop("i1")
        shop.start("i1", version)
        shop.settled(tasks, {"i1"})
    shop.produce("old", "visits")
    shop.holds("visits-seen", "2")
