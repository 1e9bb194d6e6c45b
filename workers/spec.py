"""What an instance or a worker is started with: plain data that crosses a process (or a Spark task) as JSON.

One rule: nothing here is pickled; the app is named, and imported where it runs.
"""

from __future__ import annotations

import os

import msgspec

from orchestrator.errors import WrongUse
from orchestrator.instance_settings import InstanceSettings
from orchestrator.model import Settings
from pipeline.errors import ProcessorFailed
from state.errors import DirectoryFull, LogReplaced
from workers.calls.blame import Blame

FAILED_APP = 70  # the user's code failed: another instance would fail on the same record
LOG_REPLACED = 71  # the log was deleted or replaced: another process would not do better
NO_SPACE = 73  # the disk of its state is full: what runs beside it may go on, and it is started again
BOUNCED = 72  # reported by a worker that was sent the SIGTERM of its instance; it has committed
HOST_GOES = -1_000  # of a handle: its host is being taken away, and it has handed over or stopped in order
STOP, LEAVE, BOUNCE = b"stop\n", b"leave\n", b"bounce\n"  # in the leash of an instance
REPORTED = 80  # a worker process ends with this and the exit code that it reports; any other end is a crash
OVERDUE = 9  # reported by a worker whose call lasted longer than --max-call; its note names the record


class InstanceSpec(InstanceSettings, frozen=True):
    """One instance: its settings (orchestrator/instance_settings.py), and what is no setting.

    `folder` is where the app's module is looked for first; `log` is a URL; `settings` are the group's, for when it hosts
    the coordinator. `secret_file` "": where credentials.py looks for it; `listen` "": a free port of 127.0.0.1;
    `attempt` distinguishes a retry of the host (a Spark task's attempt) from the first start; `failpoint` see failpoint.py.
    `is_watched`: the fleet that started it, on this machine, reports what happens to the log and to the folders of all its
    instances, in one line; they only note it. `started_with`: how many instances were started together, this one too; 0
    where others may join that nothing here knows of. `name_returns`: the name is the user's, who may start it again
    once the group has sent it away, with what it left on disk; False: a fleet's number, and what it left goes with it.
    `start`: the id of the fleet that starts it, the same where the fleet starts it again; "": its process is one of its own.
    """

    app: str
    application: str
    instance: str
    log: str
    state_dir: str
    folder: str = ""
    settings: Settings = msgspec.field(default_factory=Settings)
    coordinate: bool = True
    attempt: int = 0
    is_watched: bool = False
    started_with: int = 0
    name_returns: bool = True
    start: str = ""


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker process of an instance. `careful` and `blamed`: see blame.py; `address`: where its instance listens;
    `instance_incarnation`: new at each start of the instance by its user, not where its fleet starts one again that crashed."""

    instance: InstanceSpec
    number: int
    incarnation: str
    careful: bool = False
    blamed: tuple[Blame, ...] = ()
    address: str = ""
    instance_incarnation: str = ""


def refuse_another(application: str, spec: InstanceSpec) -> None:
    """Raises WrongUse where the module, which may have been replaced since the start, is of another application than this instance: it
    would begin anew with the same inputs."""
    if application != spec.application:
        raise WrongUse(
            f"{spec.app} is application '{application}' by now, and {spec.instance} is an instance of '{spec.application}'; "
            "stop that one first, and start the other one beside it, or put the module back"
        )


def how_ended(code: int) -> str:
    """Why an instance is started again, from what its handle returned."""
    if code > 0:
        return "has no space for its state" if code == NO_SPACE else "failed, and others go on"
    return "ended because its host goes" if code == HOST_GOES else f"was killed by signal {-code}"


def end_of_worker(error: BaseException | None, report: int = 0) -> int:
    """The exit code of a worker process that ended with `error`: a crash, unless it is one of those that a user is shown in a line."""
    if error is None:
        return REPORTED + report
    if isinstance(error, ProcessorFailed):
        return REPORTED + FAILED_APP
    if isinstance(error, LogReplaced):
        return REPORTED + LOG_REPLACED
    if isinstance(error, DirectoryFull):
        return REPORTED + NO_SPACE
    code = getattr(error, "exit_code", None)
    return 1 if code is None else REPORTED + int(code)


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
