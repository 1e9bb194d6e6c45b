"""`orchestrator spark pack`: what goes into the archive, and that its Python finds it in any folder. Without Spark."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from orchestrator.errors import WrongUse
from pipeline.spark.packing import _is_elsewhere, needed, pack, run
from pipeline.spark.properties import environment
from workers.commands.cluster import Cluster


def test_what_executors_need_and_nothing_else() -> None:
    found = set(needed())
    assert {"msgspec", "rocksdict", "aiokafka", "pyarrow", "numpy", "pandas", "cramjam"} <= found
    assert not {"pyspark", "py4j", "stream-orchestrator", "pytest", "mypy", "faust-streaming"} & found
    assert set(needed(["Hypothesis"])) - found == {"hypothesis", "sortedcontainers"}
    with pytest.raises(WrongUse, match="--with no-such-thing: it is not installed here"):
        needed(["no_such.thing"])


def test_what_any_of_several_extras_needs_goes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `extra == "all" or extra == "http"` the first alone was looked at."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, requirement in (
        ("lib-a", "lib-b[http]"),
        ("lib-b", 'lib-c ; extra == "all" or extra == "http"'),
        ("lib-c", ""),
    ):
        facts = tmp_path / f"{name.replace('-', '_')}-1.dist-info/METADATA"
        facts.parent.mkdir()
        facts.write_text(f"Name: {name}\nVersion: 1\n" + (f"Requires-Dist: {requirement}\n" if requirement else ""))
    assert set(needed(["lib-a"])) - set(needed()) == {"lib-a", "lib-b", "lib-c"}
    assert set(needed(["lib-b"])) - set(needed()) == {"lib-b"}


@pytest.mark.parametrize("name", ["", "requests>=2", "httpx[http2]", "../requests"])
def test_what_is_no_name_of_a_distribution_is_refused(name: str) -> None:
    with pytest.raises(WrongUse, match="name a distribution alone"):
        needed([name])


def test_its_python_finds_the_packages_wherever_it_is_unpacked(tmp_path: Path) -> None:
    small = {name: needed()[name] for name in ("msgspec", "pytz")}
    count = pack(tmp_path / "env.tar.gz", small)
    with tarfile.open(tmp_path / "env.tar.gz") as archive:
        assert len([name for name in archive.getnames() if name.startswith("lib/")]) == count
        archive.extractall(tmp_path / "somewhere")
    here = tmp_path / "somewhere"
    code = "import msgspec, os; print(msgspec.json.encode(1), msgspec.__file__, os.environ['PYTHONPATH'])"
    done = subprocess.run(
        ["./somewhere/bin/python", "-c", code],
        cwd=tmp_path,
        env={"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin", "PYTHONPATH": "first"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["b'1'", str(here / "lib/msgspec/__init__.py"), f"first:{here / 'lib'}"]
    pack(tmp_path / "again.tar.gz", small)
    assert (tmp_path / "again.tar.gz").read_bytes() == (tmp_path / "env.tar.gz").read_bytes()


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"write FILE\.tar\.gz"):
        run(["pack", "--out", str(tmp_path / "env.zip")])
    with pytest.raises(WrongUse, match="cannot be written"):
        pack(tmp_path / "none" / "env.tar.gz", {})
    ours = metadata.distribution("stream-orchestrator")
    if _is_elsewhere(ours):
        with pytest.raises(WrongUse, match="install it as a wheel"):
            pack(tmp_path / "env.tar.gz", {"stream-orchestrator": ours})
    assert not list(tmp_path.iterdir())


def test_the_python_that_a_property_names_is_that_of_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark looks at it in spark-submit alone, and not where Python starts the session."""
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    there = Cluster("spark://10.0.0.5:7077", {"spark.pyspark.python": "./environment/bin/python"})
    assert environment(there, "")["PYSPARK_PYTHON"] == "./environment/bin/python"
    here = Cluster("local-cluster[1,1,1024]", {"spark.pyspark.python": "./environment/bin/python"})
    assert environment(here, "")["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert environment(Cluster("local-cluster[1,1,1024]"), "")["PYSPARK_PYTHON"] == sys.executable
