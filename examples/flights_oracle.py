"""The independent judge of the flights example: Spark SQL over the input, against live tables and outputs.

One rule: nothing of the app's processors is used here; aggregates and window functions say what should be there, every
key and every field, and ids (not sums) say what was counted. A check is {"check", "expected", "found", "ok"}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.spark.log_source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT = (
    "id bigint, carrier string, tail string, origin string, destination string, hour string, local_hour int, "
    "delay int, arrival_delay int"
)
PUNCTUALITY = "flights bigint, left bigint, minutes bigint, worst bigint"
ROTATION = "day string, airport string, legs bigint, carried bigint, delay bigint, arrival_delay bigint, rises bigint"
HOUR = "wind string, visibility string, flights bigint, minutes bigint, waiting array<array<bigint>>"

EXPECTED_PUNCTUALITY = """
select to_json(array(carrier, cast(local_hour as string))) as key, count(*) as flights, count(delay) as left,
       coalesce(sum(delay), 0) as minutes, max(delay) as worst
from flights group by carrier, local_hour"""

LEGS = """
select *, row_number() over (partition by key, run order by id) - 1 as rises from (
  select *, sum(case when rose then 0 else 1 end) over (partition by key order by id) as run from (
    select key, id, day, destination as airport, delay, coalesce(arrival_delay, 0) as arrival_delay,
           row_number() over (partition by key, day order by id) as legs,
           coalesce(lag(day) over w = day and delay > lag(delay) over w, false) as rose,
           case when lag(day) over w = day and lag(destination) over w = origin
                then greatest(0, coalesce(lag(arrival_delay) over w, 0)) else 0 end as carried
    from (select *, concat(carrier, ' ', tail) as key, substring(hour, 1, 10) as day
          from flights where tail is not null and delay is not null)
    window w as (partition by key order by id)))"""

EXPECTED_ROTATIONS = """
select key, day, airport, legs, carried, delay, arrival_delay, rises from (
  select *, row_number() over (partition by key order by id desc) as latest from legs) where latest = 1"""

OBSERVED = """
select key, case when wind is null then 'unknown' when wind < 8 then 'calm' when wind < 18 then 'breeze'
                 else 'strong' end as wind,
       case when visibility is null then 'unknown' when visibility < 1 then 'fog' when visibility < 6 then 'haze'
            else 'clear' end as visibility
from (select *, row_number() over (partition by key order by offset) as nth from weather) where nth = 1"""

EXPECTED_HOURS = """
select coalesce(f.key, o.key) as key, o.wind, o.visibility,
       case when o.key is null then 0 else coalesce(f.flights, 0) end as flights,
       case when o.key is null then 0 else coalesce(f.minutes, 0) end as minutes,
       case when o.key is null then f.flights else 0 end as waiting
from (select concat(origin, ' ', hour) as key, count(*) as flights, coalesce(sum(delay), 0) as minutes
      from flights group by origin, hour) f
full outer join observed o on f.key = o.key"""

EXPECTED_IN_WEATHER = """
select id, wind, visibility, delay from flights join observed on observed.key = concat(origin, ' ', hour)"""


def verify(session: SparkSession, log_url: str) -> list[dict[str, Any]]:
    """Every check over everything that is in the log now."""
    _views(session, log_url)
    return [
        _same(
            session, "punctuality by carrier and hour of the day, every key", EXPECTED_PUNCTUALITY, "live_punctuality"
        ),
        _same(session, "rotation of every aircraft, every key", EXPECTED_ROTATIONS, "live_rotations"),
        _same(session, "flights and delays by hour and weather, every key", EXPECTED_HOURS, "live_hours"),
        _once(session, "each flight counted exactly once", "select id from flights", "select id from departures"),
        _once(
            session,
            "each alert exactly once",
            "select id from legs where rises >= 2",
            "select id from late_aircraft",
        ),
        _once(session, "each flight in its weather exactly once", EXPECTED_IN_WEATHER, "select * from in_weather"),
    ]


def counts(session: SparkSession, log_url: str) -> dict[str, Any]:
    """Records in and out; `verify` comes first (it makes the views)."""
    flights = session.sql("select count(*) from flights").first()
    weather = session.sql("select count(*) from weather").first()
    row = session.sql(
        "select count(distinct id) as counted, count(*) - count(distinct id) as doubled from departures"
    ).first()
    lost = session.sql("select count(*) from flights left anti join departures using (id)").first()
    assert flights and weather and row and lost
    outputs = {}
    for topic, view in (
        ("departures", "departures"),
        ("late-aircraft", "late_aircraft"),
        ("flights-in-weather", "in_weather"),
    ):
        found = session.sql(f"select count(*) from {view}").first()
        assert found
        outputs[topic] = found[0]
    return {
        "in": flights[0] + weather[0],
        "counted": row["counted"],
        "lost": lost[0],
        "doubled": row["doubled"],
        "outputs": outputs,
    }


def _views(session: SparkSession, log_url: str) -> None:
    session.dataSource.register(LogSource)

    def topic(name: str) -> DataFrame:
        return session.read.format(LogSource.name()).option("log", log_url).option("topics", name).load()

    def parsed(name: str, schema: str) -> DataFrame:
        raw = topic(name).selectExpr("cast(key as string) key", "offset", "cast(value as string) text")
        return raw.selectExpr("key", "offset", f"from_json(text, '{schema}') value").select("key", "offset", "value.*")

    def table(name: str, schema: str) -> DataFrame:
        changes = topic(f"flights-{name}-changelog")
        last = changes.groupBy("partition", "key").agg({"offset": "max"}).withColumnRenamed("max(offset)", "offset")
        kept = changes.join(last, ["partition", "key", "offset"]).where("value is not null")
        text = kept.selectExpr("cast(key as string) key", "cast(value as string) text")
        return text.selectExpr("key", f"from_json(text, '{schema}') value").select("key", "value.*")

    views = {
        "flights": parsed("flights", FLIGHT).drop("key", "offset"),
        "weather": parsed("weather", "wind double, visibility double"),
        "departures": topic("departures").selectExpr("cast(conv(hex(value), 16, 10) as bigint) id"),
        "late_aircraft": parsed("late-aircraft", FLIGHT).select("id"),
        "in_weather": parsed("flights-in-weather", "id bigint, wind string, visibility string, delay int").drop(
            "key", "offset"
        ),
        "live_rotations": table("rotations", ROTATION),
        "live_hours": table("hours", HOUR).selectExpr(
            "key", "wind", "visibility", "flights", "minutes", "size(waiting) waiting"
        ),
        "live_punctuality": table("punctuality", PUNCTUALITY).selectExpr(
            "to_json(array(get_json_object(key, '$[0]'), get_json_object(key, '$[1]'))) key",
            *("flights", "left", "minutes", "worst"),
        ),
    }
    for name, frame in views.items():
        frame.persist().createOrReplaceTempView(name)
    session.sql(LEGS).persist().createOrReplaceTempView("legs")
    session.sql(OBSERVED).persist().createOrReplaceTempView("observed")


def _same(session: SparkSession, check: str, expected: str, live: str) -> dict[str, Any]:
    """Both have the same keys, and the same fields under each."""
    wanted = session.sql(expected)
    names = ", ".join(wanted.columns)
    wanted.createOrReplaceTempView("wanted")
    row = session.sql(
        f"""select (select count(*) from wanted) as wanted, (select count(*) from {live}) as found,
            (select count(*) from (select {names} from wanted except all select {names} from {live})) as missing,
            (select count(*) from (select {names} from {live} except all select {names} from wanted)) as extra"""
    ).first()
    assert row
    found = f"{row['found']} keys" + (
        f", {row['missing']} missing or different, {row['extra']} unexpected" if row["missing"] or row["extra"] else ""
    )
    ok = row["wanted"] > 0 and row["wanted"] == row["found"] and not row["missing"] and not row["extra"]
    return {"check": check, "expected": f"{row['wanted']} keys", "found": found, "ok": bool(ok)}


def _once(session: SparkSession, check: str, expected: str, found: str) -> dict[str, Any]:
    """The same rows, each exactly as often (once)."""
    row = session.sql(
        f"""with wanted as ({expected}), got as ({found})
            select (select count(*) from wanted) as wanted, (select count(*) from got) as got,
                   (select count(*) from (select * from wanted except all select * from got)) as lost,
                   (select count(*) from (select * from got except all select * from wanted)) as doubled"""
    ).first()
    assert row
    text = f"{row['got']}" + (
        f", {row['lost']} lost, {row['doubled']} doubled or wrong" if row["lost"] or row["doubled"] else ""
    )
    ok = row["wanted"] > 0 and not row["lost"] and not row["doubled"]
    return {"check": check, "expected": str(row["wanted"]), "found": text, "ok": bool(ok)}
