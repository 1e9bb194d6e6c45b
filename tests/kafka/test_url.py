"""URLs of Kafka logs: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from state.log.kafka.url import BadUrl, parse


def test_what_a_url_names() -> None:
    found = parse("kafka://a:1,b,[::1]:3?prefix=x-&transaction-timeout=5&topic.segment.ms=200")
    assert list(found.brokers) == [("a", 1), ("b", 9092), ("::1", 3)]
    assert (found.prefix, found.transaction_timeout_s, found.topic_settings) == ("x-", 5.0, {"segment.ms": "200"})
    assert parse("kafka://h/").prefix == parse("kafka://h?prefix=").prefix == ""
    assert list(parse("kafka://[fe80::1%eth0],[::2]:5").brokers) == [("fe80::1%eth0", 9092), ("::2", 5)]
    assert parse("kafka://h?compression=LZ4&config=/a%20b").compression == "lz4"
    assert parse("kafka://h?compression=LZ4&config=/a%20b").config == "/a b"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://", "write kafka://HOST:PORT"),
        ("kafka://h:x", "'h:x' is no HOST:PORT"),
        ("kafka://h:0", "no HOST:PORT"),
        ("kafka://h:70000", "no HOST:PORT"),
        ("kafka://[::1", "no HOST:PORT"),
        ("kafka://::1", "is written .ADDRESS.:PORT"),
        ("kafka://a,[::1]x:3", "no HOST:PORT"),
        ("kafka://h:1#x", "no HOST:PORT"),
        ("kafka://user@h", "no HOST:PORT"),
        ("kafka://h/topic", "'h/topic' is no HOST:PORT"),
        ("kafka://h?prefx=a", "no option 'prefx'"),
        ("kafka://h?compression=rar", "'rar' is no compression; write none, gzip, snappy, lz4, zstd"),
        ("kafka://h?topic.cleanup.policy=delete", "leave out topic.cleanup.policy"),
        ("kafka://h?transaction-timeout=never", "1 to 900 seconds"),
        ("kafka://h?transaction-timeout=5&transaction-timeout=6", "transaction-timeout is given twice"),
        ("kafka://h?topic.retention.ms=5&topic.retention.ms=5", "topic.retention.ms is given twice"),
        ("kafka://h?config", "config names no file"),
    ],
)
def test_what_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadUrl, match="(?i)" + said):
        parse(url)
