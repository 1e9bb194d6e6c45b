"""Jars of Maven Central that a test's cluster needs and PySpark does not bring: fetched once, by Ivy, which it does bring."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

from state.log.kafka import broker
from state.user_cache import user_cache

SPARK = Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]


def version_beside(name: str) -> str:
    """The version of a jar that PySpark brings."""
    return next((SPARK / "jars").glob(f"{name}-*.jar")).stem.rpartition("-")[2]


def fetched(name: str, *modules: tuple[str, str, str, list[str]]) -> Path:
    """The folder with the jars of modules: group, name, version, and options of Ivy's. Raises CalledProcessError."""
    folder = user_cache() / name
    if (folder / "complete").exists():
        return folder
    ivy = next((SPARK / "jars").glob("ivy-*.jar"))
    for group, module, version, also in modules:
        command = [
            str(broker.java()),
            "-jar",
            str(ivy),
            "-dependency",
            group,
            module,
            version,
            "-confs",
            "default",
            *also,
        ]
        command += ["-cache", str(user_cache() / "ivy"), "-types", "jar", "bundle"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    (folder / "complete").touch()
    return folder
