"""URLs of Kafka logs: `kafka://host:port[,host:port ...][?name=value&...]`. Pure.

One rule: an option that is not known is refused, never ignored. `prefix` goes before every name on the cluster, so that
several logs may share it; `transaction-timeout` is in seconds; `topic.NAME` is a setting of topics that are created;
`config` is a file of client settings, `compression` is of the batches that are written.
"""

from __future__ import annotations

from collections import Counter
from urllib.parse import parse_qsl

from state.errors import StateError
from state.log.kafka.client_settings import address, codec_name
from state.log.kafka.cluster import TRANSACTION_TIMEOUT_S, KafkaOptions

_TOPIC = "topic."


class BadUrl(StateError):
    """A URL of a Kafka log that cannot be understood."""

    exit_code = 2


def parse(url: str) -> KafkaOptions:
    """Raises BadUrl."""
    # By hand: urllib's own refuses several addresses with an IPv6 one among them, or takes them, by its version.
    where, _, query = url.partition("://")[2].partition("?")
    brokers = [_broker(url, one) for one in where.removesuffix("/").split(",") if one]
    if not brokers:
        raise BadUrl(f"{url}: write kafka://HOST:PORT, or several with commas between them")
    prefix, timeout_s, topic_settings, config = "", TRANSACTION_TIMEOUT_S, dict[str, str](), ""
    compression = ""
    options = parse_qsl(query, keep_blank_values=True)
    for name, count in Counter(name for name, _ in options).items():
        if count > 1:
            raise BadUrl(f"{url}: {name} is given twice; keep one of them")
    for name, value in options:
        if name == "prefix":
            prefix = value
        elif name == "transaction-timeout":
            timeout_s = _seconds(url, value)
        elif name == "config":
            config = value.strip()
            if not config:
                raise BadUrl(f"{url}: config names no file; name one, or leave it out")
        elif name == "compression":
            compression = _codec(url, value)
        elif name == f"{_TOPIC}cleanup.policy":
            raise BadUrl(
                f"{url}: leave out {name}: changelogs are compacted, and no other topics are; it says what a topic is for"
            )
        elif name.startswith(_TOPIC):
            topic_settings[name.removeprefix(_TOPIC)] = value
        else:
            raise BadUrl(
                f"{url}: no option '{name}'; there are prefix, config, compression, transaction-timeout, topic.SETTING"
            )
    return KafkaOptions(brokers, prefix, timeout_s, topic_settings, config, compression)


def _broker(url: str, text: str) -> tuple[str, int]:
    try:
        return address(text)
    except ValueError as error:
        raise BadUrl(f"{url}: {error}") from None


def _codec(url: str, text: str) -> str:
    try:
        return codec_name(text)
    except ValueError as error:
        raise BadUrl(f"{url}: {error}") from None


def _seconds(url: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= 900:
        raise BadUrl(f"{url}: transaction-timeout is 1 to 900 seconds, not '{text}'")
    return found
