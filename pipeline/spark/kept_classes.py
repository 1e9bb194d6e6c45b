"""Java's classes of Spark, kept in the user's cache: half of a small job is Java finding, reading and checking them anew.

One rule: it is a faster start and nothing else. Java looks by itself whether an archive fits it and its class path, and goes on
without one that does not; nothing is begun where the user has said how classes are shared, or where it could not succeed.
One start has Java write an archive as it ends; a later one finds that whole, gives it its name, and from then on it is used. With a
local master alone: elsewhere Java is not started from here. In the flow: `session` puts the options before the user's own.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from orchestrator.clocks import wall_ms
from pipeline.spark.properties import JAVA, conf_folder, spark_home
from state.private import FILE, make_file, make_folder
from state.user_cache import user_cache

logger = logging.getLogger("orchestrator.spark")
KEPT, DRAFT, LOCK = ".classes", ".draft", "written.lock"
THEIRS = re.compile(r"-Xshare|SharedArchive|ArchiveClasses|AOT")
CLASS_PATH = "spark.driver.extraClassPath"
FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")  # Java makes no archive with folders
QUIET = "-Xlog:disable -XX:+DisplayVMOutputToStderr"  # of what it thinks of single classes; standard output is ours
OLDEST, AT_ONCE = 17, 25  # from the second on also a Java that came without an archive of its own classes (JEP 514)
WRITTEN_MS = 10 * 60_000  # a draft that is older and not whole is of a Java that was killed
UNUSED_MS = 30 * 24 * 3_600_000
_locks: list[int] = []  # held until the process ends: one at a time has an archive written


class Version(NamedTuple):
    """The name of an archive, by the version of Java and of Spark, and the options of that Java which read and write it."""

    name: str
    read: str
    write: str


def options(java_home: Path | None, chosen: Mapping[str, str], *, may_write: bool) -> str:
    """What Java is started with, for `chosen` properties of Spark; nothing where there is neither an archive nor a reason to have
    one written, or where the cache cannot be used."""
    if THEIRS.search(chosen.get(JAVA, "")) or CLASS_PATH in chosen:
        return ""
    try:
        version = _version(java_home)
        if version is None:
            return ""
        folder = user_cache() / "java"
        make_folder(folder)
        kept = folder / f"{version.name}{KEPT}"
        _settle(folder, version.name, kept)
        if kept.exists():
            os.utime(kept)
            return f'"{version.read}{kept}" {QUIET}'
        if not may_write or _has_folders() or not _is_alone(folder, version.name):
            return ""
        draft = folder / f"{version.name}.{token_hex(4)}{DRAFT}"
        make_file(draft)  # for those that come while Java is at it, and we are gone
        return f'"{version.write}{draft}" {QUIET}'
    except (OSError, RuntimeError) as error:
        logger.info("Java's classes are not kept for the next start: %s", error)
        return ""


def is_writing() -> bool:
    """Whether the Java of this process is to write an archive of what it has loaded, as it ends."""
    return bool(_locks)


def _version(java_home: Path | None) -> Version | None:
    """By the release file beside Java, which changes with each update of it, and the jars of Spark."""
    found = shutil.which("java") if java_home is None else str(java_home / "bin" / "java")
    if found is None:
        return None
    java = Path(found).resolve()
    release = java.parent.parent / "release"
    words = release.read_text() if release.is_file() else ""
    major = re.search(r'JAVA_VERSION="(\d+)', words)
    if major is None or int(major[1]) < OLDEST:
        return None
    jars = spark_home() / "jars"
    known = f"{java}\n{words}\n{jars}\n{jars.stat().st_mtime_ns if jars.is_dir() else 0}"
    name = f"{major[1]}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    if int(major[1]) >= AT_ONCE:
        return Version(name, "-XX:AOTCache=", "-XX:AOTCacheOutput=")
    return Version(name, "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit=")


def _has_folders() -> bool:
    """Whether there are folders with files in the class path."""
    conf = conf_folder()
    return any(os.environ.get(name) for name in FOLDERS) or (conf.is_dir() and any(conf.iterdir()))


def _is_alone(folder: Path, name: str) -> bool:
    """Whether no other process has an archive of this version written, also not one that has just ended."""
    if any(folder.glob(f"{name}.*{DRAFT}*")):
        return False
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _locks.append(lock)
    return True


def _settle(folder: Path, name: str, kept: Path) -> None:
    """A draft that is whole gets its name; drafts of a Java that was killed, and archives that nobody uses any more, go."""
    now_ms = wall_ms()
    for path in folder.iterdir():
        is_draft, is_kept = DRAFT in path.name, path.suffix == KEPT
        if path.suffix == DRAFT and path.name.startswith(f"{name}.") and _is_whole(path):
            path.replace(kept)
        elif is_draft or (is_kept and path != kept):
            age_ms = now_ms - path.stat().st_mtime * 1000
            if age_ms > (WRITTEN_MS if is_draft else UNUSED_MS):
                path.unlink(missing_ok=True)


def _is_whole(draft: Path) -> bool:
    """Java writes the head of an archive as the last of it. It is on the disk before it is used."""
    with draft.open("rb") as file:
        if not any(file.read(4)):
            return False
        os.fsync(file.fileno())
    return True
