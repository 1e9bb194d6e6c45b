"""The Spark that a command works on, from its options: --master, --conf, --packages and --ui.

One rule: what is named here is passed on as it is; what Spark must have for right answers cannot be named (`FIXED`).
In the flow: options -> Cluster -> `pipeline.spark.session`, or the instances of `run --on spark`.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import msgspec

from orchestrator.cli.arguments import Parser, checked
from orchestrator.errors import WrongUse

RETRIES = 4  # tries of a task of local[N]; Spark has one there, and four on clusters
DEFAULT_MASTER = f"local[2,{RETRIES}]"
PACKAGES = "spark.jars.packages"
IN_DRIVER = re.compile(r"local($|\[)")  # masters without an executor but the Java of the driver
THIS_MACHINE = ("local", "spark://127.0.0.1:", "spark://localhost:")
FIXED = MappingProxyType(
    {
        "spark.master": "--master names it",
        "spark.app.name": "it is the command and its app",
        "spark.sql.session.timeZone": "times of records are UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "rows go to Python as Arrow",
    }
)


class Cluster(msgspec.Struct, frozen=True):
    """Where jobs run, and what Spark is set up with besides."""

    master: str = DEFAULT_MASTER
    conf: dict[str, str] = {}
    ui: bool = False

    @property
    def is_here(self) -> bool:
        """Whether all of it is on this machine."""
        return self.master.startswith("local")

    @property
    def is_in_driver(self) -> bool:
        """Whether all of it is one Java process: not so of `local-cluster[...]`, whose executors get our packages as others do."""
        return bool(IN_DRIVER.match(self.master))

    @property
    def spans_machines(self) -> bool:
        """Whether executors may be on other machines than the driver: no port of the loopback leads there."""
        return bool(self.master) and not self.master.startswith(THIS_MACHINE)


LOCAL = Cluster()


def add_cluster(parser: Parser, default: str | None = DEFAULT_MASTER) -> None:
    """The options; a command whose master depends on more has None as default."""
    if default is not None:
        parser.setting("master", default=default, help="Spark's master")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        type=checked(_pair),
        help="a property of Spark, such as spark.executor.memory=4g; may be given several times",
    )
    parser.add_argument(
        "--packages", metavar="GROUP:NAME:VERSION,...", type=checked(_packages), help="jars for Spark, fetched by it"
    )
    parser.add_argument("--ui", action="store_true", help="serve Spark's own page of jobs while it runs")


def cluster_of(args: Any) -> Cluster:
    """Raises WrongUse."""
    conf = dict(args.conf)
    if args.packages:
        if PACKAGES in conf:
            raise WrongUse(f"--packages and --conf {PACKAGES} name the same; keep one of them")
        conf[PACKAGES] = args.packages
    return Cluster(args.master or "", conf, args.ui)


def refuse_without_spark(args: Any) -> None:
    """Raises WrongUse where an option is of no use, because nothing runs on Spark."""
    given = ["--conf"] * bool(args.conf) + ["--packages"] * bool(args.packages) + ["--ui"] * bool(args.ui)
    if given:
        raise WrongUse(f"{given[0]} has no effect here: it is for instances on Spark; add --on spark or leave it out")


def _packages(text: str) -> str:
    if not text.strip():
        raise WrongUse("an empty text names no jar; write GROUP:NAME:VERSION, or leave it out")
    return text


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark.") or key != key.strip():
        raise WrongUse(f"'{text[:80]}' is no property of Spark; write spark.NAME=VALUE")
    if key in FIXED:
        raise WrongUse(f"{key} cannot be set: {FIXED[key]}")
    return key, value
