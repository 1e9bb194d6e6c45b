"""The console lines that the documents show, on real processes, as they are printed there."""

from __future__ import annotations

import re

import pytest

from tests.cli.console import Console

pytestmark = pytest.mark.processes
PAYMENT = '{"key": "ann", "value": {"account": "ann", "amount": -5}}'
LEFT = re.compile(r"4 -> 2 instances; 4 tasks moved; longest pause (\d+) ms; the other tasks never paused\n")


def test_the_console_lines_as_printed(console: Console) -> None:
    fleet = console.start("run", "bank:app", "--instances", "4", name="run")
    console.until("the first line", lambda: console.said("run"))
    assert console.said("run") == "4 instances, 8 tasks, embedded log .orchestrator/bank.db, no broker\n"
    assert console("produce", "bank:app", "payments", stdin=PAYMENT + "\n").code == 0
    asked = console("query", "bank", "balances", "ann")
    assert (asked.code, asked.out, asked.err) == (0, "-5\n", "")
    assert console.here("wait", "bank", "--instances", "4").code == 0
    left = console("scale-down", "bank", "--to", "50%", "--wait")
    assert left.code == 0, left
    assert LEFT.fullmatch(left.out), left.out
    assert len(console("status", "bank", "--json").json["instances"]) == 2
    # The instances that left have ended: one fleet, and two instances with a worker each.
    assert len(console.processes()) == 5
    assert console.said("run").count("\n") == 1, "nobody was started again, and nothing was said"
    fleet.terminate()
    assert console.end(fleet) == 0
    console.nothing_left()


def test_what_was_written_before_a_question_is_in_its_answer(console: Console) -> None:
    console.run()
    for total in range(1, 3):
        console.pay(("ann", 1))
        assert console.balance("ann") == f"{total}\n"
