"""Settings of a session for the time of a `with` block.

One rule: afterwards they are as they were: the session may be the user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def set_to(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """See the module."""
    before = {key: session.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, kept in before.items():
            if kept is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, kept)
