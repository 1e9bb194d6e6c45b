"""Delays by airport and hour of the flights example, counted another way: plain dicts over what was sent.

The tour judges the whole year through kills and scalings, by Spark SQL (`examples.flights_oracle`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from examples import flights as example
from examples.demo.events import LATEST_HOURS, arrival_ms
from examples.flights_data import Event
from orchestrator import Window
from orchestrator.testing import Driver
from pipeline.values.partitioner import partition_of

HOUR_MS = 3_600_000
BEGIN_MS = int(datetime(2013, 11, 3, tzinfo=UTC).timestamp()) * 1000
HOURS = 30
AIRPORTS = ("EWR", "JFK", "LGA")
CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E")


def name_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H")


def drawn(seed: int) -> list[Event]:
    """A day and some hours, as it arrives; each carrier flies at the end, so that all hours before are over."""
    draw = random.Random(seed)
    found = []
    for number in range(600):
        at_ms = BEGIN_MS + draw.randrange(HOURS * HOUR_MS)
        origin, carrier = draw.choice(AIRPORTS), draw.choice(CARRIERS)
        delay = draw.choice([None, -3, 0, 5, 40, 200])
        value = example.Flight(number, carrier, None, origin, "BOS", name_of(at_ms), 0, delay, None)
        found.append(Event("flights", carrier, value, at_ms))
    end_ms = BEGIN_MS + HOURS * HOUR_MS
    for number, carrier in enumerate(CARRIERS, 600):
        value = example.Flight(number, carrier, None, "EWR", "BOS", name_of(end_ms), 0, 1, None)
        found.append(Event("flights", carrier, value, end_ms))
    for hour in range(HOURS):
        for airport in AIRPORTS:
            if draw.random() < 0.9:  # some hours were not observed
                at_ms = BEGIN_MS + hour * HOUR_MS
                weather = example.Weather(draw.choice([None, 3.0, 10.0, 25.0]), draw.choice([None, 0.5, 3.0, 10.0]))
                found.append(Event("weather", f"{airport} {name_of(at_ms)}", weather, at_ms))
    return sorted(found, key=arrival_ms)


def expected(events: list[Event]) -> dict[tuple[str, int], list[object]]:
    delays: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    weather: dict[tuple[str, int], tuple[str, str]] = {}
    for event in events:
        start_ms = event.timestamp_ms // HOUR_MS * HOUR_MS
        if isinstance(event.value, example.Flight):
            if event.timestamp_ms < BEGIN_MS + HOURS * HOUR_MS:
                delays[event.value.origin, start_ms].append(event.value.delay)
        else:
            wind, far = event.value.wind, event.value.visibility
            weather[event.key[:3], start_ms] = (
                "unknown" if wind is None else {3: "calm", 10: "breeze", 25: "strong"}[int(wind)],
                "unknown" if far is None else {0: "fog", 3: "haze", 10: "clear"}[int(far)],
            )
    rows: dict[tuple[str, int], list[object]] = {}
    for place in delays.keys() | weather.keys():
        left = [delay for delay in delays[place] if delay is not None]
        rows[place] = [
            len(delays[place]),
            len(left),
            sum(left),
            max(left, default=None),
            *weather.get(place, (None, None)),
        ]
    return rows


def send(driver: Driver, events: list[Event]) -> None:
    topics: dict[str, Any] = {"flights": example.flights, "weather": example.weather}
    for event in events:
        driver.send(topics[event.topic], event.key, event.value, timestamp_ms=event.timestamp_ms)


def table(driver: Driver) -> dict[tuple[str, int], list[object]]:
    rows: dict[tuple[str, Window], example.AirportHour] = driver.table(example.airport_hours)
    assert all(window.end_ms - window.start_ms == HOUR_MS for _, window in rows)
    return {
        (airport, window.start_ms): [row.flights, row.left, row.minutes, row.worst, row.wind, row.visibility]
        for (airport, window), row in rows.items()
    }


def test_hours_of_airports_have_their_flights_and_the_weather_that_came_later() -> None:
    for seed in range(3):
        events = drawn(seed)
        with Driver(example.app) as driver:
            send(driver, events)
            assert table(driver) == expected(events)
            assert driver.late(example.carrier_hours) == driver.late(example.airport_hours) == 0


def test_tasks_that_are_months_apart_count_the_same() -> None:
    """Live, one task may have sent all it has before another begins."""
    events = drawn(9)
    draw = random.Random(9)
    with Driver(example.app) as driver:
        for partition in draw.sample(range(example.PARTITIONS), example.PARTITIONS):
            send(
                driver,
                [
                    e
                    for e in events
                    if e.topic == "flights" and partition_of(e.key.encode(), example.PARTITIONS) == partition
                ],
            )
        weather = [event for event in events if event.topic == "weather"]
        send(driver, draw.sample(weather, len(weather)))
        assert table(driver) == expected(events) and driver.late(example.airport_hours) == 0


def test_weather_comes_up_to_five_hours_after_its_hour() -> None:
    weather = [event for event in drawn(1) if event.topic == "weather"]
    late = {(arrival_ms(event) - event.timestamp_ms) // HOUR_MS for event in weather}
    assert late == set(range(LATEST_HOURS + 1))
    assert [arrival_ms(event) for event in weather] == sorted(arrival_ms(event) for event in weather)
