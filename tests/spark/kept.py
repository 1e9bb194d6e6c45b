"""A process that starts Spark as a command does, and prints whether its Java has an archive of classes: see test_kept_classes.py."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.spark.kept_classes import KEPT
from pipeline.spark.session import load_sql, spark_session, stop
from workers.commands.cluster import Cluster

if __name__ == "__main__":
    session = spark_session("kept", Cluster("local[2]"), is_for_tasks=True)
    try:
        pid = int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        maps = Path(f"/proc/{pid}/maps").read_text()
        load_sql(session)
    finally:
        stop(session)
    print(json.dumps({"kept": f"{KEPT}\n" in maps}))
