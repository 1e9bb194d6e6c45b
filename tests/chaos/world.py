"""What a life consists of: brokers, machines, a producer, the operator's commands; and what is known of it at the end.

One rule: the harness and its commands speak to the brokers past the proxies, so what they see is never an event's doing,
but for the brokers' own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.chaos.cluster import Brokers
from tests.chaos.machine import Machine
from tests.chaos.plan import MACHINES, Plan
from tests.chaos.watch import Stall
from tests.kills.harness import ACCOUNTS, ROOT, SHAPES
from workers.connection.credentials import make_secret

APP = "receipts"
APPS = {"bank": SHAPES["sync"], "async": SHAPES["async"], "by-shop": "tests.chaos.by_shop:app"}
RECORDS, RATE = 120_000, 250


@dataclass
class Outcome:
    """What a life ended with; `refused` are events whose command the group refused, and what was done instead."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    away_s: float = 0.0  # the longest time that the only broker needed to come back
    records: int = 0
    stall: Stall = field(default_factory=Stall)
    rest_s: float = 0.0
    starts_again: int = 0


class World:
    """See the module text."""

    def __init__(self, plan: Plan, folder: Path, version: str) -> None:
        self.plan, self.folder = plan, folder
        names = [f"i{number}" for number in range(1, MACHINES + 1)]
        self.brokers = Brokers(folder, plan.brokers, names, version, random.Random(plan.seed))
        self.secret = folder / "group.secret"
        make_secret(self.secret)
        self.app = APPS[plan.shape]
        words = ("--standbys", str(plan.standbys)) if plan.standbys else ()
        self.machines = [
            Machine(folder, name, self.app, self.brokers.url_of(name), self.secret, words) for name in names
        ]
        self.outcome = Outcome(plan)
        self.is_broker_away = False  # the only one
        self.producer: subprocess.Popen[bytes] | None = None

    def command(self, *words: str, out: str) -> subprocess.Popen[bytes]:
        """A command of an operator; what it says is in `<out>.log`."""
        place = ["--log", self.brokers.url, "--state-dir", str(self.folder / "operator")]
        with (self.folder / f"{out}.log").open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words, *place],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def asked(self, *words: str, out: str) -> subprocess.Popen[bytes]:
        """The same of one that asks the group."""
        return self.command(*words, "--secret-file", str(self.secret), out=out)

    def note(self, text: str) -> None:
        """A line of the life's own journal, `events.log`."""
        with (self.folder / "events.log").open("a") as out:
            out.write(f"{datetime.now():%H:%M:%S.%f} {text}\n")

    def said(self, out: str) -> str:
        return (self.folder / f"{out}.log").read_text().strip()

    def write_input(self) -> None:
        with (self.folder / "payments.jsonl").open("w") as out:
            for number in range(RECORDS):
                value = {"id": number, "amount": number % 7 - 3}
                out.write(json.dumps({"key": f"a{number % ACCOUNTS}", "value": value}) + "\n")

    def produce(self) -> None:
        words = ("produce", self.app, "payments", "--file", str(self.folder / "payments.jsonl"), "--rate", str(RATE))
        self.producer = self.command(*words, out="produce")

    async def close(self) -> None:
        for machine in self.machines:
            machine.kill()
        if self.producer is not None and self.producer.poll() is None:
            self.producer.kill()
            self.producer.wait()
        await self.brokers.close()
