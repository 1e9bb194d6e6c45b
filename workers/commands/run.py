"""`orchestrator run APP --instances N`: a fleet of instances on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.settings import TABLE
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.tls import check_tls, make_tls
from orchestrator.errors import WrongUse
from orchestrator.settings import GROUP, group_settings_of, whole_number
from orchestrator.weights import strange
from pipeline.loading import load
from state.log.protocol import GroupLog
from workers.connection.credentials import agree, instance_credentials, read_secret
from workers.connection.listening import place_of
from workers.fleet.fleet import Fleet, Host, ProcessHost
from workers.log.logs import BUSY_MS, default_log, log_path, open_log, show_log
from workers.log.patient_log import PatientLog, open_patiently
from workers.prepare import prepare
from workers.spec import InstanceSpec

OWN = (
    *("task-weights", "restore-rate-limit", "zone", "capacity"),
    *(
        "workers",
        "commit-interval",
        "log-timeout",
        "max-call",
        "synchronous",
        "snapshots",
        "on-stop",
        "on-halt",
        "after-leave",
        "on",
        "failpoint",
    ),
    "listen",
    "log-level",
)
INSTANCES_MAX = 1_000


def add_group_settings(parser: Parser) -> None:
    """Settings of the group, with the defaults of the safety page."""
    for setting in GROUP:
        parser.setting(f"--{setting.name}")


def add_place(parser: Parser) -> None:
    """Where the log and the state are."""
    parser.setting("--log")
    parser.setting("--state-dir")


def add_access(parser: Parser) -> None:
    """What a process of the group, or a client of it, proves itself with."""
    for name in ("secret-file", "tls-cert", "tls-key", "tls-ca"):
        parser.setting(f"--{name}")


def run(argv: list[str]) -> int:
    """Runs `orchestrator run`; its exit code. Raises WrongUse."""
    parser = Parser("run", "Run instances of an app until they are stopped.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--instances", type=checked(whole_number), default=1, help="how many to start here")
    for name in OWN:
        parser.setting(f"--{name}")
    add_place(parser)
    add_access(parser)
    add_group_settings(parser)
    args = parser.parse_args(argv)
    if args.instances > INSTANCES_MAX:
        raise WrongUse(
            f"--instances {args.instances}: one machine does not carry that many; write at most {INSTANCES_MAX}"
        )
    check_access(args)
    settings = group_settings_of(args)
    os.environ["ORCHESTRATOR_LOG_LEVEL"] = args.log_level  # instances and workers inherit it
    logging.basicConfig(level=args.log_level, stream=sys.stderr)
    app = load(args.app)
    url = args.log or default_log(app.id, Path.cwd(), existing=False)
    spec = InstanceSpec(
        app=args.app,
        application=app.id,
        instance="",
        log=url,
        state_dir=state_dir(args, url),
        workers=args.workers,
        folder=str(Path.cwd()),
        settings=settings,
        zone=args.zone,
        capacity=args.capacity,
        task_weights=args.task_weights or (),
        restore_rate_limit=args.restore_rate_limit,
        commit_ms=args.commit_interval,
        log_timeout_ms=args.log_timeout,
        max_call_ms=args.max_call,
        synchronous=args.synchronous,
        snapshots=args.snapshots,
        on_stop=args.on_stop,
        on_halt=args.on_halt,
        after_leave=args.after_leave,
        failpoint=args.failpoint,
        secret_file=absolute(args.secret_file),
        listen=args.listen,
        tls_cert=absolute(args.tls_cert),
        tls_key=absolute(args.tls_key),
        tls_ca=absolute(args.tls_ca),
    )
    if args.on == "spark":
        from importlib import import_module

        return int(import_module("pipeline.spark.hosting").run_fleet(spec, args.instances))
    return asyncio.run(run_fleet(ProcessHost(), spec, args.instances))


def check_access(args: Any) -> None:
    """Before anything is made: whether the instances may listen where they shall, with the secret that was named. Raises
    WrongUse, RefusedBySafety."""
    host, _ = place_of(args.listen)
    check_tls(host, make_tls(args.tls_cert, args.tls_key, args.tls_ca))
    if args.secret_file:
        read_secret(Path(args.secret_file)).key_of(Right.JOIN)


def absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def state_dir(args: Any, url: str) -> str:
    """Absolute. With nothing said, the state lies beside a log that was found above the current folder."""
    path = log_path(url)
    if not args.log and path is not None and args.state_dir == TABLE["state-dir"].default:
        return str(path.absolute().parent / Path(args.state_dir).name)
    return str(Path(args.state_dir).absolute())


async def run_fleet(host: Host, spec: InstanceSpec, count: int) -> int:
    """Prepare the log, start the fleet, and stop it on a signal. Raises WrongUse."""
    app = load(spec.app)
    limit_s = spec.log_timeout_ms / 1_000
    busy_ms = min(BUSY_MS, spec.log_timeout_ms)  # what a fleet writes can be written later

    async def opened() -> GroupLog:
        return await open_log(spec.log, create=True, synchronous=spec.synchronous, busy_timeout_ms=busy_ms)

    if log_path(spec.log) is None:  # a broker that does not answer may be a wrong address: that is said at once
        patient = PatientLog(await opened(), limit_s, time.monotonic)
    else:
        patient = await open_patiently(opened, limit_s, time.monotonic)
    log = patient.inner
    try:
        credentials = instance_credentials(spec)
        fleet = Fleet(host, log, spec, lambda text: print(text, file=sys.stderr, flush=True))
        fleet.claim()
        await agree(patient, app.id, credentials.secret)
        await patient.patiently(fleet.announce)
        prepared = await prepare(patient, app)
        unknown = strange(prepared.tasks(), spec.task_weights)
        if unknown:
            there = ", ".join(str(task.id) for task in prepared.tasks()[:20])
            raise WrongUse(f"--task-weights: {unknown[0]} is no task or subtopology of '{app.id}'; there are {there}")
        loop = asyncio.get_running_loop()
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            fleet.stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        tasks = len(prepared.tasks())
        plural = "s" if count != 1 else ""
        print(f"{count} instance{plural}, {tasks} tasks, {show_log(spec.log)}", flush=True)
        code = await fleet.run(count)
        return 128 + received[0] if received and received[0] == signal.SIGINT else code
    finally:
        await log.close()
