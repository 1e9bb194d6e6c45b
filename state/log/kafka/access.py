"""How connections prove who they are, from a file of client settings; and what a broker's refusal means.

One rule: a refusal that no waiting cures (credentials, certificates, a listener of another protocol) is distinguished from a broker
that is away, and names the address, the setting and the file, never a secret. The files are read again when one of them
has changed, so that passwords, tokens and certificates can be renewed while everything runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import ssl
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka import errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator

from state.errors import LogUnavailable, LogUnusable
from state.log.kafka.client_settings import ClientSettings, client_settings
from state.log.kafka.properties import BadClientConfig, parsed, read, referred, resolved

log = logging.getLogger("orchestrator.log")
TOKEN_WITHIN_S = 10.0
_KILLED_WITHIN_S = 1.0
_Stamp = tuple[str, tuple[int, int, int]]
_PROBE_WITHIN_S = 3.0
_NOT_VALID_NOW = (9, 10)  # OpenSSL's: not yet, and no more
_NO_TLS = "does not speak TLS on this listener; name the port of its TLS listener, or set security.protocol=PROTOCOL"
_API_VERSIONS = b"\0\0\0\x0f\0\x12\0\0\0\0\0\x07\0\x05probe"


class _Discreet(logging.Filter):
    """aiokafka's lines about connections without what a client proves itself with: at DEBUG they had the password or the token.
    And without a traceback where Ctrl-C has cancelled a request at the moment of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self._has_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        """A password in the clear is warned of with each connection: an instance says it once, a command never, as its lines are
        an answer or one error."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.InvalidStateError):
            return False
        if isinstance(record.args, tuple):
            names = [type(one).__name__ for one in record.args]
            record.args = tuple(
                f"{name}(not shown)" if name.startswith("SaslAuthenticate") else one
                for name, one in zip(names, record.args, strict=True)
            )
        if "in the clear" not in str(record.msg):
            return True
        passes = bool(logging.root.handlers) and not self._has_warned
        self._has_warned |= passes
        return passes


logging.getLogger("aiokafka.conn").addFilter(_Discreet())


class AccessRefused(LogUnusable):
    """The brokers do not let this client in, and would not after any wait."""


class Access:
    """The client settings of one log. `path` None: plain connections to brokers that ask for nothing."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises BadClientConfig."""
        self._path = path
        self._stamps: list[_Stamp] = []
        self.settings = ClientSettings()
        self._context: ssl.SSLContext | None = None
        if path is not None:
            self._load(path)

    @property
    def where(self) -> str:
        return str(self._path) if self._path else "--kafka-config FILE"

    def _load(self, path: Path) -> None:
        """Each file's stamp is taken before it is read, so that what changes meanwhile, or is corrected or made later, is read again."""
        self._stamps = _stamps([str(path)])
        given = parsed(read(path), str(path))
        self._stamps += _stamps(map(str, referred(given)))
        settings = client_settings(resolved(given, str(path), os.environ), str(path))
        self._stamps += _stamps(settings.files)
        context = _tls_context(settings, str(path)) if settings.tls else None
        self.settings, self._context = settings, context

    def options(self) -> dict[str, Any]:
        """What a connection of aiokafka takes, as the files have it now."""
        if self._path is not None and self._stamps != _stamps(name for name, _ in self._stamps):
            try:
                self._load(self._path)
            except BadClientConfig as error:  # it may be half written; what was read before still counts
                log.warning("the client settings have changed and cannot be used, those before go on: %s", error)
        settings = self.settings
        options: dict[str, Any] = {
            "client_id": settings.client_id,
            "request_timeout_ms": settings.request_timeout_ms,
            "max_idle_ms": settings.idle_ms,
            "security_protocol": settings.security_protocol,
            "ssl_context": self._context,
        }
        if settings.mechanism == "OAUTHBEARER":
            options |= {
                "sasl_mechanism": settings.mechanism,
                "sasl_oauth_token_provider": _Tokens(settings, self.where),
            }
        elif settings.sasl:
            options |= {
                "sasl_mechanism": settings.mechanism,
                "sasl_plain_username": settings.username,
                "sasl_plain_password": settings.password,
            }
        return options

    async def refusal(self, error: BaseException, host: str, port: int, *, spoke: bool) -> str | None:
        """Why the broker does not let this client in, and what to do; None where it may be away. `spoke`: it had answered
        before it ended the connection."""
        at, settings = f"the Kafka broker at {host}:{port}", self.settings
        for one in _causes(error):
            if isinstance(one, ssl.SSLError):
                return f"{at} {self._tls_refusal(one)}"
            if isinstance(one, errors.SaslAuthenticationFailed):
                who = f"user '{settings.username}'" if settings.username else "the token"
                reason = str(one).partition("] SaslAuthenticationFailed")[2].lstrip(": ") or str(one)
                return f"{at} refuses {who} ({settings.mechanism}): {reason}; correct the credentials in {self.where}"
            if isinstance(one, errors.UnsupportedSaslMechanismError):
                return f"{at} does not take {settings.mechanism} on this listener; set sasl.mechanism in {self.where}"
            if isinstance(one, errors.IllegalSaslStateError):
                plain = "SSL" if settings.tls else "PLAINTEXT"
                return f"{at} wants no credentials on this listener; set security.protocol={plain} in {self.where}"
        if not _was_ended(error):
            return None
        if settings.tls and not spoke and await _speaks_plainly(host, port):
            return f"{at} {_NO_TLS} in {self.where}".replace(
                "PROTOCOL", "SASL_PLAINTEXT" if settings.sasl else "PLAINTEXT"
            )
        if not settings.tls and await _speaks_tls(host, port):
            wanted = "SASL_SSL" if settings.sasl else "SSL or SASL_SSL"
            return f"{at} speaks TLS on this listener; set security.protocol={wanted} in {self.where}"
        if spoke and not settings.sasl:
            wanted = "SASL_SSL" if settings.tls else "SASL_PLAINTEXT"
            return (
                f"{at} ends the connection: it wants credentials; set security.protocol={wanted} and sasl.mechanism in "
                f"{self.where}"
            )
        return None

    def _tls_refusal(self, error: ssl.SSLError) -> str:
        settings, name = self.settings, (error.reason or "").upper()
        if isinstance(error, ssl.SSLCertVerificationError):
            if "match" in error.verify_message:
                return f"has a certificate of another name ({error.verify_message.rstrip('.')}); connect by a name that it has"
            if error.verify_code in _NOT_VALID_NOW:
                return f"has a certificate that is not valid now ({error.verify_message}); renew it, or set this machine's clock right"
            authority = settings.ca_file or (
                "the given certificates" if settings.ca_pem else "this machine's authorities"
            )
            return (
                f"has a certificate that {authority} did not sign ({error.verify_message}); name the right authority with "
                f"ssl.ca.location in {self.where}"
            )
        if "ALERT" in name or "CERTIFICATE_REQUIRED" in name:
            why = name.lower().replace("_", " ")
            if not settings.certificate_file and not settings.certificate_pem:
                return f"wants a client certificate ({why}); set ssl.certificate.location and ssl.key.location in {self.where}"
            return (
                f"does not take the client certificate ({why}); look at its dates (`openssl x509 -noout -dates -in FILE`) and at who "
                f"signed it, and set ssl.certificate.location and ssl.key.location in {self.where}"
            )
        plain = "SASL_PLAINTEXT" if settings.sasl else "PLAINTEXT"
        return f"{_NO_TLS} in {self.where}".replace("PROTOCOL", plain)


class Connection(AIOKafkaConnection):  # type: ignore[misc]
    """A connection that notices when its token is refused: the broker answers that as if it were one more step."""

    def authenticator_oauth(self) -> OAuthAuthenticator:
        return _Bearer(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _Bearer(OAuthAuthenticator):  # type: ignore[misc]
    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        if payload:
            raise errors.SaslAuthenticationFailed(payload.decode(errors="replace"))
        answer: tuple[bytes, bool] | None = await super().step(payload)
        return answer


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """A token for each new connection, from its file or its command."""

    def __init__(self, settings: ClientSettings, where: str) -> None:
        self._settings = settings
        self._where = where

    async def token(self) -> str:
        if self._settings.token_file:
            found = await asyncio.to_thread(read, Path(self._settings.token_file))
        else:
            found = await self._from_command()
        if not found.strip():
            raise BadClientConfig(f"{self._where}: the token is empty: look at what writes it")
        return found.strip()

    async def _start_command(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *shlex.split(self._settings.token_command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that all that it starts can be killed
        )

    async def _from_command(self) -> str:
        name = "sasl.oauthbearer.token.command"
        starting = asyncio.create_task(self._start_command())
        try:
            async with asyncio.timeout(TOKEN_WITHIN_S):
                # Shielded: what is cancelled before its pipes are connected waits for all that holds them.
                process = await asyncio.shield(starting)
                out, problems = await process.communicate()
        except TimeoutError:
            await _kill(starting)
            raise LogUnavailable(
                f"{self._where}: {name} gave no token within {TOKEN_WITHIN_S:.0f} s; try it by hand"
            ) from None
        except asyncio.CancelledError:  # the connection is not wanted any more
            await _kill(starting)
            raise
        except (OSError, ValueError, TypeError) as error:
            raise BadClientConfig(f"{self._where}: {name} cannot be started: {error}; correct it") from None
        if process.returncode:
            lines = problems.decode(errors="replace").strip().splitlines()
            raise LogUnavailable(
                f"{self._where}: {name} ended with {process.returncode} ({lines[-1] if lines else 'it gave no reason'}); "
                "try it by hand"
            )
        return out.decode(errors="replace")


async def _kill(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """With all that it has started. Its end counts once its pipes are read to theirs: what has left the session may hold them, and
    is not waited for."""
    await asyncio.wait([starting])
    if starting.cancelled() or starting.exception() is not None:
        return
    process = starting.result()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_WITHIN_S):
            await process.communicate()


def _tls_context(settings: ClientSettings, where: str) -> ssl.SSLContext:
    """Raises BadClientConfig."""
    try:
        made = ssl.create_default_context(cafile=settings.ca_file or None, cadata=settings.ca_pem or None)
    except (OSError, ssl.SSLError) as error:
        raise BadClientConfig(
            f"{where}: the authority {settings.ca_file or 'that is given'} cannot be read ({_reason(error)}); "
            "it is a file of PEM certificates"
        ) from None
    made.check_hostname = settings.checks_names and settings.checks_certificates
    if not settings.checks_certificates:
        made.verify_mode = ssl.CERT_NONE
    if settings.certificate_file or settings.certificate_pem:
        try:
            _load_certificate(made, settings)
        except (OSError, ssl.SSLError) as error:
            named = settings.certificate_file or "the given one"
            key = settings.key_file or ("the given one" if settings.key_pem else named)
            raise BadClientConfig(
                f"{where}: the client certificate ({named}) cannot be used with its key ({key}): {_reason(error)}; both are PEM, and "
                "an encrypted key needs ssl.key.password"
            ) from None
    return made


def _reason(error: OSError) -> str:
    found = str(getattr(error, "reason", None) or error.strerror or error).lower().replace("_", " ")
    return "no PEM, or not all of it" if "pem lib" in found else found


def _load_certificate(context: ssl.SSLContext, settings: ClientSettings) -> None:
    with tempfile.TemporaryDirectory(
        prefix="orchestrator-pem-"
    ) as folder:  # 0700, gone at once: OpenSSL reads files alone

        def file_of(path: str, pem: str, name: str) -> str | None:
            if path or not pem:
                return path or None
            made = Path(folder) / name
            made.touch(0o600)
            made.write_text(pem)
            return str(made)

        context.load_cert_chain(
            file_of(settings.certificate_file, settings.certificate_pem, "certificate.pem") or "",
            file_of(settings.key_file, settings.key_pem, "key.pem"),
            lambda: settings.key_password,  # or OpenSSL would ask at the terminal
        )


def _stamps(names: Iterable[str]) -> list[_Stamp]:
    return [(name, _look(name)) for name in names]


def _look(name: str) -> tuple[int, int, int]:
    """What differs where a file was written or replaced; zeros for one that is not there."""
    try:
        found = Path(name).stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def _was_ended(error: BaseException) -> bool:
    """Whether the other end ended the connection, once it was made."""
    ended = (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError, errors.KafkaConnectionError)
    return any(isinstance(one, ended) for one in _causes(error)) and not any(
        isinstance(one, ConnectionRefusedError) for one in _causes(error)
    )


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _speaks_plainly(host: str, port: int) -> bool:
    """Whether Kafka's own protocol is answered without TLS."""
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(_API_VERSIONS)
            answer = await reader.readexactly(8)
    except (OSError, TimeoutError, EOFError):
        return False
    writer.close()
    return answer[4:] == _API_VERSIONS[8:12]
