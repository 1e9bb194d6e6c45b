"""What an instance or a worker is started with: plain data that crosses a process (or a Spark task) as JSON.

One rule: nothing here is pickled; the app is named, and imported where it runs.
"""

from __future__ import annotations

import os

import msgspec

from orchestrator.model import Settings
from workers.calls.blame import Blame

FAILED_APP = 70  # the user's code failed: another instance would fail on the same record
REPORTED = 80  # a worker process ends with this and the exit code that it reports; any other end is a crash
OVERDUE = 9  # reported by a worker whose call lasted longer than --max-call; its note names the record


class InstanceSpec(msgspec.Struct, frozen=True):
    """One instance. `folder` is where the app's module is looked for first; `log` is a URL.

    `restore_rate_limit` is in bytes a second, 0 for none;
    `secret_file` "": where credentials.py looks for it; `listen` "": a free port of 127.0.0.1;
    `attempt` tells a retry of the host (a Spark task's attempt) from the first start; `failpoint` see failpoint.py.
    """

    app: str
    application: str
    instance: str
    log: str
    state_dir: str
    workers: int = 1
    zone: str = ""
    capacity: int = 1
    folder: str = ""
    settings: Settings = msgspec.field(default_factory=Settings)
    task_weights: tuple[tuple[str, int], ...] = ()
    restore_rate_limit: int = 0
    commit_ms: int = 100
    log_timeout_ms: int = 300_000
    max_call_ms: int = 300_000
    synchronous: str = "NORMAL"
    snapshots: str = ""
    on_stop: str = "bounce"
    on_halt: str = "exit"
    after_leave: str = "exit"
    coordinate: bool = True
    attempt: int = 0
    failpoint: str = ""
    secret_file: str = ""
    listen: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker process of an instance. `careful` and `blamed`: see blame.py; `address`: where its instance listens."""

    instance: InstanceSpec
    number: int
    incarnation: str
    careful: bool = False
    blamed: tuple[Blame, ...] = ()
    address: str = ""


def first_line(descriptor: int = 0) -> str:
    """The line with the spec, read without a buffer: what follows it are requests, which another reader takes."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def encode_spec(spec: InstanceSpec | WorkerSpec) -> str:
    return msgspec.json.encode(spec).decode()


def decode_worker(text: str) -> WorkerSpec:
    return msgspec.json.decode(text, type=WorkerSpec)


def decode_instance(text: str) -> InstanceSpec:
    return msgspec.json.decode(text, type=InstanceSpec)
