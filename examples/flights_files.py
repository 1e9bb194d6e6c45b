"""The raw files of the flights example as Arrow tables, for the oracle: no code of the app or of its producer reads them.

One rule: only the csv files decide what comes out; `only` leaves out what was not produced.
"""

from __future__ import annotations

import io
import zipfile

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import DataFrame

from examples.flights_data import data_folder


def flights() -> pa.Table:
    """Flights with the rank by scheduled departure as id; the file is in another order, and ties keep the file's."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        names = ["time_hour", "minute", "hour", "carrier", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
        rows = _csv(file.read(), names)
    place = pa.array(range(rows.num_rows), pa.int64())
    keys = pa.table({"hour": rows["time_hour"], "minute": _number(rows["minute"]), "place": place})
    order = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])
    ranked = rows.take(order)
    return pa.table(
        {
            "id": place,
            "carrier": ranked["carrier"],
            "tail": ranked["tailnum"],
            "origin": ranked["origin"],
            "destination": ranked["dest"],
            "hour": pc.utf8_slice_codeunits(ranked["time_hour"], 0, 13),
            "local_hour": _number(ranked["hour"]),
            "delay": _number(ranked["dep_delay"]),
            "arrival_delay": _number(ranked["arr_delay"]),
        }
    )


def weather() -> pa.Table:
    rows = _csv((data_folder() / "weather.csv").read_bytes(), ["origin", "time_hour", "wind_speed", "visib"])
    hour = pc.utf8_slice_codeunits(rows["time_hour"], 0, 13)
    return pa.table(
        {
            "key": pc.binary_join_element_wise(rows["origin"], hour, " "),
            "wind": pc.cast(rows["wind_speed"], pa.float64()),
            "visibility": pc.cast(rows["visib"], pa.float64()),
            "place": pa.array(range(rows.num_rows), pa.int64()),
        }
    )


def only(rows: pa.Table, key: str, produced: DataFrame) -> pa.Table:
    """The rows whose key was produced."""
    found = produced.select(key).distinct().toArrow()[key].combine_chunks()
    return rows.filter(pc.is_in(rows[key], value_set=found))


def _number(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.cast(column, pa.float64()), pa.int32())


def _csv(data: bytes, columns: list[str]) -> pa.Table:
    """Columns of a csv file as text; NA is null."""
    options = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        null_values=["NA", ""],
        strings_can_be_null=True,
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options)
