"""The smallest plan that still breaks in the same way: fewest faults, the smallest group, fewest deviations from
first-in-first-out order.

One rule: a candidate is kept only if its life breaks with the same kind of error as the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tests.process_simulation.life import Life
from tests.process_simulation.plan import Plan
from tests.simulation.shrink import fewer

LIVES = 300


def broken(plan: Plan) -> tuple[str | None, Life]:
    """What is wrong with the life of a plan (None: nothing), and the life."""
    life = Life(plan)
    try:
        life.live()
    except Exception as error:  # noqa: BLE001 - whatever breaks is what is looked for
        return str(error) or repr(error), life
    return None, life


def kind(error: str | None) -> str | None:
    """In which way a life broke: the judge, and for an end the cause that was told, without names and numbers."""
    if error is None:
        return None
    judge, _, text = error.partition(": ")
    if judge not in ("fleet", "stop"):
        return judge
    cause = re.search(r"\((?=[A-Za-z])(.*)", text)  # a number in brackets is an exit code
    return f"{judge}: {re.sub(r'[0-9]+|/[^ ]*', '', cause[1] if cause else text)}"


def shrunk(plan: Plan, lives: int = LIVES) -> Plan:
    """The smallest plan found in so many lives. Raises ValueError where the plan holds."""
    error, life = broken(plan)
    if error is None:
        raise ValueError(f"seed {plan.seed} does not break, so there is nothing to shrink")
    wanted, budget = kind(error), [lives]
    plan = replace(plan, only=tuple(life.loop.order.deviations.items()))

    def still(candidate: Plan) -> bool:
        budget[0] -= 1
        return budget[0] >= 0 and kind(broken(candidate)[0]) == wanted

    for simpler in _simpler(plan):
        candidate = simpler(plan)
        if candidate != plan and still(candidate):
            plan = candidate
    plan = replace(plan, faults=fewer(plan.faults, lambda kept, p=plan: still(replace(p, faults=kept))))  # type: ignore[misc]
    if plan.only:
        plan = replace(plan, only=fewer(plan.only, lambda kept, p=plan: still(replace(p, only=kept))))  # type: ignore[misc]
    for simpler in _simpler(plan):
        candidate = simpler(plan)
        if candidate != plan and still(candidate):
            plan = candidate
    return plan


def _simpler(plan: Plan) -> list[Callable[[Plan], Plan]]:
    return [
        lambda p: replace(p, only=()),
        lambda p: replace(p, log_delay=0.0),
        lambda p: replace(p, net_delay=0.0),
        lambda p: replace(p, workers=1),
        lambda p: replace(p, instances=1),
        lambda p: replace(p, instances=min(2, p.instances)),
        lambda p: replace(p, records=20),
        lambda p: replace(p, cost_ms=0),
        lambda p: replace(p, settings=replace(p.settings, standbys=0)),
    ]
