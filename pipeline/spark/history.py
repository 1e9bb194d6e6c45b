"""History files (Parquet, JSON, CSV) as rows of a topic: columns `key`, `value`, `timestamp_ms`, and `offset` if known.

One rule: history comes before everything in the log, in the order of `offset`, or where there is none by time and then
by place in the files. A binary column holds the bytes as they are; text holds the value itself where the topic's type
is text, JSON otherwise; numbers and structs are what they are. What the topic's type cannot read stops the backfill.
Partitions are given by the same partitioner that producers use. The seq of a row of history is below 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.errors import WrongUse
from pipeline.codecs import Codec, codec_name
from pipeline.definitions import Topic
from pipeline.errors import CodecError
from pipeline.partitioner import partition_of
from pipeline.spark.source import Source
from workers.commands.produce import encoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}
FIRST_SEQ = -(1 << 40)
_PLACED = "pid int, timestamp_ms bigint, key binary, value binary, at bigint, file string, block bigint, line bigint"


class BadHistory(WrongUse):
    """History files that are not there, or do not hold records of their topic."""


class Encoding(msgspec.Struct, frozen=True):
    """How the columns of a topic's files become bytes: "bytes" as they are, "text", or "json"."""

    source: Source
    topic: str
    partitions: int
    key: str
    value: str


def files(patterns: Sequence[str]) -> list[str]:
    """The files that patterns name, in order. Raises BadHistory for a pattern that names none."""
    found: list[str] = []
    for pattern in patterns:
        matched = sorted(glob(pattern, recursive=True))  # noqa: PTH207 - a pattern may be absolute
        if not matched:
            raise BadHistory(f"no file is called {pattern}; name history files as TOPIC=PATTERN")
        found += matched
    unknown = [name for name in found if format_of(name) is None]
    if unknown:
        raise BadHistory(f"{unknown[0]}: history is read from {', '.join(sorted(FORMATS))} files")
    return [str(Path(name).absolute()) for name in dict.fromkeys(found)]


def format_of(name: str) -> str | None:
    suffixes = [suffix for suffix in Path(name).suffixes if suffix not in (".gz", ".bz2", ".zst")]
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _likeness(name: str) -> tuple[str, str]:
    """Format and types of a file: Spark reads files of one kind together, and takes the types of the first."""
    kind = str(format_of(name))
    if kind != "parquet":
        return kind, ""
    try:
        return kind, str(pq.read_schema(name).remove_metadata())
    except (OSError, pa.ArrowException) as error:
        raise BadHistory(f"{name} is no Parquet file ({error}); correct or leave it out") from None


def history_rows(
    session: SparkSession, shipped: Source, topic: Topic[Any, Any], partitions: int, names: Sequence[str]
) -> DataFrame:
    """The rows of the files, as in `rows.ROWS`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    placed: DataFrame | None = None
    alike: dict[tuple[str, str], list[str]] = {}
    for name in names:
        alike.setdefault(_likeness(name), []).append(name)
    for (kind, _), chosen in alike.items():
        frame = _placed(session, shipped, topic, partitions, kind, chosen)
        placed = frame if placed is None else placed.unionByName(frame)
    assert placed is not None
    source = Window.partitionBy("pid").orderBy(
        F.col("at").asc_nulls_last(), F.when(F.col("at").isNull(), F.col("timestamp_ms")), "file", "block", "line"
    )
    so_far = source.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return placed.select(
        "pid",
        F.max("timestamp_ms").over(so_far).alias("order_ms"),
        F.lit(topic.topic).alias("topic"),
        F.col("pid").alias("upstream"),
        (F.row_number().over(source).cast("bigint") + F.lit(FIRST_SEQ)).alias("seq"),
        "timestamp_ms",
        "key",
        "value",
        F.lit(None).cast("binary").alias("headers"),
    )


def _placed(
    session: SparkSession,
    shipped: Source,
    topic: Topic[Any, Any],
    partitions: int,
    kind: str,
    names: Sequence[str],
) -> DataFrame:
    """Encoded rows with their place in the files."""
    from pyspark.sql import functions as F

    reader = session.read.option("header", "true") if kind == "csv" else session.read
    frame: DataFrame = reader.format(kind).load(list(names))
    missing = [column for column in ("key", "value", "timestamp_ms") if column not in frame.columns]
    if missing:
        raise BadHistory(
            f"the history of '{topic.topic}' ({names[0]}) has no column '{missing[0]}', it has "
            f"{', '.join(frame.columns)}; give it key, value and timestamp_ms"
        )
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}

    def text(column: str) -> Any:
        found = F.col(column)
        if kinds[column] in ("binary", "string"):
            return found
        return (
            F.to_json(found, {"ignoreNullFields": "false"})
            if kinds[column] in ("struct", "map", "array")
            else found.cast("string")
        )

    job = Encoding(shipped, topic.topic, partitions, _way(kinds["key"]), _way(kinds["value"]))
    shaped = frame.select(
        text("key").alias("key"),
        text("value").alias("value"),
        F.col("timestamp_ms").cast("bigint").alias("timestamp_ms"),
        (F.col("offset").cast("bigint") if "offset" in kinds else F.lit(None).cast("bigint")).alias("at"),
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("line"),
    )
    return shaped.mapInArrow(partial(encode_rows, msgspec.json.encode(job).decode()), _PLACED)


def _way(kind: str) -> str:
    return {"binary": "bytes", "string": "text"}.get(kind, "json")


def encode_rows(job_text: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: columns to the bytes of the topic's types, and their partitions."""
    job = msgspec.json.decode(job_text, type=Encoding)
    app = job.source.load()
    topic = next(topic for topic in app.topics.values() if topic.topic == job.topic)
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        places = zip(columns["file"].to_pylist(), columns["timestamp_ms"].to_pylist(), strict=True)
        for file, at_ms in places:
            if at_ms is None:
                raise BadHistory(f"{file}: a record of '{job.topic}' has no timestamp_ms that is a whole number")
        keys = _encoded(topic.key_codec, job.key, columns["key"], job.topic, columns["file"])
        values = _encoded(topic.value_codec, job.value, columns["value"], job.topic, columns["file"])
        lines = columns["line"].to_pylist()
        pids = [partition_of(key, job.partitions, keyless=line) for key, line in zip(keys, lines, strict=True)]
        yield pa.RecordBatch.from_pydict(
            {
                "pid": pa.array(pids, pa.int32()),
                "timestamp_ms": columns["timestamp_ms"],
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                **{name: columns[name] for name in ("at", "file", "block", "line")},
            }
        )


def _encoded(codec: Codec[Any], way: str, column: pa.Array, topic: str, names: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = []
    for at, value in enumerate(column.to_pylist()):
        if value is None or way == "bytes":
            found.append(value)
            continue
        try:
            plain = value if way == "text" and codec_name(codec) == "str" else msgspec.json.decode(value)
            found.append(encoded(codec, plain))
        except (CodecError, WrongUse, msgspec.MsgspecError) as error:
            raise BadHistory(
                f"{names[at].as_py()}: {value!r} is no key or value of topic '{topic}': {error}; correct the file"
            ) from None
    return found
