"""`orchestrator status APP`: who runs what."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.cli.settings import ACCESS, PLACE
from orchestrator.coordinator.requests import StatusRequest
from state.log.protocol import AT_LEAST_ONCE, EXACTLY_ONCE
from workers.commands.show import show_json, table
from workers.fleet.client import client_of, description
from workers.tasks import halts


def run(argv: list[str]) -> int:
    parser = Parser("status", "Show instances and tasks.")
    parser.add_argument("app", metavar="APP")
    parser.add_argument("--json", action="store_true")
    parser.settings(*PLACE, *ACCESS)
    args = parser.parse_args(argv)
    facts = asyncio.run(status(args))
    if args.json:
        show_json(facts)
    else:
        print(text(facts))
    return 0


async def status(args: Any) -> dict[str, Any]:
    """What `status --json` prints, but for the schema."""
    async with client_of(args) as (application, log, client):
        described = await description(log, application)
        answer = await client.ask(StatusRequest())
        lease = await log.lease(application)
        halted = await halts.read_all(log, application)
    topics = {sub["number"]: sub["sources"] for sub in described["subtopologies"]}
    for task in answer["tasks"]:
        task["topics"] = topics.get(int(task["id"].partition("_")[0]), [])
        halt = halted.get(task["id"])
        task["halted"] = None
        if halt is not None:
            task["halted"] = {"record": halt.record, "error": halt.error, "at_ms": halt.at_ms, "skip": halt.skip}
    return {
        "application": application,
        "log": client.log_url,
        "generation": answer["generation"],
        "protocol": answer["protocol"],
        "guarantee": weakest(answer["instances"], described),
        "coordinator": {"instance": lease.holder, "address": lease.address, "term": lease.term} if lease else None,
        "stable": answer["stable"],
        "scale": answer["scale"],
        "instances": answer["instances"],
        "tasks": answer["tasks"],
        "hand_overs": answer["hand_overs"],
        "last_outcome": answer["last_outcome"],
    }


def weakest(instances: list[dict[str, Any]], described: dict[str, Any]) -> str:
    """What the application promises: no more than the weakest version of it that runs; that of the version that came last
    where none does, or where the coordinator is of a version that does not say."""
    found = {guarantee for one in instances for guarantee in one.get("guarantees", ())}
    if not found:
        return str(described["guarantee"])
    return AT_LEAST_ONCE if AT_LEAST_ONCE in found else EXACTLY_ONCE


def text(facts: dict[str, Any]) -> str:
    where = facts["coordinator"]
    head = (
        f"{facts['application']}  generation {facts['generation']}  {facts['protocol']}  {facts['guarantee']}  "
        f"{'stable' if facts['stable'] else 'moving'}  coordinator on {where['instance'] if where else '-'}"
    )
    instances = [(i["id"], i["state"], i["load"], i["host"], i["pid"]) for i in facts["instances"]]
    tasks = [
        (
            t["id"],
            t["active"],
            t["epoch"],
            t["input_lag"],
            [f"{c['instance']} ({c['restore_lag']} behind)" for c in t["learners"]],
            [f"{c['instance']} ({c['restore_lag']} behind)" for c in t["standbys"]],
        )
        for t in facts["tasks"]
    ]
    return "\n".join(
        [
            head,
            "",
            table(instances, ("instance", "state", "load", "host", "pid")),
            *(f"{i['id']}: {_commits(i, facts)}" for i in facts["instances"] if _commits(i, facts)),
            *(f"{i['id']}: {notice}" for i in facts["instances"] for notice in i["notices"]),
            "",
            table(tasks, ("task", "active", "epoch", "records waiting", "learners (records)", "standbys (records)")),
        ]
    )


def _commits(instance: dict[str, Any], facts: dict[str, Any]) -> str:
    """Where versions of the app disagree: how this instance commits."""
    found = instance.get("guarantees", [])
    return "" if found in ([], [facts["guarantee"]]) else f"commits {' and '.join(found)}"
