"""Columns that stand in the names of folders (`day=2026-01-31/code=007`), for the formats that Spark reads.

One rule: what stands in a name is text, as a cell of CSV: it comes to the app as it stands, but where a field of the topic's type wants
a number. Spark by itself would make a number of each column whose names all look like one, and `007` would be 7.
In the flow: `sources` reads a path -> here -> a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.files.columns import fields_of
from pipeline.files.shape import Reading, Shape
from pipeline.spark.set_to import set_to
from pipeline.values.codecs import JsonCodec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INFERRED = "spark.sql.sources.partitionColumnTypeInference.enabled"


def as_they_stand(session: SparkSession, load: Callable[..., DataFrame], reading: Reading, shape: Shape) -> DataFrame:
    """What `load` gives, with the columns of folders as text but for numbers in fields of the value. To know what Spark makes of these
    it need not look into every file: `load(is_merged=False)`."""
    with set_to(session, {INFERRED: "true"}):
        guessed = load(is_merged=False)
    with set_to(session, {INFERRED: "false"}):
        found = load()
    kinds = {field.name: field.dataType for field in guessed.schema}
    for field in found.schema:
        kind = kinds.get(field.name, field.dataType)
        if (
            field.dataType.simpleString() == "string"
            and kind != field.dataType
            and _wants_number(field.name, reading, shape)
        ):
            found = found.withColumn(field.name, found[field.name].cast(kind))
    return found


def _wants_number(name: str, reading: Reading, shape: Shape) -> bool:
    codec: Any = reading.value
    is_own = name in (shape.key, shape.value, shape.timestamp, shape.headers, shape.partition)
    if is_own or not shape.flat or shape.value or not isinstance(codec, JsonCodec):
        return False
    field = (fields_of(codec.type) or {}).get(name)
    return field is not None and field.is_number
