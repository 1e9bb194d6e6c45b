"""The tour's check, in a process of its own: Spark SQL over the input, against the live tables and outputs.

One rule: a check that could not run is a check that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.flights_oracle import airport_hours, verify
from pipeline.spark.log_source import log_frame
from pipeline.spark.session import spark_session
from workers.commands.cluster import LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUTS = ("departures", "late-aircraft", "flights-in-weather")


def counts(session: SparkSession, url: str) -> dict[str, Any]:
    """Records in and out, by ids."""
    ids = "cast(conv(hex(value), 16, 10) as bigint) id"
    log_frame(session, url, ["departures"]).selectExpr(ids).createOrReplaceTempView("departures")
    flights = log_frame(session, url, ["flights"]).selectExpr("get_json_object(cast(value as string), '$.id') id")
    flights.selectExpr("cast(id as bigint) id").createOrReplaceTempView("flights")
    row = session.sql(
        """select (select count(*) from flights) as flights, count(distinct id) as counted,
                  count(*) - count(distinct id) as doubled,
                  (select count(*) from flights left anti join departures using (id)) as lost
           from departures"""
    ).first()
    assert row is not None
    sizes = {name: log_frame(session, url, [name]).count() for name in ("weather", *OUTPUTS)}
    return {
        "in": row["flights"] + sizes["weather"],
        "counted": row["counted"],
        "lost": row["lost"],
        "doubled": row["doubled"],
        "outputs": {name: sizes[name] for name in OUTPUTS},
    }


def delays(session: SparkSession, url: str) -> list[dict[str, Any]]:
    """By airport: all its hours, and the one with the most minutes of delay, in its weather."""
    airport_hours(session, url).createOrReplaceTempView("airport_hours")
    rows = session.sql(
        """select origin, count(*) as hours, sum(flights) as flights, sum(left) as left, sum(minutes) as minutes,
                   count(wind) as observed, max_by(struct(start_ms, flights, left, minutes, wind, visibility), minutes) as worst
            from airport_hours where flights > 0 group by origin order by origin"""
    )
    return [row.asDict(recursive=True) for row in rows.collect()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    session = spark_session("flights-oracle", LOCAL)
    try:
        checks = verify(session, f"sqlite:{args.log}")
        counted = counts(session, f"sqlite:{args.log}")
        by_airport = delays(session, f"sqlite:{args.log}")
    finally:
        session.stop()
    args.out.write_text(json.dumps({"checks": checks, "counts": counted, "delays": by_airport}))
    print(f"{sum(check['ok'] for check in checks)} of {len(checks)} checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
