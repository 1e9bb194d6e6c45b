"""The count of `benchmarks/streaming_apps.py` in Spark's Structured Streaming: run by `benchmarks/structured_streaming.py`.

One rule: it imports nothing of ours, because it runs in the Python that STREAMING_PYTHON names, whose pyspark has a Kafka connector of
its own version. It reads commands, a line each (`run TOPIC OUT`, `drain TOPIC OUT`), answers in lines of JSON, and ends when its input ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

STORES = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = f"{STORES}RocksDBStateStoreProvider"
MEMORY = f"{STORES}HDFSBackedStateStoreProvider"
FORMS = {"groupby": ROCKSDB, "groupby-memory": MEMORY, "python": ROCKSDB}


def session(form: str, cores: int, partitions: int) -> SparkSession:
    settings = {
        "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": FORMS[form],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(form)
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def counted(events: DataFrame, form: str) -> DataFrame:
    """A row with the count of each key that a micro-batch has, as text."""
    keys = events.select(col("key").cast("string").alias("key"))
    if form != "python":
        return keys.groupBy("key").count().select("key", col("count").cast("string").alias("value"))
    grouped: Any = keys.groupBy("key")
    counts: DataFrame = grouped.applyInPandasWithState(
        add_up, "key string, value string", "count long", "update", "NoTimeout"
    )
    return counts


def add_up(key: Any, batches: Iterator[Any], state: Any) -> Iterator[Any]:
    pd: Any = importlib.import_module("pandas")  # of the Python that runs this, not of ours
    count = (state.get[0] if state.exists else 0) + sum(len(batch) for batch in batches)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "value": [str(count)]})


def start(spark: SparkSession, args: argparse.Namespace, topic: str, out: str) -> Any:
    """The query from `topic` to `out`; where it has run before, it goes on at its checkpoint."""
    brokers = "kafka.bootstrap.servers"
    source = spark.readStream.format("kafka").option(brokers, args.broker).option("subscribe", topic)
    events = source.option("startingOffsets", "earliest").load()
    sink = counted(events, args.form).writeStream.format("kafka").option(brokers, args.broker).option("topic", out)
    return sink.option("checkpointLocation", f"{args.checkpoints}/{topic}").outputMode("update").start()


def say(what: str) -> None:
    print(json.dumps({"what": what, "version": pyspark.__version__}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A count by key in Structured Streaming, from Kafka to Kafka.")
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--checkpoints", required=True, help="their folder")
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers need what this Python has
    spark = session(args.form, args.cores, args.partitions)
    say("ready")
    running = []
    for line in sys.stdin:
        what, topic, out = line.split()
        query = start(spark, args, topic, out)
        if what == "drain":
            query.processAllAvailable()
            query.stop()
            say("drained")
        else:
            running.append(query)
    for query in running:
        query.stop()
    say("stopped")
    spark.stop()


if __name__ == "__main__":
    main()
