"""The properties that a Spark session begins with, and where each comes from.

One rule: what answers depend on is ours (`FIXED`); else --conf, then the user's spark-defaults.conf, then what suits jobs
of a laptop. Only a master on this machine is bound to the loopback: the executors of a cluster must reach the driver.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from orchestrator.errors import WrongUse
from workers.commands.cluster import Cluster

FIXED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
JAVA, PYTHON = "spark.driver.extraJavaOptions", "spark.pyspark.python"
EXECUTORS_JAVA = "spark.executor.extraJavaOptions"
# ORC has times without a zone, which Spark reads in that of each Java, whatever spark.sql.session.timeZone says.
ZONE = "-Duser.timezone=UTC"
DAEMON = "spark.python.daemon.module"
# On one machine jobs are short: the second compiler and parallel collectors cost more than they give (session 12 s -> 6 s
# on two busy cores).
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n
"""
DEFAULTS_FILE = "spark-defaults.conf"


def properties(cluster: Cluster, folder: Path, python_path: str) -> dict[str, str]:
    """All that is set. Raises WrongUse for a spark-defaults.conf that cannot be read."""
    theirs = {**users_defaults(), **cluster.conf}
    chosen = {**_defaults(cluster, folder, python_path), **theirs, **FIXED}
    if cluster.ui:
        chosen["spark.ui.enabled"] = "true"
    quiet = f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    ours = f"{SHORT_LIVED} {quiet}" if cluster.is_here else quiet
    chosen[JAVA] = (
        f"{ours} {theirs[JAVA]}" if JAVA in theirs else ours
    )  # of two that say the same, Java takes the later
    for name in (JAVA, EXECUTORS_JAVA):  # last, because answers depend on it
        chosen[name] = f"{chosen.get(name, '')} {ZONE}".strip()
    return chosen


def _defaults(cluster: Cluster, folder: Path, python_path: str) -> dict[str, str]:
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": python_path,
    }
    if cluster.is_here:
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
        }
    if cluster.is_in_driver:
        chosen[DAEMON] = "pipeline.spark.daemon"
    return chosen


def environment(cluster: Cluster, python_path: str) -> dict[str, str]:
    """What Spark's launcher and its Python workers are started with."""
    found = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path,
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    if cluster.is_here:
        # Of PYSPARK_PYTHON and spark-defaults.conf nothing counts here: they are of a cluster's machines.
        chosen = sys.executable if cluster.is_in_driver else cluster.conf.get(PYTHON, sys.executable)
        return found | {"PYSPARK_PYTHON": chosen, "SPARK_LOCAL_IP": "127.0.0.1"}
    named = {**users_defaults(), **cluster.conf}.get(PYTHON)  # which a session that Python starts does not look at
    if named is not None:
        found["PYSPARK_PYTHON"] = named
    elif "PYSPARK_PYTHON" not in os.environ:
        found["PYSPARK_PYTHON"] = sys.executable
    return found


def spark_home() -> Path:
    """Where Spark is installed."""
    return Path(os.environ.get("SPARK_HOME") or Path(str(find_spec("pyspark").origin)).parent)  # type: ignore[union-attr]


def conf_folder() -> Path:
    """Where Spark looks for its files of settings; it may not be there."""
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")


def users_defaults() -> dict[str, str]:
    """What the user's spark-defaults.conf says. Raises WrongUse."""
    path = conf_folder() / DEFAULTS_FILE
    if not path.is_file():
        return {}
    try:
        return parsed(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"cannot read {path}: {error}") from None


def parsed(text: str) -> dict[str, str]:
    """The properties of a text as Java reads it, as far as Spark's own examples use that: a line each, the key ends at
    the first space, = or :."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "!")):
            key, _, value = re.sub(r"\s*[\s=:]\s*", "\0", stripped, count=1).partition("\0")
            found[key] = value.strip()
    return found
