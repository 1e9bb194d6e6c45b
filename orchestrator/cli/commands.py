"""The table of commands: what each is called, and the module that owns it.

One rule: a place is text, and imported when it is called. So this package, which lies below all others, imports nothing
above it, and a command pays for no library that it does not need. Read by main.py, by the commands that have verbs, and
by `run`, which finds here who else can host instances.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("examples.demo.command:run", "the whole tour on real data, in three minutes"),
    "run": ("workers.commands.run:run", "run an app's instances"),
    "produce": ("workers.commands.produce:run", "write records from standard input to a topic"),
    "consume": ("workers.commands.consume:run", "print a topic's records"),
    "status": ("workers.commands.status:run", "who runs what"),
    "scale-up": ("workers.commands.scale_up:run", "add instances"),
    "scale-down": ("workers.commands.scale_down:run", "let a share of the instances hand over and leave"),
    "topics": ("workers.commands.topics:run", "topics of an app: list, create, grow, how long they are kept, rights"),
    "reset": ("workers.commands.reset:run", "let an app begin anew: positions, tables and state go"),
    "log": ("workers.commands.log:run", "copy an embedded log while it is used; move an app to another log"),
    "snapshot": (
        "workers.commands.snapshot:run",
        "take a snapshot of an app that runs; list, verify or prune snapshots",
    ),
    "broker": ("workers.commands.broker:run", "start and stop a Kafka broker for development"),
    "query": ("workers.commands.query:run", "read a key of a table"),
    "board": ("workers.commands.board:run", "print a Grafana board of the metrics"),
    "table": ("workers.commands.table:run", "scan a table, or dump it into a file"),
    "explain": ("workers.commands.explain:run", "why a task is where it is, and what it waits for"),
    "history": ("workers.commands.history:run", "what moved, when, why, and for how long"),
    "wait": ("workers.commands.wait:run", "wait until the group is stable"),
    "resume": ("workers.commands.resume:run", "let a halted task go on, with its record or behind it"),
    "drain": ("workers.commands.drain:run", "let one instance hand over and leave"),
    "secret": ("workers.commands.secret:run", "where the application's secret is; files that allow less"),
    "backfill": ("pipeline.spark.commands:backfill", "compute state from history on Spark"),
    "verify": ("pipeline.spark.commands:verify", "compare live state with Spark's batch answer"),
    "audit": (
        "pipeline.spark.audit_command:run",
        "compare changelogs, stores and outputs with Spark's answer, key by key",
    ),
    "repartition": ("pipeline.spark.repartition:run", "give an app's tables and inputs more partitions; state is kept"),
    "spark": ("pipeline.spark.packing:run", "pack what the executors of a cluster need"),
    "simulate": ("orchestrator.cli.simulate:run", "play a scenario file: an operator's what-if"),
    "bench": ("orchestrator.cli.bench:run", "measure how protocols rebalance, in virtual time"),
    "settings": ("workers.commands.settings:run", "show or change the settings of a group that runs"),
    "config": ("orchestrator.cli.config:run", "show every setting and where it comes from"),
    "completion": ("orchestrator.cli.completion:run", "print a script that completes commands in a shell"),
    "assign": ("orchestrator.cli.assign:run", "compute a partition assignment from a description"),
}

# What a command of workers does on Spark: called with its arguments; returns the exit code.
JOBS = {"snapshot": "pipeline.spark.snapshotting:run"}

# What `config show APP` adds: the settings that were set for the group, from the options of the command.
LIVE_SETTINGS = "workers.commands.settings:kept_of"
# Who hosts the instances of `run --on WHERE`: called with their spec, how many, the Cluster, and what was
# given of the settings that can be set for a group that runs; returns the exit code.
HOSTS = {"spark": "pipeline.spark.hosting:run_fleet"}


def place_called(place: str) -> Callable[..., Any]:
    """Returns the function of "package.module:function". Raises what its import raises."""
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
