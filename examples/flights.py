"""The flights of 2013 from New York: four questions, four subtopologies, exactly once.

(a) by carrier and hour of the day: how many flights, how late on average and at worst.
(b) by aircraft: where it is, how many legs today, what delay it carries over from the leg before; and an alert when its
    departure delay grows over three legs in a row. Re-keyed by carrier and tail number, so that all records of a key
    come from one source partition and keep their order.
(c) by origin and hour: flights joined with the weather; whichever side comes second writes.
(d) by airport, in windows of an hour: how late flights left, and the weather, which comes hours after them. Windows of a
    carrier at an airport close where its flights are in order; behind the re-key what closed is added up, in any order.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from orchestrator import App, ClosedWindow, Record, Sink, Table, Tumbling, TumblingTable

PARTITIONS = 8
# Behind a re-key records are as far out of order as the tasks that write them are apart. The tour plays months in a minute,
# and goes on from backlogs: there that is months. An app at the pace of its clocks would write an hour or so.
APART = timedelta(days=400)


class Flight(msgspec.Struct, frozen=True):
    """A scheduled flight. `id` is its rank by scheduled departure; `delay` is None for one that never left."""

    id: int
    carrier: str
    tail: str | None
    origin: str
    destination: str
    hour: str  # of the scheduled departure, UTC, as 2013-01-01T10
    local_hour: int
    delay: int | None
    arrival_delay: int | None


class Weather(msgspec.Struct, frozen=True):
    """An hour at an airport: wind in miles per hour, visibility in miles."""

    wind: float | None
    visibility: float | None


class Punctuality(msgspec.Struct):
    """(a), (d) `left` flights have a delay; the mean is minutes / left."""

    flights: int = 0
    left: int = 0
    minutes: int = 0
    worst: int | None = None

    def add(self, other: Punctuality) -> None:
        self.flights += other.flights
        self.left += other.left
        self.minutes += other.minutes
        if other.worst is not None:
            self.worst = other.worst if self.worst is None else max(self.worst, other.worst)


class Rotation(msgspec.Struct):
    """(b) `carried` minutes came with the aircraft from the leg before, the same day; `rises` legs in a row left later
    than the one before them."""

    day: str = ""
    airport: str = ""
    legs: int = 0
    carried: int = 0
    delay: int = 0
    arrival_delay: int = 0
    rises: int = 0


class Hour(msgspec.Struct):
    """(c) The classes once the weather is known; flights that wait for it."""

    wind: str | None = None
    visibility: str | None = None
    flights: int = 0
    minutes: int = 0
    waiting: list[tuple[int, int | None]] = []


class InWeather(msgspec.Struct, frozen=True):
    """(c) A flight in the weather it left in."""

    id: int
    wind: str
    visibility: str
    delay: int | None


class AirportHour(Punctuality):
    """(d) The classes of the weather, once it is there."""

    wind: str | None = None
    visibility: str | None = None


app = App("flights", partitions=PARTITIONS)

flights = app.topic("flights", key=str, value=Flight)  # by carrier
weather = app.topic("weather", key=str, value=Weather)  # by origin and hour, as "EWR 2013-01-01T10"
departures = app.topic("departures", key=str, value=int)  # the id of every flight counted in (a)
late_aircraft = app.topic("late-aircraft", key=str, value=Flight)
in_weather = app.topic("flights-in-weather", key=str, value=InWeather)
carriers_at_airport = app.topic("carriers-at-airport", key=str, value=Punctuality, partitions=4)  # by airport

punctuality = app.table(
    "punctuality", key=tuple[str, int], value=Punctuality, default=Punctuality, route=lambda key: key[0]
)
rotations = app.table("rotations", key=str, value=Rotation, default=Rotation)
hours = app.table("hours", key=str, value=Hour, default=Hour)
carrier_hours = app.table(
    "carrier-hours",
    key=tuple[str, str],  # carrier and airport
    value=Punctuality,
    default=Punctuality,
    route=lambda key: key[0],
    window=Tumbling(hours=1),
)
airport_hours = app.table(
    "airport-hours", key=str, value=AirportHour, default=AirportHour, window=Tumbling(hours=1), grace=APART
)


def of_one(delay: int | None) -> Punctuality:
    return Punctuality(1) if delay is None else Punctuality(1, 1, delay, delay)


@app.processor(flights, punctuality, departures)
def by_hour_of_day(
    flight: Record[str, Flight], punctuality: Table[tuple[str, int], Punctuality], departures: Sink[str, int]
) -> None:
    punctuality[flight.key, flight.value.local_hour].add(of_one(flight.value.delay))
    departures.send(flight.key, flight.value.id)


def aircraft(flight: Record[str, Flight]) -> str | None:
    return None if flight.value.tail is None else f"{flight.value.carrier} {flight.value.tail}"


by_aircraft = flights.rekey("by-aircraft", key=str, by=aircraft)


@app.processor(by_aircraft, rotations, late_aircraft)
def rotation(flight: Record[str, Flight], rotations: Table[str, Rotation], late_aircraft: Sink[str, Flight]) -> None:
    leg = flight.value
    if leg.delay is None:
        return  # it never left
    plane = rotations[flight.key]
    day = leg.hour[:10]
    same_day = plane.day == day
    plane.carried = max(0, plane.arrival_delay) if same_day and plane.airport == leg.origin else 0
    plane.rises = plane.rises + 1 if same_day and leg.delay > plane.delay else 0
    plane.legs = plane.legs + 1 if same_day else 1
    plane.day, plane.airport, plane.delay = day, leg.destination, leg.delay
    plane.arrival_delay = leg.arrival_delay or 0
    if plane.rises >= 2:
        late_aircraft.send(flight.key, leg)


def origin_and_hour(flight: Record[str, Flight]) -> str:
    return f"{flight.value.origin} {flight.value.hour}"


by_hour = flights.rekey("by-hour", key=str, by=origin_and_hour)


def wind_class(miles_per_hour: float | None) -> str:
    if miles_per_hour is None:
        return "unknown"
    return "calm" if miles_per_hour < 8 else "breeze" if miles_per_hour < 18 else "strong"


def visibility_class(miles: float | None) -> str:
    if miles is None:
        return "unknown"
    return "fog" if miles < 1 else "haze" if miles < 6 else "clear"


def note(hour: Hour, key: str, flight_id: int, delay: int | None, sink: Sink[str, InWeather]) -> None:
    """Both sides are there: count the flight in its weather."""
    hour.flights += 1
    hour.minutes += delay or 0
    sink.send(key, InWeather(flight_id, hour.wind or "unknown", hour.visibility or "unknown", delay))


@app.processor(by_hour, hours, in_weather)
def flight_meets_weather(
    flight: Record[str, Flight], hours: Table[str, Hour], flights_in_weather: Sink[str, InWeather]
) -> None:
    hour = hours[flight.key]
    if hour.wind is None:
        hour.waiting.append((flight.value.id, flight.value.delay))
    else:
        note(hour, flight.key, flight.value.id, flight.value.delay, flights_in_weather)


@app.processor(weather, hours, in_weather)
def weather_meets_flights(
    observed: Record[str, Weather], hours: Table[str, Hour], flights_in_weather: Sink[str, InWeather]
) -> None:
    hour = hours[observed.key]
    if hour.wind is not None:
        return  # observed twice: the first counts
    hour.wind, hour.visibility = wind_class(observed.value.wind), visibility_class(observed.value.visibility)
    for flight_id, delay in hour.waiting:
        note(hour, observed.key, flight_id, delay, flights_in_weather)
    hour.waiting = []


@app.processor(flights, carrier_hours)
def in_its_hour(flight: Record[str, Flight], carrier_hours: TumblingTable[tuple[str, str], Punctuality]) -> None:
    carrier_hours[flight.key, flight.value.origin].add(of_one(flight.value.delay))


@app.when_closed(carrier_hours, carriers_at_airport)
def to_the_airport(
    hour: ClosedWindow[tuple[str, str], Punctuality], carriers_at_airport: Sink[str, Punctuality]
) -> None:
    carriers_at_airport.send(hour.key[1], hour.value)  # carries the hour's last millisecond


@app.processor(carriers_at_airport, airport_hours)
def hour_of_a_carrier(carrier: Record[str, Punctuality], airport_hours: TumblingTable[str, AirportHour]) -> None:
    airport_hours[carrier.key].add(carrier.value)


weather_at_airport = weather.rekey("weather-at-airport", key=str, by=lambda observed: observed.key[:3], partitions=4)


@app.processor(weather_at_airport, airport_hours)
def late_weather(observed: Record[str, Weather], airport_hours: TumblingTable[str, AirportHour]) -> None:
    """However late it comes, its time is that of the hour it is of, and so is the window."""
    hour = airport_hours[observed.key]
    hour.wind, hour.visibility = wind_class(observed.value.wind), visibility_class(observed.value.visibility)
