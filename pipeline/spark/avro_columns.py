"""The columns of Avro files of several schemas: those of all, as Spark by itself merges them for Parquet and ORC.

One rule: no column of any file is lost: Spark's reader of Avro takes the schema of one file, and what others have besides would be gone
without a word. The schema of a file stands in its head; files with the same one are asked for its columns once. A column of two types is
an error of Spark's, as it is for Parquet. In the flow: `sources` reads a path -> here.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.spark.one_file import one_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

AT_ONCE = 16  # heads of files elsewhere, each of which is a request


def of_all(session: SparkSession, path: str) -> StructType | None:
    """None where all files have one schema, which Spark finds by itself. Raises what Spark raises."""
    from pyspark.sql.types import StructType

    files = sorted(session.read.format("avro").load(path).inputFiles())
    if len(files) < 2:
        return None
    with ThreadPoolExecutor(AT_ONCE) as threads:
        heads = list(threads.map(partial(_head, session), files))
    first = dict(zip(reversed(heads), reversed(files), strict=True))  # a file of each
    if len(first) == 1:
        return None
    names = [one_file(str(_path(session, file).toString())) for file in first.values()]
    kinds = [session.read.format("avro").load(name)._jdf.schema() for name in names]
    merged, *others = kinds
    for other in others:
        merged = merged.merge(other, True)
    return StructType.fromJson(json.loads(merged.json()))


def _head(session: SparkSession, file: str) -> str:
    """The schema of a file, as it stands there."""
    java: Any = session.sparkContext._jvm
    conf: Any = session.sparkContext._jsc.hadoopConfiguration()
    seen = java.org.apache.avro.mapred.FsInput(_path(session, file), conf)
    try:
        reader = java.org.apache.avro.generic.GenericDatumReader()
        return str(java.org.apache.avro.file.DataFileReader.openReader(seen, reader).getSchema().toString())
    finally:
        seen.close()


def _path(session: SparkSession, file: str) -> Any:
    """Spark lists files as addresses, in which a space is %20."""
    java: Any = session.sparkContext._jvm
    return java.org.apache.hadoop.fs.Path(java.java.net.URI(file))
