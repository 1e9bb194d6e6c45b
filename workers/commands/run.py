"""`orchestrator run APP --instances N`: a fleet of instances on this machine."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.cli.arguments import Parser, checked
from orchestrator.cli.commands import HOSTS, place_called
from orchestrator.cli.settings import PLACE, TABLE, refuse_idle
from orchestrator.clocks import monotonic_s
from orchestrator.coordinator.secret import Right
from orchestrator.coordinator.tls import check_signed, check_tls, is_loopback, make_tls
from orchestrator.durations import show_duration
from orchestrator.error_report import mute
from orchestrator.errors import WrongUse
from orchestrator.instance_settings import INSTANCE, instance_values
from orchestrator.names import counted
from orchestrator.setting import whole_number
from orchestrator.settings import BY_NAME, GROUP, LIVE, group_settings_of
from orchestrator.weights import strange
from pipeline.app import App
from pipeline.loading import load
from state.errors import LogUnavailable, StateError
from state.log.protocol import GroupLog
from state.open_files import files_allowed, files_of
from workers import log_lines, topic_identities
from workers.commands.cluster import add_cluster, cluster_of, refuse_without_spark
from workers.commands.settings import given_live, kept_of, passed_over
from workers.commands.show import warn_of_idle
from workers.connection.credentials import agree, instance_credentials, read_secret, refuse_unfit
from workers.connection.listening import place_of
from workers.end_watch import stopping_signals, wake_no_more
from workers.first_start import refuse_cut_off, refuse_first_start
from workers.fleet.client import Client, elsewhere
from workers.fleet.fleet import Fleet
from workers.fleet.hosts import Host, ProcessHost
from workers.fleet.named import NamedInstance
from workers.instance.ledger import kept_settings
from workers.log.logs import BUSY_MS, log_path, log_url, no_broker, open_log, show_log
from workers.log.patient_log import PatientLog, open_patiently
from workers.metrics.server import refuse_unfit as refuse_unfit_metrics
from workers.missing_inputs import prepare_and_say
from workers.prepare import Prepared
from workers.spec import InstanceSpec

INSTANCES_MAX = 1_000
KEPT_S = 2.0
EMPTY: Mapping[str, str] = MappingProxyType({})
DOWN_MS = 24 * 3_600_000  # how long an app may be down without a thought


def run(argv: list[str]) -> int:
    """Runs `orchestrator run`; its exit code. Raises WrongUse."""
    parser = Parser("run", "Run instances of an app until they are stopped.")
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--instances", type=checked(whole_number), help="how many to start here (default 1)")
    parser.settings(*PLACE, *(row.name for row in INSTANCE), *(row.name for row in GROUP), "name", "on", "master")
    add_cluster(parser, None)
    args = parser.parse_args(argv)
    count = count_of(args)
    if args.on not in HOSTS:
        refuse_without_spark(args)
    check_access(args)
    settings = group_settings_of(args)
    log_lines.set_up(args.log_level, args.log_format)
    app = load(args.app)
    url = log_url(args, app.id, existing=False)
    refuse_idle_flags(args, facts_of(args, app, url))
    check_snapshots(args.snapshots)
    folder = str(Path.cwd())
    spec = InstanceSpec(
        app=args.app,
        application=app.id,
        instance=args.name or "",
        log=url,
        state_dir=state_dir(args, url),
        folder=folder,
        settings=settings,
        started_with=0 if args.name else count,
        **instance_values(args, folder),
    )
    given = given_live(parser.given)
    if args.on in HOSTS:
        return int(place_called(HOSTS[args.on])(spec, count, cluster_of(args), given))
    return asyncio.run(run_fleet(ProcessHost(), spec, count, given))


def count_of(args: Any) -> int:
    """How many instances are started. Raises WrongUse."""
    if args.name and args.on == "spark":
        raise WrongUse("--name is of one process of this machine; leave it out with --on spark")
    if args.name and args.instances is not None:
        raise WrongUse("--name and --instances exclude each other: a name is of one instance; give one")
    count = int(args.instances or 1)
    if count > INSTANCES_MAX:
        raise WrongUse(f"--instances {count}: one machine does not carry that many; write at most {INSTANCES_MAX}")
    return count


def facts_of(args: Any, app: App, url: str) -> dict[str, Any]:
    """Returns what `orchestrator.setting.Need` looks at."""
    host, _ = place_of(args.listen, advertised=args.advertise)
    on_machines = args.on in HOSTS and cluster_of(args).spans_machines
    values = {name: getattr(args, setting.option, None) for name, setting in TABLE.items()}
    return {
        **values,
        "has tables": bool(app.tables),
        "embedded log": log_path(url) is not None,
        "open address": not is_loopback(host) or on_machines,
    }


def refuse_idle_flags(args: Any, facts: Mapping[str, Any]) -> None:
    """Raises WrongUse for a flag that does nothing, also beside what was set for the group while it ran: that is in effect from
    the start on. The log is asked for it only where a flag would be refused."""
    try:
        refuse_idle(args.flags, facts)
    except WrongUse as idle:
        try:
            live = kept_of(args)
        except (WrongUse, StateError):  # no log, no app, or no broker: nothing was set
            raise idle from None
        refuse_idle(
            args.flags, {**facts, **{name: BY_NAME[name].read(live[name], name) for name in LIVE if name in live}}
        )


def check_access(args: Any) -> None:
    """Before anything is made: whether the instances may listen where they shall, with the secret that was named. Raises
    WrongUse, RefusedBySafety."""
    place_of(args.advertise, "--advertise")
    host, _ = place_of(args.listen, advertised=args.advertise)
    if (tls := check_tls(host, make_tls(args.tls_cert, args.tls_key, args.tls_ca))) is not None:
        check_signed(tls)
    if args.secret_file:
        read_secret(Path(args.secret_file)).key_of(Right.JOIN)


def check_snapshots(folder: str) -> None:
    """The folder may come later, with the first snapshot; a mistyped one would never be used. Raises WrongUse."""
    if not folder or Path(folder).is_dir():
        return
    if os.path.lexists(folder):
        raise WrongUse(f"--snapshots {folder}: it is no folder; name the folder of snapshots")
    print(
        f"warning: --snapshots {folder}: there is no such folder; tasks are restored from their changelogs until there is",
        file=sys.stderr,
        flush=True,
    )


def state_dir(args: Any, url: str) -> str:
    """Absolute. Without the option, the state lies beside a log that was found above the current folder."""
    path = log_path(url)
    if not args.log and path is not None and args.state_dir == TABLE["state-dir"].default:
        return str(path.absolute().parent / Path(args.state_dir).name)
    return str(Path(args.state_dir).absolute())


def _warn_of_lifetime(log: GroupLog) -> None:
    lifetime_ms = log.position_lifetime_ms
    if lifetime_ms is not None and lifetime_ms < DOWN_MS:
        print(
            f"warning: the brokers forget positions {show_duration(lifetime_ms)} after the app has stopped "
            "(offsets.retention.minutes), and it would not start again; give them the time that it may be down",
            file=sys.stderr,
            flush=True,
        )


def _warn_of_files(prepared: Prepared, spec: InstanceSpec, count: int) -> None:
    """An instance with a name of its own has an unknown share of the tasks."""
    stores = sum(sub.partitions * len(sub.tables) for sub in prepared.topology.subtopologies)
    share = math.ceil(stores * (1 + spec.settings.standbys) / (count * spec.workers))
    allowed = files_allowed()
    if not spec.instance and stores and allowed is not None and allowed < files_of(share):
        print(
            f"warning: a worker has {counted(share, 'store')} in this fleet, and some {files_of(share)} files open, more than the {allowed} "
            "that a process may have here: raise the limit (`ulimit -Hn`, LimitNOFILE= of systemd), or start more workers or "
            "instances; tasks for which no files are left wait",
            file=sys.stderr,
            flush=True,
        )


async def run_fleet(host: Host, spec: InstanceSpec, count: int, given: Mapping[str, str] = EMPTY) -> int:
    """Prepare the log, start the fleet, and stop it on a signal. `given`: see `given_live`. Raises WrongUse."""
    app = load(spec.app)
    refuse_cut_off(spec.log, app.id, spec.state_dir)
    limit_s = spec.log_timeout_ms / 1_000
    busy_ms = min(BUSY_MS, spec.log_timeout_ms)  # what a fleet writes can be written later

    async def opened() -> GroupLog:
        return await open_log(spec.log, create=True, synchronous=spec.synchronous, busy_timeout_ms=busy_ms)

    if log_path(spec.log) is None:  # a broker that does not answer may be a wrong address: report it at once
        try:
            patient = PatientLog(await opened(), limit_s, monotonic_s)
        except LogUnavailable as error:
            raise LogUnavailable(
                f"{error}; `run` waits for brokers once it runs, not before: start it again"
            ) from error
    else:
        patient = await open_patiently(opened, limit_s, monotonic_s)
    log = patient.inner
    try:
        await refuse_unfit(patient, spec)
        await refuse_first_start(patient, app, spec.log)
        fleet = fleet_for(host, log, spec)
        fleet.claim()
        if spec.metrics_port and isinstance(host, ProcessHost):  # else it is of another machine
            await refuse_unfit_metrics(spec.metrics_host, spec.metrics_port)
        await patient.patiently(fleet.announce)
        try:
            prepared = await _prepared(patient, app, spec)
            # A start that is refused leaves no secret behind: the first one that is not may be of another machine.
            await agree(patient, app.id, instance_credentials(spec).secret)
            idle = passed_over(given, spec.settings, await kept_settings(patient, app.id), app.id)
        except BaseException:
            await fleet.withdraw()
            raise
        for line in idle:
            log_lines.announce(spec.log_format, line)
        _warn_of_lifetime(log)
        if isinstance(host, ProcessHost):
            _warn_of_files(prepared, spec, count)
        loop = asyncio.get_running_loop()
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            fleet.stop()

        for number in stopping_signals():
            loop.add_signal_handler(number, stop, number)
        tasks = len(prepared.tasks())
        who = f"instance {spec.instance}" if spec.instance else counted(count, "instance")
        if not spec.instance:
            warn_of_idle(count * spec.workers, tasks, lambda text: log_lines.announce(spec.log_format, text))
        _show(f"{who}, {counted(tasks, 'task')}, {show_log(spec.log)}{no_broker(spec.log)}")
        code = await fleet.run(count)
        if code == 0:
            await _positions_are_kept(log, prepared)
        return 128 + received[0] if received and received[0] == signal.SIGINT else code
    finally:
        await log.close()
        wake_no_more()


async def _prepared(log: PatientLog, app: App, spec: InstanceSpec) -> Prepared:
    """What the app finds in the log, and has made there. Raises WrongUse, AppRefused."""
    await topic_identities.check(log, app)
    prepared = await prepare_and_say(log, app, spec.log, partial(log_lines.announce, spec.log_format))
    unknown = strange(prepared.tasks(), spec.task_weights)
    if unknown:
        there = ", ".join(str(task.id) for task in prepared.tasks()[:20])
        raise WrongUse(f"--task-weights: {unknown[0]} is no task or subtopology of '{app.id}'; there are {there}")
    await topic_identities.check_trimming(log, prepared)
    await topic_identities.keep(log, prepared)
    return prepared


def _show(text: str) -> None:
    """The answer of a command that goes on: a fleet does not end because nobody reads what it says."""
    try:
        print(text, flush=True)
    except OSError:
        mute(1)


async def _positions_are_kept(log: GroupLog, prepared: Prepared) -> None:
    """For the next start, which notices with it that positions have gone. A log that takes no writes is not waited for: the
    end of this process is not to wait for a word that only helps."""
    try:
        async with asyncio.timeout(KEPT_S):
            await topic_identities.keep_positions(log, prepared)
    except (StateError, TimeoutError) as error:
        reason = error if isinstance(error, StateError) else f"the log did not take it within {KEPT_S:g} s"
        logging.getLogger("orchestrator.run").info("which partitions have positions is not kept: %s", reason)


def fleet_for(host: Host, log: GroupLog, spec: InstanceSpec) -> Fleet:
    """The fleet, or the one instance that runs by its name."""

    def say(text: str) -> None:
        log_lines.announce(spec.log_format, text)

    client = Client(log, spec.application, partial(instance_credentials, spec), spec.log)
    kind = NamedInstance if spec.instance else Fleet
    return kind(host, log, spec, say, partial(elsewhere, client))
