"""The client settings that the orchestrator takes, by the names that Java's clients and librdkafka give them. Pure.

One rule: a setting acts, or is refused: with the nearest name where it is unknown, with the reason where Kafka knows it and
nothing here would go by it. Their values are never shown: several are secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

from state.log.kafka import refused_settings
from state.log.kafka.properties import BadClientConfig

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PORT = 9092
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}  # as Kafka numbers them
FETCH_BYTES = 64 << 20
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:/@\[\]]+))(?::(?P<port>[0-9]+))?")


@dataclass(frozen=True)
class ClientSettings:
    """What a client says of itself to the brokers. PEM texts and files stand beside each other; "" is none."""

    security_protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: str = ""
    token_command: str = ""
    ca_file: str = ""
    ca_pem: str = ""
    certificate_file: str = ""
    certificate_pem: str = ""
    key_file: str = ""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_names: bool = True
    checks_certificates: bool = True
    bootstrap: tuple[tuple[str, int], ...] = ()
    compression: str = ""
    client_id: str = "stream-orchestrator"
    request_timeout_ms: int = 15_000
    idle_ms: int | None = None
    fetch_bytes: int = FETCH_BYTES
    partition_bytes: int | None = None
    batch_bytes: int | None = None

    @property
    def tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def files(self) -> tuple[str, ...]:
        """The files that connections read."""
        named = (self.ca_file, self.certificate_file, self.key_file)
        return tuple(one for one in named if one)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.upper() not in choices:
            raise ValueError(f"it is one of {', '.join(choices)}")
        return text.upper()

    return read


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"it is a whole number from {least} to {most}")
        return int(text)

    return read


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _names_checked(text: str) -> bool:
    if text.lower() not in ("https", "none", ""):
        raise ValueError("it is https, or empty (none) for no check of names")
    return text.lower() == "https"


def _token_file(text: str) -> str:
    url = urlsplit(text)
    if url.scheme != "file" or not url.path:
        raise ValueError("it is file:///PATH here; for a token that is fetched, name a sasl.oauthbearer.token.command")
    return unquote(url.path)


def _pem_type(text: str) -> str:
    if text.upper() != "PEM":
        raise ValueError(
            "it is PEM here: take certificates and key out of the store with "
            "`openssl pkcs12 -in STORE -out FILE.pem` (a JKS first with `keytool -importkeystore -deststoretype PKCS12`)"
        )
    return ""


def address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPV6]:PORT`, or either without its port. Raises ValueError."""
    found = _ADDRESS.fullmatch(text)
    port = DEFAULT_PORT if found is None or found["port"] is None else int(found["port"])
    if found is None or not 0 < port < 65_536:
        raise ValueError(f"'{text}' is no HOST:PORT (an IPv6 address is written [ADDRESS]:PORT)")
    return found["ipv6"] or found["host"], port


def codec_name(text: str) -> str:
    """A codec of CODECS that is installed. Raises ValueError."""
    name = text.lower()
    if name not in CODECS:
        raise ValueError(f"'{text}' is no compression; write {', '.join(CODECS)}")
    if name not in ("none", "gzip") and find_spec("cramjam") is None:
        raise ValueError(f"what writes {name} is not installed: install the extra 'kafka', or write gzip")
    return name


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(address(one.strip()) for one in text.split(",") if one.strip())


_BELOW_A_DAY, _BYTES = _whole(1, 86_400_000), _whole(1_024, 1 << 30)
_ROWS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "bootstrap.servers": ("bootstrap", _servers),
    "security.protocol": ("security_protocol", _one_of(PROTOCOLS)),
    "sasl.mechanism": ("mechanism", _one_of(MECHANISMS)),
    "sasl.mechanisms": ("mechanism", _one_of(MECHANISMS)),
    "sasl.username": ("username", str),
    "sasl.password": ("password", str),
    "sasl.oauthbearer.token.endpoint.url": ("token_file", _token_file),
    "sasl.oauthbearer.token.command": ("token_command", str),
    "ssl.ca.location": ("ca_file", str),
    "ssl.ca.pem": ("ca_pem", str),
    "ssl.truststore.location": ("ca_file", str),
    "ssl.truststore.certificates": ("ca_pem", str),
    "ssl.certificate.location": ("certificate_file", str),
    "ssl.certificate.pem": ("certificate_pem", str),
    "ssl.keystore.location": ("certificate_file", str),
    "ssl.keystore.certificate.chain": ("certificate_pem", str),
    "ssl.key.location": ("key_file", str),
    "ssl.key.pem": ("key_pem", str),
    "ssl.keystore.key": ("key_pem", str),
    "ssl.key.password": ("key_password", str),
    "ssl.endpoint.identification.algorithm": ("checks_names", _names_checked),
    "enable.ssl.certificate.verification": ("checks_certificates", _truth),
    "compression.type": ("compression", codec_name),
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout_ms", _whole(100, 900_000)),
    "connections.max.idle.ms": ("idle_ms", _BELOW_A_DAY),
    "fetch.max.bytes": ("fetch_bytes", _BYTES),
    "max.partition.fetch.bytes": ("partition_bytes", _BYTES),
    "fetch.message.max.bytes": ("partition_bytes", _BYTES),
    "max.request.size": ("batch_bytes", _BYTES),
    "message.max.bytes": ("batch_bytes", _BYTES),
}
_JAAS, _STORE_TYPES = "sasl.jaas.config", ("ssl.truststore.type", "ssl.keystore.type")


def known() -> tuple[str, ...]:
    """The names of all settings that are taken."""
    return tuple(sorted({*_ROWS, _JAAS, *_STORE_TYPES}))


def client_settings(values: Mapping[str, str], where: str) -> ClientSettings:
    """Raises BadClientConfig for what is unknown, wrong, without effect, or not enough."""
    found: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    for name, value in values.items():
        if name == _JAAS:
            taken = _from_jaas(value, where)
        elif name in _STORE_TYPES:
            _read(name, _pem_type, value, where)
            continue
        elif name in _ROWS:
            option, read = _ROWS[name]
            taken = {option: _read(name, read, value, where)}
        else:
            raise BadClientConfig(_unknown(name, where))
        for option in taken:
            if option in given_by:
                raise BadClientConfig(f"{where}: {given_by[option]} and {name} say the same; keep one of them")
            given_by[option] = name
        found |= taken
    made = ClientSettings(**found)
    _check_sasl(made, given_by, where)
    _check_tls(made, given_by, where)
    return made


def _read(name: str, read: Callable[[str], Any], value: str, where: str) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise BadClientConfig(f"{where}: {name} cannot be used: {error}") from None


def _unknown(name: str, where: str) -> str:
    if (reason := refused_settings.why(name)) is not None:
        return f"{where}: {name} would have no effect: {reason}; leave it out"
    close = get_close_matches(name, known(), 1)
    hint = f"did you mean {close[0]}?" if close else "docs/kafka.md lists those that are taken"
    return f"{where}: there is no client setting {name} here; {hint}"


_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_OPTION = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s\"';]+))")


def _from_jaas(text: str, where: str) -> dict[str, str]:
    """Username and password of Java's login modules. Raises BadClientConfig."""
    module = _MODULE.fullmatch(text)
    name = module[1].rpartition(".")[2] if module else ""
    if module is None or name not in ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule"):
        raise BadClientConfig(
            f'{where}: {_JAAS} cannot be read: write MODULE required username="..." password="..."; with the PlainLoginModule, '
            "the ScramLoginModule or (without options) the OAuthBearerLoginModule"
        )
    options = {
        match[1]: re.sub(r"\\(.)", r"\1", match[2] or match[3] or match[4] or "")
        for match in _OPTION.finditer(module[2])
    }
    strange = sorted(options.keys() - {"username", "password"})
    if strange or (name == "OAuthBearerLoginModule" and options):
        raise BadClientConfig(
            f"{where}: {_JAAS}: the option {(strange or sorted(options))[0]} of {name} has no effect here; leave it out"
            + ("; sasl.oauthbearer.token.command fetches a token" if name == "OAuthBearerLoginModule" else "")
        )
    return options


def _check_sasl(made: ClientSettings, given_by: Mapping[str, str], where: str) -> None:
    """Raises BadClientConfig."""
    options = ("mechanism", "username", "password", "token_file", "token_command")
    idle = [given_by[one] for one in options if one in given_by]
    if not made.sasl:
        if idle:
            raise BadClientConfig(
                f"{where}: {idle[0]} has no effect with security.protocol={made.security_protocol}; write SASL_SSL (or "
                "SASL_PLAINTEXT where the network is trusted)"
            )
        return
    if not made.mechanism:
        raise BadClientConfig(f"{where}: {made.security_protocol} needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
    if made.mechanism == "OAUTHBEARER":
        if not (made.token_file or made.token_command) or (made.token_file and made.token_command):
            raise BadClientConfig(
                f"{where}: OAUTHBEARER needs its token: sasl.oauthbearer.token.endpoint.url=file:///PATH, or "
                "sasl.oauthbearer.token.command=PROGRAM ARGUMENTS, one of the two"
            )
        wrong = ("username", "password")
    else:
        if not made.username or not made.password:
            missing = "sasl.password" if made.username else "sasl.username"
            raise BadClientConfig(f"{where}: {made.mechanism} needs {missing} (or username and password in {_JAAS})")
        wrong = ("token_file", "token_command")
    idle = [given_by[one] for one in wrong if one in given_by]
    if idle:
        raise BadClientConfig(f"{where}: {idle[0]} has no effect with sasl.mechanism={made.mechanism}; leave it out")


def _check_tls(made: ClientSettings, given_by: Mapping[str, str], where: str) -> None:
    """Raises BadClientConfig."""
    certificate = made.certificate_file or made.certificate_pem
    key = made.key_file or made.key_pem
    options = ("ca_file", "ca_pem", "certificate_file", "certificate_pem", "key_file", "key_pem", "key_password")
    idle = [given_by[one] for one in (*options, "checks_names", "checks_certificates") if one in given_by]
    if not made.tls:
        if idle:
            secure = "SASL_SSL" if made.sasl else "SSL"
            raise BadClientConfig(
                f"{where}: {idle[0]} has no effect with security.protocol={made.security_protocol}; write {secure}"
            )
        return
    if key and not certificate:
        raise BadClientConfig(f"{where}: there is a key and no certificate; name it with ssl.certificate.location")
    if made.key_password and not certificate:
        raise BadClientConfig(f"{where}: ssl.key.password opens no key; name one with ssl.key.location")
    for one, other in (("ca_file", "ca_pem"), ("certificate_file", "certificate_pem"), ("key_file", "key_pem")):
        if one in given_by and other in given_by:
            raise BadClientConfig(f"{where}: {given_by[one]} and {given_by[other]} say the same; keep one of them")
