"""Where the secret of an application lies, and what a process of this machine proves itself with.

One rule: a user who may read the log's folder needs no flag. The secret of an embedded log lies beside it
(`bank.db-bank.secret`), that of a Kafka log in the state folder (`<state>/<application>/group.secret`); another machine
gets a copy of the file and names it with --secret-file. It is made by the first that starts instances; its
fingerprint is in the log, so that one who starts them with another secret is refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.coordinator.handshake import Credentials
from orchestrator.coordinator.secret import KEY_BYTES, Right, Secret, refusal
from orchestrator.coordinator.tls import Tls, TlsUnusable, make_tls
from orchestrator.errors import RefusedBySafety, WrongUse
from state.log.group_store import GroupStore, MetadataKind
from state.private import is_private, make_folder, publish
from workers.log.logs import log_path

if TYPE_CHECKING:
    from workers.spec import InstanceSpec

log = logging.getLogger("orchestrator.listener")
BYTES_MAX = 1_000
RENEWED_WITHIN_S, RENEWED_LOOK_S = 60.0, 0.2
SECRET = MetadataKind("secret")
COPY_OR_RENEW = "copy the file of the machine that started it first and name it with --secret-file, or, where it is lost, make a new one with"


def secret_path(application: str, log: str, state_dir: str) -> Path:
    """The path of an application's secret where no file was named for it."""
    path = log_path(log)
    if path is not None:
        return path.with_name(f"{path.name}-{application}.secret")
    return Path(state_dir) / application / "group.secret"


def _path(spec: InstanceSpec) -> Path:
    return Path(spec.secret_file) if spec.secret_file else secret_path(spec.application, spec.log, spec.state_dir)


def read_secret(path: Path) -> Secret:
    """Raises WrongUse for a file that is not there, holds none, or that others may read."""
    try:
        if path.is_dir():
            raise WrongUse(f"the secret {path} is a folder; name the file with --secret-file")
        if not is_private(path):
            raise WrongUse(
                f"the secret {path} can be read by others; `chmod 600 {path}`, and make a new one if they have"
            )
        with path.open("rb") as file:
            text = file.read(BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        raise NoSecret(
            f"there is no secret at {path}; copy it from the machine that runs the application, and name it with --secret-file"
        ) from None
    except OSError as error:
        raise WrongUse(
            f"the secret {path} cannot be read: {error.strerror}; give it to the user of this process, or name another with "
            "--secret-file"
        ) from None
    return Secret.parse(text, str(path))


def new_secret() -> Secret:
    return Secret(Right.JOIN, secrets.token_bytes(KEY_BYTES))


def make_secret(path: Path) -> None:
    """Makes one where there is none. Raises WrongUse where it cannot be written."""
    try:
        make_folder(path.parent)
        if not path.exists():
            publish(path, new_secret().text().encode())
    except OSError as error:
        raise WrongUse(f"the secret {path} cannot be made: {error.strerror}; name another with --secret-file") from None


class NoSecret(WrongUse):
    """No secret where one was looked for."""


async def refuse_unfit(log: GroupStore, spec: InstanceSpec) -> None:
    """Before a start makes anything. Raises RefusedBySafety where the secret here is not the application's; and where it would make one
    for an application that has one: the file here would be of no use, and in the way of the next look for it. Raises WrongUse as
    `instance_credentials`."""
    path = _path(spec)
    found = await log.metadata(spec.application, SECRET, "fingerprint")
    if spec.secret_file or path.exists():
        _refuse_another(spec.application, instance_credentials(spec).secret, found)
    elif found is not None:
        raise RefusedBySafety(
            f"there is no secret at {path}, and '{spec.application}' has one already ({found.decode(errors='replace')}); {COPY_OR_RENEW}"
            f" `orchestrator secret {spec.application} --renew`"
        )


async def agree(log: GroupStore, application: str, secret: Secret) -> None:
    """The first start of instances records in the log which secret is the application's, by a fingerprint. Raises
    RefusedBySafety where it is another one: members with two secrets would never meet."""
    mine = secret.fingerprint().encode()
    found = await log.metadata(application, SECRET, "fingerprint")
    if found is None and not await log.replace_metadata(application, SECRET, "fingerprint", None, mine):
        found = await log.metadata(application, SECRET, "fingerprint")
    _refuse_another(application, secret, found)


def _refuse_another(application: str, secret: Secret, found: bytes | None) -> None:
    mine = secret.fingerprint().encode()
    if found is not None and found != mine:
        raise RefusedBySafety(
            f"'{application}' has another secret ({found.decode(errors='replace')}) than the one here ({mine.decode()}); "
            f"{COPY_OR_RENEW} `orchestrator secret {application} --renew`"
        )


async def renew(log: GroupStore, application: str, path: Path) -> Secret:
    """Makes a new secret in the place of the one there, and records its fingerprint in the log. Raises WrongUse where it cannot be written."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WrongUse(f"the secret {path} cannot be replaced: {error.strerror}") from None
    make_secret(path)
    secret = read_secret(path)
    await log.put_metadata(application, SECRET, "fingerprint", secret.fingerprint().encode())
    return secret


def client_path(application: str, log: str, args: Any) -> Path:
    """The file that a command reads."""
    if args.secret_file:
        return Path(args.secret_file)
    return secret_path(application, log, str(Path(args.state_dir).absolute()))


def client_credentials(application: str, log: str, args: Any) -> Credentials:
    """What a command proves itself with, from its options. Raises WrongUse."""
    secret = read_secret(client_path(application, log, args))
    return Credentials(application, secret, make_tls(args.tls_cert, args.tls_key, args.tls_ca))


def credentials_of(
    application: str, log: str, state_dir: str = "", file: str = "", tls: Tls | None = None
) -> Credentials:
    """By a process without the options of a command: with the secret of `file`, or of its usual place. Raises WrongUse."""
    return Credentials(application, read_secret(Path(file) if file else secret_path(application, log, state_dir)), tls)


def instance_credentials(spec: InstanceSpec) -> Credentials:
    """What an instance and its workers prove themselves with. Raises WrongUse, RefusedBySafety for a lesser secret."""
    path = _path(spec)
    if not spec.secret_file:
        make_secret(path)
    secret = read_secret(path)
    if secret.right < Right.JOIN:
        raise RefusedBySafety(f"{path}: {refusal(secret.right, Right.JOIN)}")
    return Credentials(spec.application, secret, make_tls(spec.tls_cert, spec.tls_key, spec.tls_ca))


async def in_renewal(make: Callable[[InstanceSpec], Credentials], spec: InstanceSpec) -> Credentials:
    """As `make`, for a process that starts while its fleet runs. A certificate and a key that do not belong together are being renewed, one after
    the other: that is waited for, for a minute. Raises as `make`."""
    loop = asyncio.get_running_loop()
    end, is_known = loop.time() + RENEWED_WITHIN_S, False
    while True:
        try:
            return make(spec)
        except TlsUnusable as error:
            if loop.time() >= end:
                raise
            if not is_known:
                log.warning("certificates are waited for, which may be renewed just now: %s", error)
            is_known = True
        await asyncio.sleep(RENEWED_LOOK_S)
