"""`orchestrator run APP --instances N`: a fleet of instances on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser
from orchestrator.durations import parse_duration_ms
from orchestrator.errors import WrongUse
from orchestrator.model import Protocol, Settings
from pipeline.loading import load
from workers.fleet import Fleet, Host, ProcessHost
from workers.logs import default_log, open_log, show_log
from workers.prepare import prepare
from workers.spec import InstanceSpec


def whole_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise WrongUse(f"'{text}' is not a whole number of 1 or more")
    return int(text)


def add_group_settings(parser: Parser) -> None:
    """Settings of the group, with the defaults of the safety page."""
    parser.setting(
        "--protocol", default="learner", help="eager, cooperative or learner", choices=[p.value for p in Protocol]
    )
    parser.setting("--ready", default="eager", help="eager or conservative", choices=["eager", "conservative"])
    parser.setting("--standbys", default=0, parse=int, help="standby copies of each task")
    parser.setting(
        "--heartbeat", default=1_000, parse=parse_duration_ms, help="time between heartbeats, in ms or with a unit"
    )
    parser.setting(
        "--session-timeout", default=10_000, parse=parse_duration_ms, help="silence after which a member is dead"
    )
    parser.setting(
        "--disconnect-grace", default=1_000, parse=parse_duration_ms, help="wait before warm copies take over"
    )
    parser.setting(
        "--max-learners", default=2, parse=whole_number, help="learners that restore at one time, an instance"
    )
    parser.setting(
        "--acceptable-recovery-lag", default=10_000, parse=int, help="how far a copy may be behind to be ready"
    )


def group_settings(args: Any) -> Settings:
    return replace(
        Settings(),
        protocol=Protocol(args.protocol),
        ready=args.ready,
        standbys=args.standbys,
        heartbeat_ms=args.heartbeat,
        session_timeout_ms=args.session_timeout,
        disconnect_grace_ms=args.disconnect_grace,
        max_learners_per_instance=args.max_learners,
        acceptable_recovery_lag=args.acceptable_recovery_lag,
    )


def add_place(parser: Parser) -> None:
    """Where the log and the state are."""
    parser.setting(
        "--log", default=None, help="sqlite:PATH; by default .orchestrator/<application>.db, looked for upwards"
    )
    parser.setting("--state-dir", default=".orchestrator/state", help="where stores live")


def run(argv: list[str]) -> int:
    parser = Parser("run", "Run instances of an app until they are stopped.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--instances", type=int, default=1, help="how many to start here")
    parser.setting("--workers", default=1, parse=whole_number, help="worker processes an instance")
    parser.setting("--commit-interval", default=100, parse=parse_duration_ms, help="time between commits")
    parser.setting("--synchronous", default="NORMAL", help="NORMAL or FULL (power loss)", choices=["NORMAL", "FULL"])
    parser.setting("--snapshots", default="", help="folder of snapshots to restore from")
    parser.setting(
        "--on-stop", default="bounce", help="what SIGTERM means: bounce or leave", choices=["bounce", "leave"]
    )
    parser.setting("--on", default="processes", help="where instances live", choices=["processes", "spark"])
    parser.setting("--failpoint", default="", help="die in a commit, for tests")
    add_place(parser)
    add_group_settings(parser)
    args = parser.parse_args(argv)
    if args.instances < 1:
        raise WrongUse(f"--instances {args.instances}: write a whole number of 1 or more")
    logging.basicConfig(level=os.environ.get("ORCHESTRATOR_LOG_LEVEL", "WARNING").upper(), stream=sys.stderr)
    app = load(args.app)
    url = args.log or default_log(app.id, Path.cwd(), existing=False)
    spec = InstanceSpec(
        app=args.app,
        application=app.id,
        instance="",
        log=url,
        state_dir=str(Path(args.state_dir).absolute()),
        workers=args.workers,
        path=(str(Path.cwd()),),
        settings=group_settings(args),
        commit_ms=args.commit_interval,
        synchronous=args.synchronous,
        snapshots=args.snapshots,
        on_stop=args.on_stop,
        failpoint=args.failpoint,
    )
    if args.on == "spark":
        from importlib import import_module

        return int(import_module("pipeline.spark.hosting").run_fleet(spec, args.instances))
    return asyncio.run(run_fleet(ProcessHost(), spec, args.instances))


async def run_fleet(host: Host, spec: InstanceSpec, count: int) -> int:
    """Prepare the log, start the fleet, and stop it on a signal."""
    app = load(spec.app)
    log = await open_log(spec.log, create=True, synchronous=spec.synchronous)
    try:
        fleet = Fleet(host, log, spec, lambda text: print(text, file=sys.stderr, flush=True))
        fleet.claim()
        prepared = await prepare(log, app)
        loop = asyncio.get_running_loop()
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            fleet.stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        tasks = len(prepared.tasks())
        plural = "s" if count != 1 else ""
        print(f"{count} instance{plural}, {tasks} tasks, embedded log {show_log(spec.log)}, no broker", flush=True)
        code = await fleet.run(count)
        return 128 + received[0] if received and received[0] == signal.SIGINT else code
    finally:
        await log.close()
