"""Client settings that Kafka's clients know and nothing here would go by: why each is refused. Pure.

One rule: a setting without effect is refused with what to write instead, never taken in silence: its user believes that it
acts. Used by `client_settings`.
"""

from __future__ import annotations

_DEALT = "the orchestrator deals partitions, not the broker"
_BYTES = "records are bytes here; the app says the types of its topics"
_UNTIL_IT_IS_KNOWN = (
    "a request is tried again until its outcome is known, or the transaction has timed out "
    "(kafka://HOST:PORT?transaction-timeout=SECONDS)"
)
_GATHERED = "--commit-interval says how long records are gathered: what a commit has for a partition is one batch"
_COMMAND = "sasl.oauthbearer.token.command fetches a token in any way"
_METRICS = "docs/metrics.md says what is measured, and how it is read"
_OPENSSL = "OpenSSL of this machine decides it"
_LEVEL = "a codec has one level here; compression.type chooses the codec"
_TLS = (
    "cipher.suites",
    "curves.list",
    "enabled.protocols",
    "keymanager.algorithm",
    "protocol",
    "provider",
    "secure.random.implementation",
    "sigalgs.list",
    "trustmanager.algorithm",
)
_TOKEN = (
    "assertion.algorithm",
    "assertion.claim.aud",
    "assertion.claim.exp.seconds",
    "assertion.claim.iss",
    "assertion.claim.jti.include",
    "assertion.claim.nbf.seconds",
    "assertion.claim.sub",
    "assertion.file",
    "assertion.private.key.file",
    "assertion.private.key.passphrase",
    "assertion.template.file",
    "client.credentials.client.id",
    "client.credentials.client.secret",
    "clock.skew.seconds",
    "expected.audience",
    "expected.issuer",
    "header.urlencode",
    "jwks.endpoint.refresh.ms",
    "jwks.endpoint.retry.backoff.max.ms",
    "jwks.endpoint.retry.backoff.ms",
    "jwks.endpoint.url",
    "jwt.retriever.class",
    "jwt.validator.class",
    "scope",
    "scope.claim.name",
    "sub.claim.name",
)
_WHY = {
    "group.id": "the application's id is its consumer group",
    "group.instance.id": _DEALT,
    "group.protocol": _DEALT,
    "group.remote.assignor": _DEALT,
    "partition.assignment.strategy": _DEALT,
    "client.rack": "records are read from leaders; --zone says where an instance is",
    "session.timeout.ms": "--session-timeout says it",
    "heartbeat.interval.ms": "--heartbeat says it",
    "max.poll.interval.ms": "--release-timeout and --max-call say it",
    "max.poll.records": "a worker processes what it has fetched until it commits: --commit-interval",
    "default.api.timeout.ms": "--log-timeout says how long an instance waits for its log",
    "transaction.timeout.ms": "kafka://HOST:PORT?transaction-timeout=SECONDS says it",
    "transactional.id": "each worker has one of its own",
    "transaction.two.phase.commit.enable": "a transaction is ended by the commit that began it",
    "enable.auto.commit": "positions are committed with the records that they stand for",
    "auto.commit.interval.ms": "positions are committed with the records that they stand for: --commit-interval",
    "auto.offset.reset": "the app says where it begins to read a topic",
    "isolation.level": "committed records alone are read",
    "enable.idempotence": "every producer is idempotent",
    "acks": "every write waits for all in-sync replicas",
    "max.in.flight.requests.per.connection": "a writer sends one request for each leader, and waits for the answer",
    "linger.ms": _GATHERED,
    "queue.buffering.max.ms": _GATHERED,
    "batch.size": _GATHERED,
    "batch.num.messages": _GATHERED,
    "buffer.memory": "what is gathered is committed, not queued: --commit-interval",
    "max.block.ms": _UNTIL_IT_IS_KNOWN,
    "retries": _UNTIL_IT_IS_KNOWN,
    "delivery.timeout.ms": _UNTIL_IT_IS_KNOWN,
    "message.timeout.ms": _UNTIL_IT_IS_KNOWN,
    "retry.backoff.ms": "a refused request is sent again after 1 ms, then up to 20 ms, a broker that is away is tried every 100 ms",
    "fetch.min.bytes": "an answer is sent as soon as there is a record: latency comes first",
    "fetch.max.wait.ms": "a long poll takes 100 ms, so that what is added to it need not wait",
    "fetch.wait.max.ms": "a long poll takes 100 ms, so that what is added to it need not wait",
    "check.crcs": "the broker checks a batch when it is written, and TLS or TCP on the way",
    "exclude.internal.topics": "topics are read by their names",
    "allow.auto.create.topics": "topics are created at the start, and no other ones",
    "metadata.max.age.ms": "brokers are asked for leaders when one of them says that it is none, or is away",
    "metadata.max.idle.ms": "brokers are asked for leaders when one of them says that it is none, or is away",
    "bootstrap.controllers": "brokers are asked, never controllers: bootstrap.servers",
    "client.dns.lookup": "every address of a name is tried in turn",
    "send.buffer.bytes": "the kernel sizes the buffers of its connections",
    "receive.buffer.bytes": "the kernel sizes the buffers of its connections",
    "compression.level": _LEVEL,
    "compression.gzip.level": _LEVEL,
    "compression.lz4.level": _LEVEL,
    "compression.zstd.level": _LEVEL,
    "config.providers": "${env:NAME}, ${file:PATH:KEY} and ${directory:PATH:NAME} work as they are",
    "interceptor.classes": "no class of Java is loaded",
    "security.providers": "no class of Java is loaded",
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "enable.metrics.push": _METRICS,
    "metric.reporters": _METRICS,
    "processing.guarantee": "the app says its guarantee",
    "application.id": "the app says its id",
    "num.stream.threads": "--workers says it",
    "state.dir": "--state-dir says it",
    "sasl.client.callback.handler.class": "no class of Java is loaded",
    "ssl.truststore.password": "a PEM file of certificates has none",
    "ssl.keystore.password": "a PEM file has none; ssl.key.password opens an encrypted key",
    "ssl.engine.factory.class": "no class of Java is loaded",
    **{f"ssl.{name}": _OPENSSL for name in _TLS},
    **{f"sasl.oauthbearer.{name}": _COMMAND for name in _TOKEN},
}
_OF_PREFIXES = {
    "sasl.kerberos.": "there is no Kerberos here: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER are the mechanisms",
    "sasl.login.": _COMMAND,
    "metrics.": _METRICS,
    "partitioner.": "a record's partition is that of its key, as Java's default partitioner has it",
    "share.": "the app has a consumer group, no share group",
    "reconnect.backoff.": "a broker that is away is tried every 100 ms",
    "retry.backoff.": "a refused request is sent again after 1 ms, then up to 20 ms",
    "socket.connection.setup.timeout.": "request.timeout.ms bounds a connection, too",
    "metadata.recovery.": "where no broker that is known answers, those of --log are asked again",
    "internal.": "it is for Kafka's own clients",
}


def why(name: str) -> str | None:
    """None where Kafka's clients do not know it either, as far as is known here."""
    if name in _WHY:
        return _WHY[name]
    return next((text for prefix, text in _OF_PREFIXES.items() if name.startswith(prefix)), None)


def refused() -> tuple[str, ...]:
    """The names, and beginnings of names with a star, of all that have a reason."""
    return (*_WHY, *(f"{prefix}*" for prefix in _OF_PREFIXES))
