"""A broker that lets nobody in without asking: TLS, client certificates, every mechanism of SASL, and an authorizer.

One for all tests of a run. On the plain listener everybody is a super user (the tests' own view); `alice` is one on the
others, `bob` has the rights that he is given. Certificates are made with openssl.
"""

from __future__ import annotations

import atexit
import base64
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from state.log.kafka import broker
from state.log.kafka.broker import Broker, BrokerUnusable
from tests.brokers import VERSION

PASSWORDS = {"alice": 'se,cr="et ;', "bob": "builder"}
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """The broker, the port of each listener, and the folder with ca.pem, other.pem, client.pem, client.key."""

    broker: Broker
    ports: dict[str, int]
    folder: Path

    def config(self, folder: Path, name: str = "client.properties", **values: str) -> Path:
        """A file of client settings; `_` in names stands for a dot."""
        path = folder / name
        path.write_text("".join(f"{key.replace('_', '.')}={_escaped(value)}\n" for key, value in values.items()))
        return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def token(user: str, seconds: float = 300) -> str:
    """An unsecured token, which the broker's own validator for development takes."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + seconds}]
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""])


def _make_certificates(folder: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-days", "3650", "-subj", f"/CN={name}")  # fmt: skip
    for name in ("broker", "client"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (folder / "names").write_text("subjectAltName=DNS:localhost\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650",
                "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    openssl(
        "pkcs12",
        "-export",
        "-in",
        "broker.pem",
        "-inkey",
        "broker.key",
        "-out",
        "broker.p12",
        "-passout",
        "pass:changeit",
    )
    openssl("rsa", "-in", "client.key", "-aes256", "-passout", "pass:opensesame", "-out", "client.locked.key")


def _settings(port: int, ports: dict[str, int], folder: Path) -> dict[str, str]:
    names = ["PLAINTEXT", "CONTROLLER", *ports]
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "MUTUAL": "SSL"} | {
        name: name for name in ports if name != "MUTUAL"
    }
    hosts = [f"PLAINTEXT://127.0.0.1:{port}", *(f"{name}://localhost:{one}" for name, one in ports.items())]
    settings = {
        "listeners": ",".join([*hosts, f"CONTROLLER://127.0.0.1:{port + 1}"]),
        "advertised.listeners": ",".join(hosts),
        "listener.security.protocol.map": ",".join(f"{name}:{protocols[name]}" for name in names),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / "broker.p12"),
        "ssl.keystore.password": "changeit",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:CN=client",
        "transaction.max.timeout.ms": "600000",  # less than Kafka's default
        "transaction.partition.verification.enable": "false",  # so that a transaction can be left open
    }
    users = " ".join(f'user_{user}="{_jaas(password)}"' for user, password in PASSWORDS.items())
    for name in ("sasl_plaintext", "sasl_ssl"):
        at = f"listener.name.{name}"
        settings |= {
            f"{at}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",
            f"{at}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{at}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{at}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
    return {name: value.replace("\\", "\\\\") for name, value in settings.items()}


def _jaas(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@cache
def _shared() -> Secured | str:
    if shutil.which("openssl") is None:
        return "openssl is not installed"
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-secured-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _make_certificates(folder)
    try:
        port = broker.free_port()
        ports = {}
        for name in ("SSL", "MUTUAL", "SASL_PLAINTEXT", "SASL_SSL"):
            while (one := broker.free_port()) in (port, *ports.values()):
                continue
            ports[name] = one
        scram = {user: password for user, password in PASSWORDS.items() if user == "bob"}
        made = broker.prepare(
            folder / "broker", port, settings=_settings(port, ports, folder), scram=scram, version=VERSION
        )
        atexit.register(made.stop, kill=True)
        made.launch()
    except BrokerUnusable as error:
        return str(error)
    return Secured(made, ports, folder)


def shared() -> Secured:
    """Skips the test where no such broker can be had."""
    found = _shared()
    if isinstance(found, str):
        pytest.skip(f"no Kafka broker with security here: {found}")
    return found
