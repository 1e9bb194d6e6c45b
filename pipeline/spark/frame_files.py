"""The rows of a DataFrame in Parquet files, where the one reader of files finds each value as Spark has it.

One rule: how a session writes Parquet is not the caller's here: an instant stays one (as INT96, which Spark writes by default, it had no
zone any more), to the microsecond, and a day is that of the calendar. What Parquet has in parts alone is written as its text.
In the flow: a query, a table, a DataFrame of a notebook -> here -> `history`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import WrongUse
from pipeline.spark.set_to import set_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

AS_THEY_ARE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
VARIANT, TEXT = "variant", ("interval", "time(")  # as Spark names types


def write(frame: DataFrame, folder: Path) -> None:
    """By the executors. Raises WrongUse for a column whose values have no form in a record, and what Spark raises."""
    with set_to(frame.sparkSession, AS_THEY_ARE):
        readable(frame).write.parquet(str(folder))


def readable(frame: DataFrame) -> DataFrame:
    """With variants as JSON, and intervals and times of a day as text. Raises WrongUse for one inside of another type."""
    from pyspark.sql import functions as F

    texts = {}
    for field in frame.schema:
        name = field.dataType.simpleString()
        column = F.col(f"`{field.name.replace('`', '``')}`")
        if name == VARIANT:
            texts[field.name] = F.to_json(column)
        elif name.startswith(TEXT):
            texts[field.name] = column.cast("string")
        elif found := _inside(field.dataType):
            raise WrongUse(
                f"column '{field.name}' has a value of the type {found} in it, which is none of JSON; select its text, as "
                "with to_json or cast(... as string)"
            )
    return frame.withColumns(texts) if texts else frame


def _inside(kind: DataType) -> str:
    """The name of a type in it that Parquet has in parts alone; "" for none."""
    name = kind.simpleString()
    if name == VARIANT or name.startswith(TEXT):
        return name
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    return next((found for part in parts if (found := _inside(part))), "")
