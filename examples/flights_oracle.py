"""What examples/flights.py must have come to, computed another way: Spark SQL over the raw files, no processor of ours.

One rule: nothing of the app's code decides what is expected. Aggregates and window functions over the csv files give
the expected tables and outputs; the live ones are read from the log (changelogs: the last value of each key).
Everything that was produced must have been processed. Checks are {"check", "expected", "found", "ok"}.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import json as pj
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from examples.flights_files import flights, only, weather
from pipeline.spark.log_source import log_frame

Check = dict[str, Any]
FLIGHT = (
    "id bigint, carrier string, tail string, origin string, destination string, hour string, local_hour int, "
    "delay int, arrival_delay int"
)
WEATHER = "wind double, visibility double"
PUNCTUALITY = "flights bigint, left bigint, minutes bigint, worst int"
ROTATION = "day string, airport string, legs bigint, carried bigint, delay bigint, arrival_delay bigint, rises bigint"
AIRPORT_HOUR = "flights bigint, left bigint, minutes bigint, worst int, wind string, visibility string"
HOUR = "wind string, visibility string, flights bigint, minutes bigint, waiting array<array<bigint>>"
IN_WEATHER = "id bigint, wind string, visibility string, delay int"
HOUR_MS = 3_600_000
ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "array<array<bigint>>": pa.list_(pa.list_(pa.int64())),
}


def verify(session: SparkSession, log_url: str) -> list[Check]:
    """All checks. Needs the data package (DataMissing); takes half a minute for the whole year."""
    with tempfile.TemporaryDirectory(prefix="stream-orchestrator-oracle-") as folder:
        oracle = Oracle(session, log_url, Path(folder))
        try:
            return oracle.checks()
        finally:
            oracle.close()


class Oracle:
    """Expected and found, side by side."""

    def __init__(self, session: SparkSession, log_url: str, folder: Path) -> None:
        self._session = session
        self._url = log_url
        self._cached: list[DataFrame] = []
        # Of what was sent, an id and a hash stay in memory: parsing the year again would cost more than all the rest.
        self._sent = self._kept(_sealed(self._json("flights", FLIGHT).drop("key"), "id"))
        self._observed = self._kept(self._json("weather", WEATHER).withColumn("key", F.col("key").cast("string")))
        pq.write_table(only(flights(), "id", self._sent), folder / "flights.parquet")
        pq.write_table(only(weather(), "key", self._observed), folder / "weather.parquet")
        self._flights = session.read.parquet(str(folder / "flights.parquet"))
        self._weather = session.read.parquet(str(folder / "weather.parquet"))
        self._legs = self._kept(_legs(self._flights))

    def checks(self) -> list[Check]:
        return [
            self._flights_sent(),
            self._weather_sent(),
            self._punctuality(),
            self._rotations(),
            self._hours(),
            self._airport_hours(),
            self._departures(),
            self._late_aircraft(),
            self._in_weather(),
        ]

    def close(self) -> None:
        for frame in self._cached:
            frame.unpersist()

    # ---- the input is the data

    def _flights_sent(self) -> Check:
        return _once("flights sent: every field", self._flights, self._sent, "id")

    def _weather_sent(self) -> Check:
        columns = ["key", "wind", "visibility"]
        return _multiset(
            "hours of weather sent: every field", self._weather.select(columns), self._observed.select(columns)
        )

    # ---- tables

    def _punctuality(self) -> Check:
        expected = self._flights.groupBy("carrier", "local_hour").agg(
            F.count("*").alias("flights"),
            F.count("delay").alias("left"),
            F.coalesce(F.sum("delay"), F.lit(0)).alias("minutes"),
            F.max("delay").alias("worst"),
        )
        live = self._table("punctuality", PUNCTUALITY)
        found = live.select(
            F.get_json_object("text", "$[0]").alias("carrier"),
            F.get_json_object("text", "$[1]").cast("int").alias("local_hour"),
            *_names(PUNCTUALITY),
        )
        return _keyed("punctuality by carrier and hour of the day", expected, found, ["carrier", "local_hour"])

    def _rotations(self) -> Check:
        newest = Window.partitionBy("plane").orderBy(F.desc("id"))
        expected = self._legs.withColumn("place", F.row_number().over(newest)).where("place = 1")
        expected = expected.select("plane", *_names(ROTATION))
        found = self._table("rotations", ROTATION).select(F.col("text").alias("plane"), *_names(ROTATION))
        return _keyed("rotations by aircraft", expected, found, ["plane"])

    def _hours(self) -> Check:
        by_hour = self._flights.groupBy(_at().alias("at")).agg(
            F.count("*").alias("count"),
            F.sum(F.coalesce("delay", F.lit(0))).alias("late"),
            F.sort_array(F.collect_list("id")).alias("ids"),
        )
        known = F.col("wind_class").isNotNull()
        none = F.lit(0).cast("bigint")
        expected = by_hour.join(self._classes(), "at", "full").select(
            "at",
            F.col("wind_class").alias("wind"),
            F.col("visibility_class").alias("visibility"),
            F.when(known, F.coalesce("count", none)).otherwise(none).alias("flights"),
            F.when(known, F.coalesce("late", none)).otherwise(none).alias("minutes"),
            F.when(known, F.array().cast("array<bigint>")).otherwise(F.col("ids")).alias("waiting"),
        )
        found = self._table("hours", HOUR).select(
            F.col("text").alias("at"),
            "wind",
            "visibility",
            "flights",
            "minutes",
            F.sort_array(F.transform("waiting", lambda pair: pair[0])).alias("waiting"),
        )
        return _keyed("hours by origin: flights, minutes, weather", expected, found, ["at"])

    def _airport_hours(self) -> Check:
        """An hour of a carrier counts as soon as a flight of its partition left in a later one: so the last may be open."""
        sent = self._topic("flights").select("partition", F.col("key").cast("string").alias("carrier"), "timestamp_ms")
        last = sent.groupBy("partition").agg(F.max("timestamp_ms").alias("last_ms"))
        reached = sent.select("partition", "carrier").distinct().join(last, "partition").drop("partition")
        flown = self._flights.select("*", _hour_ms("hour").alias("start_ms")).join(F.broadcast(reached), "carrier")
        by_airport = flown.where(F.col("start_ms") + HOUR_MS <= F.col("last_ms")).groupBy("origin", "start_ms")
        expected = by_airport.agg(
            F.count("*").alias("flights"),
            F.count("delay").alias("left"),
            F.coalesce(F.sum("delay"), F.lit(0)).alias("minutes"),
            F.max("delay").alias("worst"),
        )
        observed = self._classes().select(
            F.substring("at", 1, 3).alias("origin"),
            _hour_ms(F.substring("at", 5, 13)).alias("start_ms"),
            F.col("wind_class").alias("wind"),
            F.col("visibility_class").alias("visibility"),
        )
        expected = expected.join(observed, ["origin", "start_ms"], "full").fillna(0, ["flights", "left", "minutes"])
        return _keyed(
            "hours by airport: delays, late weather",
            expected,
            airport_hours(self._session, self._url),
            ["origin", "start_ms"],
        )

    # ---- outputs

    def _departures(self) -> Check:
        found = self._topic("departures").select(
            F.conv(F.hex("value"), 16, 10).cast("bigint").alias("id"), F.col("key").cast("string").alias("carrier")
        )
        return _once("flights counted exactly once", self._flights.select("id", "carrier"), found, "id")

    def _late_aircraft(self) -> Check:
        expected = self._legs.where("rises >= 2").select("id", "plane")
        found = self._json("late-aircraft", FLIGHT).select("id", F.col("key").cast("string").alias("plane"))
        return _once("late aircraft told exactly once", expected, found, "id")

    def _in_weather(self) -> Check:
        flights = self._flights.withColumn("at", _at())
        expected = flights.join(self._classes(), "at").select(
            "id", F.col("wind_class").alias("wind"), F.col("visibility_class").alias("visibility"), "delay"
        )
        found = self._json("flights-in-weather", IN_WEATHER).select(*_names(IN_WEATHER))
        return _once("flights in their weather exactly once", expected, found, "id")

    # ---- reading

    def _classes(self) -> DataFrame:
        """The weather of an hour; where it was observed twice, the first counts."""
        first = Window.partitionBy("key").orderBy("place")
        only = self._weather.withColumn("nth", F.row_number().over(first)).where("nth = 1")
        wind = F.when(F.col("wind") < 8, "calm").when(F.col("wind") < 18, "breeze").otherwise("strong")
        far = F.when(F.col("visibility") < 1, "fog").when(F.col("visibility") < 6, "haze").otherwise("clear")
        return only.select(
            F.col("key").alias("at"),
            F.when(F.col("wind").isNull(), "unknown").otherwise(wind).alias("wind_class"),
            F.when(F.col("visibility").isNull(), "unknown").otherwise(far).alias("visibility_class"),
        )

    def _topic(self, name: str) -> DataFrame:
        return log_frame(self._session, self._url, [name])

    def _json(self, name: str, schema: str) -> DataFrame:
        return _parsed(self._topic(name).select("key", "value"), "key binary", schema)

    def _table(self, name: str, schema: str) -> DataFrame:
        """A live table: the last value of each key (as text) in its changelog, without what was deleted."""
        rows = _last_values(self._session, self._url, name).select(F.col("key").cast("string").alias("text"), "value")
        return _parsed(rows, "text string", schema)

    def _kept(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.cache())
        return frame


def airport_hours(session: SparkSession, log_url: str) -> DataFrame:
    """The live windows. In the changelog a window's key is `w`, the eight bytes of its start, and the key."""
    rows = _last_values(session, log_url, "airport-hours").where("substring(key, 1, 1) = cast('w' as binary)")
    named = F.concat_ws(" ", F.conv(F.hex(F.substring("key", 2, 8)), 16, 10), F.substring("key", 10, 3).cast("string"))
    parsed = _parsed(rows.select(named.alias("at"), "value"), "at string", AIRPORT_HOUR)
    parts = F.split("at", " ")
    return parsed.select(parts[1].alias("origin"), parts[0].cast("bigint").alias("start_ms"), *_names(AIRPORT_HOUR))


def _last_values(session: SparkSession, log_url: str, table: str) -> DataFrame:
    rows = log_frame(session, log_url, [f"flights-{table}-changelog"]).groupBy("key")
    last = rows.agg(F.max(F.struct("offset", "value")).alias("last")).where("last.value is not null")
    return last.select("key", "last.value")


def _parsed(frame: DataFrame, first: str, schema: str) -> DataFrame:
    """The first column, and the fields of the JSON in the second. Arrow parses it: Spark's from_json takes ten times
    as long in a process that has just begun."""
    return frame.mapInArrow(partial(_parse, schema), f"{first}, {schema}")


def _parse(schema: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    fields = [column.split(" ", 1) for column in schema.split(", ")]
    wanted = pa.schema([(name, ARROW[kind]) for name, kind in fields])
    options = pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    for batch in batches:
        lines = b"\n".join(batch.column(1).to_pylist())
        if not lines:
            continue
        found = pj.read_json(io.BytesIO(lines), parse_options=options).combine_chunks()
        columns = [batch.column(0), *[found[name].combine_chunks() for name in wanted.names]]
        yield pa.RecordBatch.from_arrays(columns, names=[batch.schema.names[0], *wanted.names])


def _at() -> Column:
    return F.concat_ws(" ", "origin", "hour")


def _hour_ms(text: Column | str) -> Column:
    """2013-01-01T10, UTC, in milliseconds since 1970."""
    return F.unix_millis(F.to_timestamp(F.concat(text, F.lit(":00:00Z"))))


def _legs(flights: DataFrame) -> DataFrame:
    """Every leg that was flown, with what the aircraft's rotation is after it. A day is one of UTC."""
    flown = flights.where("tail is not null and delay is not null").select(
        "id",
        F.concat_ws(" ", "carrier", "tail").alias("plane"),
        F.substring("hour", 1, 10).alias("day"),
        "origin",
        F.col("destination").alias("airport"),
        F.col("delay").cast("bigint").alias("delay"),
        F.coalesce("arrival_delay", F.lit(0)).cast("bigint").alias("arrival_delay"),
    )
    today = Window.partitionBy("plane", "day").orderBy("id")
    before = {name: F.lag(name).over(today) for name in ("airport", "delay", "arrival_delay")}
    seen = flown.select(
        "*",
        F.row_number().over(today).cast("bigint").alias("legs"),
        F.when(before["airport"] == F.col("origin"), F.greatest(before["arrival_delay"], F.lit(0)))
        .otherwise(0)
        .cast("bigint")
        .alias("carried"),
        F.coalesce((F.col("delay") > before["delay"]).cast("bigint"), F.lit(0)).alias("rose"),
    )
    runs = seen.withColumn("run", F.sum(1 - F.col("rose")).over(today))
    in_run = Window.partitionBy("plane", "day", "run").orderBy("id")
    return runs.withColumn("rises", F.sum("rose").over(in_run))


# ---------------------------------------------------------------- comparing


def _names(schema: str) -> list[str]:
    return [column.split(" ")[0] for column in schema.split(", ")]


def _differs(columns: list[str]) -> Column:
    pairs = [~F.col(f"e.{name}").eqNullSafe(F.col(f"f.{name}")) for name in columns]
    return reduce(lambda one, other: one | other, pairs, F.lit(False))


def _keyed(what: str, expected: DataFrame, found: DataFrame, keys: list[str]) -> Check:
    """Every key is there, once, with every field as expected; and no other key is."""
    others = [name for name in expected.columns if name not in keys]
    marked = expected.withColumn("is_e", F.lit(1)).alias("e"), found.withColumn("is_f", F.lit(1)).alias("f")
    same = reduce(lambda one, other: one & other, [F.col(f"e.{name}").eqNullSafe(F.col(f"f.{name}")) for name in keys])
    both = marked[0].join(marked[1], same, "full")
    differ = F.col("is_e").isNull() | F.col("is_f").isNull() | _differs(others)
    counts = both.agg(F.count("is_e"), F.count("is_f"), F.count_if(differ)).collect()[0]
    return _check(what, counts[0], counts[1], counts[2] == 0, differ=counts[2])


def _once(what: str, expected: DataFrame, found: DataFrame, key: str) -> Check:
    """Every expected key was written once, with the fields expected (by their hash)."""
    wanted = _sealed(expected, key).withColumnRenamed("seal", "wanted").hint("shuffle_hash")
    written = (found if "seal" in found.columns else _sealed(found, key)).groupBy(key)
    both = wanted.join(written.agg(F.count("*").alias("times"), F.max("seal").alias("seal")), key, "full")
    is_there, is_wanted = F.col("times").isNotNull(), F.col("wanted").isNotNull()
    counts = both.agg(
        F.count("wanted"),
        F.coalesce(F.sum("times"), F.lit(0)),
        F.count_if(~is_there),
        F.coalesce(F.sum(F.when(is_wanted, F.col("times") - 1)), F.lit(0)),
        F.count_if(~is_wanted),
        F.count_if(is_there & is_wanted & (F.col("seal") != F.col("wanted"))),
    ).collect()[0]
    counted = dict(zip(("lost", "doubled", "strange", "differ"), counts[2:], strict=True))
    return _check(what, counts[0], counts[1], not any(counted.values()), **counted)


def _sealed(frame: DataFrame, key: str) -> DataFrame:
    """The key, and a hash of all other columns, by name; null is not the same as nothing."""
    others = sorted(name for name in frame.columns if name != key)
    cells = [F.coalesce(F.col(name).cast("string"), F.lit("\0")) for name in others]
    return frame.select(key, F.xxhash64(*cells, F.lit(0)).alias("seal"))


def _multiset(what: str, expected: DataFrame, found: DataFrame) -> Check:
    columns = expected.columns
    sides = [
        frame.groupBy(*columns).agg(F.count("*").alias("times")).alias(side)
        for side, frame in (("e", expected), ("f", found))
    ]
    same = reduce(
        lambda one, other: one & other, [F.col(f"e.{name}").eqNullSafe(F.col(f"f.{name}")) for name in columns]
    )
    counts = (
        sides[0]
        .join(sides[1], same, "full")
        .agg(
            F.coalesce(F.sum("e.times"), F.lit(0)),
            F.coalesce(F.sum("f.times"), F.lit(0)),
            F.count_if(~F.col("e.times").eqNullSafe(F.col("f.times"))),
        )
        .collect()[0]
    )
    return _check(what, counts[0], counts[1], counts[2] == 0, differ=counts[2])


def _check(what: str, expected: int, found: int, ok: bool, **more: int) -> Check:
    return {"check": what, "expected": expected, "found": found, "ok": ok, **more}
