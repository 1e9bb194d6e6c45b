"""TLS for addresses that are not this machine's: the contexts of both ends, and what binds a proof to a certificate.

One rule: the secret proves the peer; TLS encrypts the connection. The proof covers the server's certificate, so a
stranger between the two ends has none that fits (as RFC 5929, tls-server-end-point). With an authority (--tls-ca) both
ends show certificates that it has signed, and no other peer gets as far as the proof.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import WrongUse

log = logging.getLogger("orchestrator.listener")
SCHEME = "tls://"
_ADVICE = {  # by what OpenSSL's verification calls it, where its authority is the right one
    9: "it, or its authority, is for a later time: look at the clock of this machine and of the one that has signed it",
    10: "renew it, or the certificate of its authority",
}


class TlsUnusable(WrongUse):
    """A file of --tls-cert, --tls-key or --tls-ca is none, or they do not belong together: also for the moment in which they are renewed."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Those of connections that begin now. `binding`: the digest of the own certificate, which clients see."""

    client: ssl.SSLContext
    server: ssl.SSLContext | None = None
    binding: bytes = b""


class Tls:
    """The contexts of one process, of files as they are when a connection begins: certificates are renewed without a restart."""

    def __init__(self, certificate: str, key: str, authority: str) -> None:
        """Raises WrongUse."""
        self._files = certificate, key, authority
        self._seen = self._warned = self._looks()
        self._contexts = _contexts(*self._files)

    @property
    def certificate(self) -> str:
        """Its file."""
        return self._files[0]

    @property
    def authority(self) -> str:
        """Its file; "" where any certificate does."""
        return self._files[2]

    @property
    def listens(self) -> bool:
        """Whether there is a certificate to listen with."""
        return self._contexts.server is not None

    def now(self) -> Contexts:
        """Where the files changed and cannot be used, as one that is half written, those before go on, and the new ones are tried
        again with each connection: they may have been made for a time that has not come yet."""
        looks = self._looks()  # before they are read: what changes meanwhile is read again
        if looks != self._seen:
            try:
                contexts = _contexts(*self._files)
                _check_signed(contexts, self.certificate, self.authority)
            except WrongUse as error:
                if looks != self._warned:
                    self._warned = looks
                    log.warning("renewed certificates are not used, those before go on: %s", error)
            else:
                self._seen, self._contexts = looks, contexts
        return self._contexts

    def _looks(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_look, self._files))


def _look(file: str) -> tuple[int, int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than localhost counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def digest(certificate: bytes) -> bytes:
    """Of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


def make_tls(certificate: str, key: str, authority: str) -> Tls | None:
    """From the settings tls-cert, tls-key and tls-ca; None where none is given. Raises WrongUse."""
    if not (certificate or key or authority):
        return None
    if bool(certificate) != bool(key):
        raise WrongUse("--tls-cert and --tls-key go together; give both")
    return Tls(certificate, key, authority)


def _contexts(certificate: str, key: str, authority: str) -> Contexts:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # instances come and go at any address; the proof of the secret is what counts
    client.verify_mode = ssl.CERT_NONE
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    for context in filter(None, (client, server)):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if certificate:
            _load(context, certificate, key)
        if authority:
            try:
                context.load_verify_locations(authority)
            except (OSError, ssl.SSLError) as error:
                raise TlsUnusable(f"--tls-ca {authority} cannot be read ({error}); name a PEM file") from None
            context.verify_mode = ssl.CERT_REQUIRED
    return Contexts(client, server, _binding(certificate) if certificate else b"")


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise TlsUnusable(
            f"--tls-cert {certificate} with --tls-key {key} cannot be used ({error}); name PEM files that belong together"
        ) from None


def _binding(certificate: str) -> bytes:
    try:
        text = Path(certificate).read_text()
        first = text[text.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")[0]
        return digest(ssl.PEM_cert_to_DER_cert(f"{first}-----END CERTIFICATE-----\n"))
    except (OSError, ValueError) as error:  # it was whole when it was loaded: somebody writes it
        raise TlsUnusable(f"--tls-cert {certificate} cannot be read ({error}); name a PEM file") from None


def check_tls(host: str, tls: Tls | None) -> Tls | None:
    """What to listen with on `host`; None on this machine alone. Raises WrongUse where TLS is missing."""
    if is_loopback(host):
        return None
    if tls is None or not tls.listens:
        raise WrongUse(
            f"--listen {host}: other machines reach it, so it needs TLS; give --tls-cert and --tls-key, or listen on "
            "127.0.0.1"
        )
    return tls


def check_signed(tls: Tls) -> None:
    """Raises TlsUnusable where --tls-ca has not signed the own certificate: no peer that goes by that authority would take this process,
    its own workers among them."""
    _check_signed(tls.now(), tls.certificate, tls.authority)


def _check_signed(contexts: Contexts, certificate: str, authority: str) -> None:
    """Both ends of a connection to itself, in memory."""
    if contexts.server is None or not authority:
        return
    ends = [ssl.MemoryBIO() for _ in range(2)]
    waiting = [contexts.client.wrap_bio(ends[0], ends[1]), contexts.server.wrap_bio(ends[1], ends[0], server_side=True)]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
                advice = _ADVICE.get(code, "name the authority that has signed it")
                raise TlsUnusable(
                    f"--tls-cert {certificate} is not taken by --tls-ca {authority} ({error}); {advice}"
                ) from None


def client_context(address: str, tls: Tls | None) -> tuple[str, int, ssl.SSLContext | None]:
    """Host, port and context to connect to an address of the group. Raises ValueError for none, WrongUse for one that is
    open and without TLS: others on the network could read the connection."""
    plain = address.removeprefix(SCHEME)
    host, _, port = plain.rpartition(":")
    if plain != address:
        return host.strip("[]"), int(port), _any() if tls is None else tls.now().client
    if not is_loopback(host.strip("[]")):
        raise WrongUse(f"the instance at {address} listens to other machines without TLS; it is not used")
    return host.strip("[]"), int(port), None


def _any() -> ssl.SSLContext:
    """For a client that was given no authority: the proof is bound to whatever certificate it sees."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    return client
