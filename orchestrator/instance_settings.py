"""The settings of an instance, each declared once: the field that holds the value, with its row.

One rule: the part that obeys a setting reads the field of its spec; everything between a user's text and that field is
derived from the row: option of `run`, variable, key of a file, `config show`, and the way to instances and workers.
`workers/spec.py` adds what is no setting. Values cross processes as JSON.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

import msgspec

from orchestrator.durations import parse_size_bytes
from orchestrator.errors import WrongUse
from orchestrator.setting import (
    COPIES,
    EMBEDDED_LOG,
    GIVEN_WEIGHTS,
    METRICS,
    OPEN_ADDRESS,
    OPEN_PORT,
    STANDBYS,
    TABLES,
    Setting,
    natural_number,
    row,
    rows_of,
    some_time,
    whole_number,
)
from orchestrator.weights import parse_given

PORT_MAX = 65_535
ZONE_MAX = 200
LEVELS, DEFAULT_LEVEL = ("DEBUG", "INFO", "WARNING", "ERROR"), "WARNING"
FOREIGN_PARTS = ("aiokafka", "asyncio")  # loggers of libraries
LOG_PARTS = (
    *(
        "assignor_process",
        "candidate",
        "clock",
        "commit",
        "coordinator",
        "fleet",
        "growth",
        "hosting",
        "inputs",
        "instance",
        "journal",
    ),
    *(
        "listener",
        "log",
        "metrics",
        "records",
        "run",
        "scale_up",
        "session",
        "stores",
        "task",
        "upkeep",
        "worker",
    ),
    *FOREIGN_PARTS,
)


def bytes_or_0(text: str) -> int:
    """A size, or 0. Raises WrongUse."""
    return 0 if text.strip() == "0" else parse_size_bytes(text)


def port_or_0(text: str) -> int:
    """A port, or 0. Raises WrongUse."""
    found = natural_number(text)
    if found > PORT_MAX:
        raise WrongUse(f"'{text}' is no port; write a number up to {PORT_MAX}, or 0")
    return found


def zone_name(text: str) -> str:
    """A zone. Raises WrongUse."""
    if not text.strip() or not text.isprintable() or len(text) > ZONE_MAX:
        raise WrongUse(f"{text[:40]!r} is no zone; write up to {ZONE_MAX} characters that can be shown")
    return text.strip()


def level(text: str) -> str:
    """A log level, or some with commas between: `INFO`, `WARNING,stores=DEBUG`, `candidate=INFO`. Raises WrongUse."""
    found: dict[str, str] = {}
    for word in text.split(","):
        part, _, wanted = word.strip().rpartition("=")
        if wanted.upper() not in LEVELS:
            raise WrongUse(f"'{wanted}' is not one of {', '.join(LEVELS)}")
        if part and part not in LOG_PARTS:
            raise WrongUse(f"there is no part '{part[:40]}' with a level of its own: {', '.join(LOG_PARTS)}")
        if part in found:
            raise WrongUse(f"the level of {part or 'everything'} is given twice: name it once")
        found[part] = wanted.upper()
    return ",".join([found.pop("", DEFAULT_LEVEL), *(f"{part}={found[part]}" for part in sorted(found))])


def commit_path(text: str) -> str:
    """A failpoint. Raises WrongUse."""
    if not text.startswith("commit:"):
        raise WrongUse(f"'{text[:40]}' is no failpoint; write commit:PATH")
    return text


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is set for an instance. Times in ms, sizes in bytes."""

    workers: Annotated[int, row("workers", "worker processes an instance", whole_number)] = 1
    zone: Annotated[
        str,
        row("zone", "where an instance is: standbys are kept in other zones than their task", zone_name, need=STANDBYS),
    ] = ""
    capacity: Annotated[int, row("capacity", "how much each worker takes, relative to other workers", whole_number)] = 1
    commit_ms: Annotated[int, row("commit-interval", "time between commits", some_time)] = 100
    log_timeout_ms: Annotated[
        int, row("log-timeout", "how long to wait for a log that is busy, full or away", some_time)
    ] = 300_000
    max_call_ms: Annotated[
        int, row("max-call", "how long a call of a processor may last before its on_error decides", some_time)
    ] = 300_000
    synchronous: Annotated[
        str,
        row("synchronous", "NORMAL, or FULL against loss of power", choices=("NORMAL", "FULL"), need=EMBEDDED_LOG),
    ] = "NORMAL"
    snapshots: Annotated[str, row("snapshots", "folder of snapshots to restore from", need=TABLES, is_path=True)] = ""
    on_stop: Annotated[
        str,
        row(
            "on-stop",
            "what SIGTERM means: bounce (commit and go) or leave (hand over first)",
            choices=("bounce", "leave"),
        ),
    ] = "bounce"
    on_halt: Annotated[
        str,
        row(
            "on-halt",
            "where a processor stops: exit (the fleet ends), or continue (its task waits for `resume`)",
            choices=("exit", "continue"),
        ),
    ] = "exit"
    after_leave: Annotated[
        str,
        row("after-leave", "what an instance does that left: exit, or park (stay, idle)", choices=("exit", "park")),
    ] = "exit"
    task_weights: Annotated[
        tuple[tuple[str, int], ...],
        row(
            "task-weights",
            "given weights: 0_3=4 for a task, 1=2 for a subtopology, with commas",
            parse_given,
            need=GIVEN_WEIGHTS,
        ),
    ] = ()
    restore_rate_limit: Annotated[
        int,
        row(
            "restore-rate-limit",
            "bytes a second that copies of an instance restore, 64MiB; 0: no limit",
            bytes_or_0,
            need=COPIES,
        ),
    ] = 0
    secret_file: Annotated[
        str,
        row(
            "secret-file",
            "file with the application's secret; by default beside its log, or in the state folder",
            is_path=True,
        ),
    ] = ""
    listen: Annotated[
        str, row("listen", "HOST:PORT where other machines reach the first instance; by default this machine alone")
    ] = ""
    advertise: Annotated[
        str,
        row(
            "advertise",
            "HOST:PORT that others are given for the first instance, where they reach it at another address than --listen",
            need=OPEN_PORT,
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        row(
            "tls-cert",
            "PEM file with a certificate: needed to listen to other machines",
            need=OPEN_ADDRESS,
            is_path=True,
        ),
    ] = ""
    tls_key: Annotated[
        str, row("tls-key", "PEM file with the key of that certificate", need=OPEN_ADDRESS, is_path=True)
    ] = ""
    tls_ca: Annotated[
        str,
        row(
            "tls-ca",
            "PEM file with the authority that has signed the certificates of both ends",
            need=OPEN_ADDRESS,
            is_path=True,
        ),
    ] = ""
    metrics_port: Annotated[
        int,
        row(
            "metrics-port",
            "port where the first instance serves metrics for Prometheus, the others behind it; 0: none",
            port_or_0,
        ),
    ] = 0
    metrics_host: Annotated[
        str, row("metrics-host", "address of this machine where metrics are served", need=METRICS)
    ] = "127.0.0.1"
    log_level: Annotated[
        str,
        row(
            "log-level",
            "what instances say on stderr: DEBUG, INFO, WARNING or ERROR; with PART=LEVEL behind commas, more or less of one part",
            level,
        ),
    ] = DEFAULT_LEVEL
    log_format: Annotated[
        str,
        row(
            "log-format",
            "how they say it: text, or json, an object a line",
            choices=("text", "json"),
        ),
    ] = "text"
    failpoint: Annotated[str, row("failpoint", "commit:PATH: die in a commit, for tests", commit_path, hidden=True)] = (
        ""
    )


INSTANCE: tuple[Setting, ...] = rows_of(InstanceSettings, InstanceSettings())


def instance_values(options: object, folder: str) -> dict[str, Any]:
    """Returns the values of InstanceSettings by field, from the options of a command that declared them all; paths are of
    `folder`."""
    found: dict[str, Any] = {}
    for setting in INSTANCE:
        value = getattr(options, setting.option)
        if value is not None:  # what has no default and was not given keeps that of the field
            found[setting.field] = str(PurePath(folder, value)) if setting.is_path and value else value
    return found
