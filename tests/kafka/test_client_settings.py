"""Files of client settings: what they mean by either client's names, and that each setting acts or is refused."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from state.log.kafka.access import Access
from state.log.kafka.broker import BrokerUnusable, jars, java
from state.log.kafka.client_settings import ClientSettings, client_settings, known
from state.log.kafka.properties import BadClientConfig, parsed, referred, resolved
from state.log.kafka.refused_settings import refused, why
from tests.attacks.test_tls import certificate

NAMES = """
import java.util.*;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;

public class Names {
    public static void main(String[] words) {
        Set<String> names = new TreeSet<>(ProducerConfig.configNames());
        names.addAll(ConsumerConfig.configNames());
        names.addAll(AdminClientConfig.configNames());
        names.forEach(System.out::println);
    }
}
"""
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def of(**values: str) -> ClientSettings:
    return client_settings({name.replace("_", "."): value for name, value in values.items()}, "f")


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# c\n! c\n\na=1\n b : 2 \nc  3\nd=x=y:z\ne=one \\\n   two\nf\\=g=h\\n\\u0041\ni=\nj=\\\\\nk = = v\n"
    assert parsed(text, "f") == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "x=y:z",
        "e": "one two",
        "f=g": "h\nA",
        "i": "",
        "j": "\\",
        "k": "= v",
    }


def test_secrets_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("pass=w=2\n")
    (tmp_path / "user").write_text("bob\n")
    given = {
        "a": "${env:X} and ${env:X}",
        "b": f"${{file:{tmp_path}/more:pass}}",
        "c": f"${{directory:{tmp_path}:user}}",
        "d": "$x",
    }
    assert resolved(given, "f", {"X": "1"}) == {"a": "1 and 1", "b": "w=2", "c": "bob", "d": "$x"}
    assert referred(given) == [tmp_path / "more", tmp_path / "user"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("${env:NIX}", "the variable NIX, which is not set"),
        ("${vault:a}", "unknown here"),
        ("${file:/nix:k}", "/nix cannot be read"),
        ("${directory:/:nix}", "/nix cannot be read"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(value: str, error: str) -> None:
    with pytest.raises(BadClientConfig, match=error):
        resolved({"sasl.password": value}, "f", {})


def test_both_clients_names() -> None:
    java = of(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", ssl_truststore_type="PEM", ssl_truststore_location="/ca",
              sasl_jaas_config=f'{JAAS} username="al\\"ice" password=\'p w\';')  # fmt: skip
    other = of(security_protocol="sasl_ssl", sasl_mechanisms="PLAIN", ssl_ca_location="/ca", sasl_username='al"ice',
               sasl_password="p w")  # fmt: skip
    assert java == other
    assert (java.username, java.password, java.ca_file) == ('al"ice', "p w", "/ca")


def test_what_else_is_taken() -> None:
    found = of(bootstrap_servers="a:1, b", client_id="me", request_timeout_ms="2000", connections_max_idle_ms="9")
    assert (found.bootstrap, found.client_id) == ((("a", 1), ("b", 9092)), "me")
    assert (found.request_timeout_ms, found.idle_ms) == (2000, 9)
    assert not of(security_protocol="SSL", ssl_endpoint_identification_algorithm="").checks_names
    assert not of(security_protocol="SSL", enable_ssl_certificate_verification="false").checks_certificates
    token = of(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
               sasl_oauthbearer_token_endpoint_url="file:///run/a%20b")  # fmt: skip
    assert token.token_file == "/run/a b"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"sasl.mechansm": "PLAIN"}, "no client setting sasl.mechansm here; did you mean sasl.mechanism?"),
        ({"linger.ms": "5"}, "linger.ms would have no effect: --commit-interval says how long records are gathered"),
        ({"ssl.ca.locatoin": "/ca"}, "did you mean ssl.ca.location"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites would have no effect: OpenSSL"),
        ({"sasl.kerberos.service.name": "kafka"}, "there is no Kerberos here"),
        ({"fetch.max.bytes": "10"}, "whole number from 1024"),
        ({"max.request.size": "5000", "message.max.bytes": "5000"}, "say the same"),
        ({"acks": "1"}, "acks would have no effect: every write waits"),
        ({"group.id": "x"}, "consumer group; leave it out"),
        ({"security.protocol": "TLS"}, "security.protocol cannot be used: it is one of PLAINTEXT, SSL"),
        ({"sasl.username": "bob"}, "sasl.username has no effect with security.protocol=PLAINTEXT; write SASL_SSL"),
        ({"ssl.ca.location": "/ca"}, "ssl.ca.location has no effect with security.protocol=PLAINTEXT; write SSL"),
        ({**SASL, "sasl.username": "a", "sasl.password": "secret", "ssl.ca.location": "/"}, "no effect .* write SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "SASL_SSL needs sasl.mechanism"),
        ({**SASL, "sasl.username": "bob"}, "PLAIN needs sasl.password"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "one of PLAIN, SCRAM"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs its token"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.command": "t", "sasl.password": "secret"},
         "sasl.password has no effect with sasl.mechanism=OAUTHBEARER"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://x/token"}, "file:///PATH here"),
        ({**SASL, "sasl.jaas.config": "secret"}, "sasl.jaas.config cannot be read: write MODULE"),
        ({**SASL, "sasl.jaas.config": f'{JAAS} username="a" password="secret" debug=true;'}, "the option debug"),
        ({**SASL, "sasl.jaas.config": f'{JAAS} username="a" password="b";', "sasl.username": "c"}, "say the same"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/a", "ssl.truststore.location": "/b"}, "say the same"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/a", "ssl.ca.pem": "b"}, "say the same"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "openssl pkcs12"),
        ({"security.protocol": "SSL", "ssl.key.location": "/k"}, "a key and no certificate"),
        ({"security.protocol": "SSL", "ssl.key.password": "secret"}, "opens no key"),
        ({"request.timeout.ms": "soon"}, "whole number from 100"),
        ({"bootstrap.servers": "a:b"}, "'a:b' is no HOST:PORT"),
    ],
)  # fmt: skip
def test_what_is_refused(values: dict[str, str], error: str) -> None:
    with pytest.raises(BadClientConfig, match=error) as raised:
        client_settings(values, "f")
    assert "secret" not in str(raised.value) and str(raised.value).startswith("f: ")


def test_lines_that_are_no_settings_are_refused_without_their_text() -> None:
    with pytest.raises(BadClientConfig, match="f, line 2: no NAME=VALUE") as raised:
        parsed("a=1\nsecret\n", "f")
    assert "secret" not in str(raised.value)
    with pytest.raises(BadClientConfig, match="line 2: a is given twice"):
        parsed("a=1\na=2\n", "f")


def test_a_secret_whose_file_comes_after_the_settings_that_name_it(tmp_path: Path) -> None:
    """Or is corrected then: the password before went on for ever, and the brokers no more took it."""
    config, place = tmp_path / "client.properties", tmp_path / "secrets"

    def name(file: str) -> None:
        lines = [f"{key}={value}\n" for key, value in SASL.items()]
        config.write_text("".join(lines) + f"sasl.username=bank\nsasl.password=${{file:{place}/{file}:password}}\n")

    place.mkdir()
    (place / "one").write_text("password=first\n")
    name("one")
    access = Access(config)
    name("two")
    assert access.options()["sasl_plain_password"] == "first"
    (place / "two").write_text("passwort=second\n")
    assert access.options()["sasl_plain_password"] == "first"
    (place / "two").write_text("password=second\n")
    assert access.options()["sasl_plain_password"] == "second"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_a_key_that_is_written_just_when_its_certificate_was_tried_without_it(tmp_path: Path) -> None:
    (own, key), (new, new_key) = certificate(tmp_path, "own"), certificate(tmp_path, "new")
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SSL\nssl.ca.location={own}\nssl.certificate.location={own}\nssl.key.location={key}\n"
    )
    access = Access(config)
    first = access.options()["ssl_context"]

    class WritesTheKey(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            Path(new_key).replace(key)

    handler, logger = WritesTheKey(), logging.getLogger("orchestrator.log")
    logger.addHandler(handler)
    try:
        Path(new).replace(own)
        assert access.options()["ssl_context"] is first
    finally:
        logger.removeHandler(handler)
    assert access.options()["ssl_context"] is not first


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
@pytest.mark.parametrize("text", ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_key_that_is_none_is_named_with_its_certificate(tmp_path: Path, text: str) -> None:
    own, _ = certificate(tmp_path, "own")
    key, config = tmp_path / "broken.key", tmp_path / "client.properties"
    key.write_text(text)
    config.write_text(f"security.protocol=SSL\nssl.certificate.location={own}\nssl.key.location={key}\n")
    with pytest.raises(BadClientConfig, match=r"own.pem\) cannot be used with its key \(.*broken.key\): ") as raised:
        Access(config)
    assert ".c:" not in str(raised.value) and "\n" not in str(raised.value)


def test_secrets_are_in_no_representation() -> None:
    assert "secret" not in repr(of(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="a",
                                   sasl_password="secret"))  # fmt: skip


def test_every_setting_stands_in_the_documentation() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/kafka.md").read_text()
    assert [name for name in (*known(), *refused()) if f"`{name}`" not in page] == []


@pytest.mark.kafka
def test_every_setting_of_javas_clients_is_taken_or_refused_with_a_reason(tmp_path: Path) -> None:
    """The names come out of Kafka's own classes."""
    program = java()
    if program is None:
        pytest.skip("needs Java, and none is in JAVA_HOME or on the path")
    (tmp_path / "Names.java").write_text(NAMES)
    try:
        command = [program, "-cp", f"{jars()}/*", str(tmp_path / "Names.java")]
    except BrokerUnusable as error:
        pytest.skip(str(error))
    names = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert len(names) > 100 and "linger.ms" in names
    assert [name for name in names if name not in known() and why(name) is None] == []
