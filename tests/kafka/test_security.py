"""Security as users of Kafka have it, on a real broker: each protocol and mechanism lets in, and each wrong setting is
named in one line, within seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from state.log.kafka.access import AccessRefused
from state.log.kafka.cluster import KafkaOptions
from state.log.kafka.log import KafkaLog, open_kafka
from state.log.protocol import Partition, TopicSpec
from tests.cli.console import Console
from tests.contracts.logs import read_all, records
from tests.kafka import secured
from tests.kills.harness import life

pytestmark = pytest.mark.kafka

PASSWORD = secured.PASSWORDS["bob"]


EVERY = (
    ("explain", "bank", "0_0"),
    ("query", "bank", "balances", "a"),
    ("scale-up", "bank", "--by", "1"),
    ("wait", "bank", "--instances", "2", "--timeout", "30s"),
    ("drain", "bank", "i2", "--wait"),
    ("scale-down", "bank", "--undo"),
    ("secret", "bank"),
    ("topics", "grow", "bank", "alerts", "--partitions", "8"),
)


def values(what: str, folder: Path) -> dict[str, str]:
    """Client settings: words of `what` after the protocol say mechanism, certificate, key."""
    protocol, *words = what.split()
    made = {"security_protocol": protocol}
    if "SSL" in protocol:
        made["ssl_ca_location"] = str(folder / ("other.pem" if "other" in words else "ca.pem"))
    if "certificate" in words:
        made |= {"ssl_certificate_location": str(folder / "client.pem"), "ssl_key_location": str(folder / "client.key")}
    if "locked" in words:
        made |= {
            "ssl_keystore_location": str(folder / "client.pem"),
            "ssl_key_location": str(folder / "client.locked.key"),
        }
        made["ssl_key_password"] = "opensesame"
    if "pem" in words:
        made |= {"ssl_keystore_certificate_chain": (folder / "client.pem").read_text()}
        made |= {"ssl_keystore_key": (folder / "client.key").read_text()}
    if protocol.startswith("SASL"):
        made["sasl_mechanism"] = words[0]
        if words[0] == "OAUTHBEARER":
            path = folder / f"token-{uuid.uuid4().hex}"
            path.write_text(secured.token("alice", -60 if "expired" in words else 300))
            if "command" in words:
                made["sasl_oauthbearer_token_command"] = f"cat '{path}'"
            else:
                made["sasl_oauthbearer_token_endpoint_url"] = f"file://{path}"
        else:
            user = "alice" if words[0] == "PLAIN" else "bob"
            made["sasl_username"] = user
            made["sasl_password"] = "not it" if "wrong" in words else secured.PASSWORDS[user]
    return made


async def opened(listener: str, what: str, folder: Path, host: str = "localhost") -> KafkaLog:
    found = secured.shared()
    config = found.config(folder, **values(what, found.folder))
    port = found.ports.get(listener, found.broker.port)
    return await open_kafka(KafkaOptions([(host, port)], f"s{uuid.uuid4().hex[:8]}-", config=str(config)))


@pytest.mark.parametrize(
    ("listener", "what"),
    [
        ("PLAINTEXT", "PLAINTEXT"),
        ("SSL", "SSL"),
        *[("MUTUAL", f"SSL {key}") for key in ("certificate", "locked", "pem")],
        *[(one, f"{one} {mechanism}") for one in ("SASL_PLAINTEXT", "SASL_SSL")
          for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER file", "OAUTHBEARER command")],
    ],
)  # fmt: skip
async def test_every_way_in(listener: str, what: str, tmp_path: Path) -> None:
    log = await opened(listener, what, tmp_path)
    try:
        if (
            "SCRAM" in what or what == "SSL"
        ):  # bob and strangers may do nothing here, and that they were let in is enough
            assert log.log_id
            return
        await log.create_topic(TopicSpec("in", 1))
        await log.append({Partition("in", 0): records("a")})
        assert len(await read_all(log, Partition("in", 0))) == 1
    finally:
        await log.close()


@pytest.mark.parametrize(
    ("listener", "what", "error"),
    [
        *[(f"{one}", f"{one} {mechanism} wrong", rf"refuses user '\w+' \({mechanism}\)")
          for one in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")],
        ("SASL_SSL", "SASL_SSL OAUTHBEARER expired", "refuses the token"),
        ("SSL", "SSL other", "did not sign .* ssl.ca.location"),
        ("MUTUAL", "SSL", "wants a client certificate"),
        ("SSL", "PLAINTEXT", "speaks TLS .* security.protocol=SSL or SASL_SSL"),
        ("SASL_SSL", "SASL_PLAINTEXT PLAIN", "speaks TLS .* security.protocol=SASL_SSL"),
        ("SASL_PLAINTEXT", "PLAINTEXT", "wants credentials; set security.protocol=SASL_PLAINTEXT"),
        ("SASL_SSL", "SSL", "wants credentials; set security.protocol=SASL_SSL"),
        ("PLAINTEXT", "SSL", "does not speak TLS"),
        ("SASL_PLAINTEXT", "SASL_SSL PLAIN", "does not speak TLS"),
        ("PLAINTEXT", "SASL_PLAINTEXT PLAIN", "wants no credentials"),
        ("SSL", "SASL_SSL PLAIN", "wants no credentials"),
    ],
)  # fmt: skip
async def test_every_wrong_way_is_named(listener: str, what: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(AccessRefused, match=error) as raised:
        await opened(listener, what, tmp_path)
    text = str(raised.value)
    assert "client.properties" in text and "\n" not in text
    assert not any(password in text for password in (*secured.PASSWORDS.values(), "not it"))


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessRefused, match="certificate of another name"):
        await opened("SSL", "SSL", tmp_path, "127.0.0.1")


async def test_a_certificate_that_has_expired_is_called_so(tmp_path: Path) -> None:
    """It was called one that the authority did not sign, and the advice was to name another authority."""
    folder = secured.shared().folder
    sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        "broker.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "-1",
    ]
    sign += ["-extfile", "names", "-out", str(tmp_path / "expired.pem")]
    await asyncio.to_thread(subprocess.run, sign, cwd=folder, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "expired.pem", folder / "broker.key")
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    config = secured.shared().config(tmp_path, **values("SSL", folder))
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(AccessRefused, match=r"is not valid now \(certificate has expired\); renew it"):
            await open_kafka(KafkaOptions([("localhost", port)], config=str(config)))


async def test_renewed_credentials_count_without_a_restart(tmp_path: Path) -> None:
    """The file is read again when it has changed: connections that are made later use what stands in it then."""
    found = secured.shared()
    log = await opened("SASL_PLAINTEXT", "SASL_PLAINTEXT PLAIN", tmp_path)
    try:
        await log.topics(["x"])
        found.config(tmp_path, **values("SASL_PLAINTEXT PLAIN wrong", found.folder))
        reader = log.reader()
        await log.create_topic(TopicSpec("in", 1))
        reader.add(Partition("in", 0), 0)
        with pytest.raises(Exception, match="refuses user"):
            log._cluster.connections.close_purpose("quick")
            await log._cluster.connections.ask_any(_metadata())
        found.config(tmp_path, **values("SASL_PLAINTEXT PLAIN", found.folder))
        assert set(await log.topics(["in"])) == {"in"}
        await reader.close()
    finally:
        await log.close()


def _metadata() -> object:
    from state.log.kafka.requests import metadata

    return metadata([])


@pytest.mark.processes
async def test_a_fleet_over_tls_with_credentials_survives_kills(tmp_path: Path) -> None:
    found = secured.shared()
    config = found.config(tmp_path, **values("SASL_SSL PLAIN", found.folder))
    url = f"kafka://localhost:{found.ports['SASL_SSL']}?prefix=s{uuid.uuid4().hex[:8]}-&config={config}"
    report = await life(tmp_path / "life", "both", 0.4, 2_000, url)
    assert report.ok, report


@pytest.mark.processes
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_the_most_talkative_log_shows_no_secret(mechanism: str, tmp_path: Path) -> None:
    """And a password in the clear is warned of once by each process of an instance, by no command."""
    found, console = secured.shared(), Console(tmp_path / "bank").bank()
    given = values(f"SASL_PLAINTEXT {mechanism}", found.folder)
    if mechanism == "SCRAM-SHA-256":  # bob has no rights here
        given["sasl_username"], given["sasl_password"] = "bob", PASSWORD
    config = found.config(tmp_path, **given)
    token = given.get("sasl_oauthbearer_token_endpoint_url", "").removeprefix("file://")
    secret = Path(token).read_text() if token else given["sasl_password"]
    url = f"kafka://localhost:{found.ports['SASL_PLAINTEXT']}?prefix=d{uuid.uuid4().hex[:8]}-"
    log = ("--log", url, "--kafka-config", str(config))
    try:
        console.start("run", "bank:app", "--log-level", "DEBUG", *log, name="run")
        if mechanism == "SCRAM-SHA-256":
            console.until("lines", lambda: "User:bob" in console.said("run") or "the user lacks" in console.said("run"))
        else:
            done = console("wait", "bank", "--instances", "1", "--timeout", "60s", *log)
            assert (done.code, done.err) == (0, ""), (done, console.said("run"))
        said = console.said("run")
        assert "SaslAuthenticateRequest" in said, said
        assert secret not in said and secret[:40] not in said and "sasl_auth_bytes" not in said
        assert said.count("in the clear") <= 3
        if mechanism == "PLAIN":
            assert "in the clear" in said
            found.config(tmp_path, **{**given, "sasl_password": "not it"})
            done = console("status", "bank", *log)
            assert done.code == 1 and done.err.startswith("error: ") and done.err.count("\n") == 1, done
    finally:
        console.close()


def test_a_request_that_is_interrupted_at_its_answer_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A signal cancels it between aiokafka's look at whether it waits and the answer that it gives to it."""
    mark = logging.getLogger("aiokafka.conn")
    for error in (asyncio.InvalidStateError("invalid state"), ValueError("another")):
        try:
            raise error
        except (asyncio.InvalidStateError, ValueError):
            mark.exception("Unexpected exception in AIOKafkaConnection")
    assert [str(one.exc_info and one.exc_info[1]) for one in caplog.records] == ["another"]


@pytest.mark.processes
def test_commands_take_the_file_and_show_no_secret(tmp_path: Path) -> None:
    """From the flag, from the environment and from orchestrator.toml; a wrong password ends a run in one line."""
    found = secured.shared()
    secret = secured.PASSWORDS["alice"]
    config = found.config(tmp_path, **values("SASL_SSL PLAIN", found.folder))
    url = f"kafka://localhost:{found.ports['SASL_SSL']}?prefix=s{uuid.uuid4().hex[:8]}-"
    console = Console(tmp_path / "place").bank()
    console.write(
        "in.jsonl", "".join(json.dumps({"key": "a", "value": {"account": "a", "amount": -1}}) + "\n" for _ in "12")
    )
    done = console("produce", "bank:app", "payments", "--file", "in.jsonl", "--log", url, "--kafka-config", str(config))
    assert done.code == 0, done
    console.environment["ORCHESTRATOR_KAFKA_CONFIG"] = str(config)
    shown = console("config", "show")
    assert str(config) in shown.out and secret not in shown.out
    del console.environment["ORCHESTRATOR_KAFKA_CONFIG"]
    console.write("orchestrator.toml", f'log = "{url}"\nkafka-config = "../client.properties"\n')
    fleet = console.start("run", "bank:app", "--instances", "1")
    deadline = time.monotonic() + 30
    while (done := console("consume", "bank", "alerts")).out.count("overdrawn") < 2:
        assert time.monotonic() < deadline and fleet.poll() is None, done
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "worker" in lines and secret not in lines
    status = console("status", "bank", "--json")
    assert status.code == 0 and secret not in status.out
    for path in (tmp_path / "place").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for words in EVERY:
        done = console(*words)
        assert done.code == 0, (words, done)
    fleet.terminate()
    assert fleet.wait(30) == 0
    assert console("reset", "bank", "--plan").code == 0
    found.config(tmp_path, **{**values("SASL_SSL PLAIN", found.folder), "sasl_password": "nope"})
    for words in (("run", "bank:app"), ("status", "bank"), ("produce", "bank:app", "payments")):
        done = console(*words)
        assert done.code == 1 and "refuses user 'alice' (PLAIN)" in done.err and done.err.count("\n") == 1, done
        assert "nope" not in done.err  # and at once, not after --log-timeout
    config.unlink()
    done = console("status", "bank")
    assert done.code == 2 and "client.properties cannot be read" in done.err, done


SECRETS = {
    "token": "OAUTHBEARER file",
    "command": "OAUTHBEARER command",
    "scram": "SCRAM-SHA-512",
    "key": "MUTUAL locked",
}


def kept_elsewhere(
    kind: str, found: secured.Secured, folder: Path, *, wrong: bool = False
) -> tuple[str, dict[str, str], str]:
    """The listener, the settings with a reference in the place of the secret, and the secret: one from a file, from the
    environment, from a folder of files as Kubernetes mounts them."""
    (folder / "secrets").mkdir(exist_ok=True)
    if kind == "scram":
        secret = "not builder" if wrong else secured.PASSWORDS["bob"]
        (folder / "secrets/all.properties").write_text(f"password={secret}\n")
        made = {**values("SASL_SSL SCRAM-SHA-512", found.folder)}
        return "SASL_SSL", {**made, "sasl_password": f"${{file:{folder}/secrets/all.properties:password}}"}, secret
    if kind == "key":
        secret = "close sesame" if wrong else "opensesame"
        (folder / "secrets/key-password").write_text(secret)
        made = values("SSL locked", found.folder)
        return "MUTUAL", {**made, "ssl_key_password": f"${{directory:{folder}/secrets:key-password}}"}, secret
    secret = secured.token("alice", -60 if wrong else 300)
    (folder / "secrets/token").write_text(secret)
    made = values("SASL_SSL OAUTHBEARER", found.folder)
    del made["sasl_oauthbearer_token_endpoint_url"]
    if kind == "token":
        return "SASL_SSL", {**made, "sasl_oauthbearer_token_endpoint_url": f"file://{folder}/secrets/token"}, secret
    return "SASL_SSL", {**made, "sasl_oauthbearer_token_command": "printenv THE_TOKEN"}, secret


@pytest.mark.processes
@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_that_are_kept_elsewhere_are_nowhere_else(kind: str, tmp_path: Path) -> None:
    """Not in what is printed at the level DEBUG, not in what is kept beside the state, not in a process's words; neither
    where the secret is right nor where it is wrong."""
    found = secured.shared()
    console = Console(tmp_path / "place").bank()
    for wrong in (False, True):
        listener, settings, secret = kept_elsewhere(kind, found, tmp_path, wrong=wrong)
        config = found.config(tmp_path, **settings)
        console.environment |= {"THE_TOKEN": secret, "ORCHESTRATOR_LOG_LEVEL": "DEBUG"}
        prefix = "" if kind == "scram" else f"s{uuid.uuid4().hex[:8]}-"
        place = ("--log", f"kafka://localhost:{found.ports[listener]}?prefix={prefix}", "--kafka-config", str(config))
        said = ""
        line = json.dumps({"key": "a", "value": {"account": "a", "amount": -1}})
        runs = kind != "scram" and not wrong  # bob has no rights here
        for words in (("produce", "bank:app", "payments"), ("config", "show"), ("topics", "acls", "bank:app")):
            done = console(*words, *(place if words[0] != "config" else ("--kafka-config", str(config))), stdin=line)
            said += done.out + done.err
            assert (done.code == 0) is (runs or words[0] != "produce"), (words, done)
        if runs:
            fleet = console.start("run", "bank:app", "--instances", "1", *place, name="run")
            console.until("the alert", lambda at=place: "overdrawn" in console("consume", "bank", "alerts", *at).out)
            for process in subprocess.run(
                ["ps", "-eo", "args"], capture_output=True, text=True, check=True
            ).stdout.splitlines():
                assert secret not in process
            for words in (
                ("status", "bank", "--json"),
                ("explain", "bank", "0_0"),
                ("log", "copy", place[1], "sqlite:x.db", "--plan"),
            ):
                done = console(*words, *(place if words[0] != "log" else place[2:]))
                said += done.out + done.err
            fleet.terminate()
            assert console.end(fleet) == 0
            said += console.said("run")
            assert "DEBUG" in said
        else:
            refused = console("run", "bank:app", *place)
            said += refused.out + refused.err
            assert refused.code in (1, 2) and "Traceback" not in said, refused
            if kind == "scram" and not wrong:
                assert "the user lacks " in refused.err, refused
        assert secret not in said, kind
        for path in (tmp_path / "place").rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.processes
@pytest.mark.spark
def test_spark_reads_with_the_file(tmp_path: Path) -> None:
    """`verify` compares nothing less over TLS: its data source opens the log in Spark's own processes."""
    found = secured.shared()
    config = found.config(tmp_path, **values("SASL_SSL PLAIN", found.folder))
    console = Console(tmp_path / "place").bank()
    url = f"kafka://localhost:{found.ports['SASL_SSL']}?prefix=s{uuid.uuid4().hex[:8]}-"
    place = ("--log", url, "--kafka-config", str(config))
    lines = "".join(json.dumps({"key": "a", "value": {"account": "a", "amount": -1}}) + "\n" for _ in "12345")
    assert console("produce", "bank:app", "payments", *place, stdin=lines).code == 0
    done = console.here("backfill", "bank:app", *place, "--json")
    assert done.code == 0, done
    done = console.here("verify", "bank:app", *place, "--json")
    assert done.code == 0 and all(check["ok"] for check in done.json["checks"]), done
