"""What all tests share: the switch that rewrites scenario files (never in CI), a console, a Spark session."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.brokers import NONE
from tests.cli.console import Console
from tests.units import SESSION, SHARED, scheduler, unit_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected part of scenario files")


# No property is judged by the clock: Hypothesis fails an example of 200 ms, and data that comes slowly, which on a loaded
# machine is any of them.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

ROOT = Path(__file__).resolve().parent.parent
# Objects: at Python's 700 the collector takes a tenth of what a process with thousands of tests uses.
COLLECT_EVERY = 20_000
PACKAGES = ("orchestrator", "workers", "state", "pipeline", "examples", "tests")


def pytest_configure(config: pytest.Config) -> None:
    """Compile our modules once. Where PYTHONDONTWRITEBYTECODE is set, as images of containers do, each of the thousands of
    processes that tests start would compile them anew: half of what its start takes. What pytest makes of the tests' own
    modules is kept, too: otherwise each process of a run makes it anew, two thirds of what its collection takes."""
    if not hasattr(config, "workerinput"):  # in the process that starts the others, before it does
        for package in PACKAGES:
            compileall.compile_dir(ROOT / package, quiet=2)
    sys.dont_write_bytecode = False
    gc.set_threshold(COLLECT_EVERY, 20, 20)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell that starts a run in the background has it ignore Ctrl-C, and with it all that is interrupted in a test.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


WAITS = ("spark", "processes", "kafka")


def _is_alone(item: pytest.Item) -> bool:
    """Whether it would start a session that others have: half a minute of a core, and nothing else would tell."""
    return "spark" in getattr(item, "fixturenames", ()) and unit_of(item.nodeid) != SESSION


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares something that is dear to start comes first, as it is one process's; then files whose tests start
    processes, and simulations: what is left for the end is short, so that no process of the run waits for another's long
    file. `--no-loadscope-reorder` keeps this order."""
    alone = [item.nodeid for item in items if _is_alone(item)]
    if alone:
        raise pytest.UsageError(f"they ask for what others share, and tests/units.py does not see that: {alone[:3]}")
    long = {
        item.path for item in items if any(map(item.get_closest_marker, WAITS)) or "simulation" in item.path.parent.name
    }
    items.sort(key=lambda item: (unit_of(item.nodeid) not in SHARED, item.path not in long))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: a file is one process's, or all files that share something."""
    return scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line where tests on brokers were skipped: a run without them is as green as one with them, and with `-q` as short."""
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.getreports("skipped")]
    if found := [reason for reason in reasons if NONE in reason]:
        why = found[0].partition(NONE)[2]
        terminalreporter.write_line(f"tests on Kafka brokers were skipped ({len(found)}): {why}", yellow=True)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    wanted = bool(request.config.getoption("--rewrite"))
    if wanted and os.environ.get("CI"):
        pytest.fail("--rewrite is refused in CI")
    return wanted


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A folder with the bank in it, and the command line."""
    found = Console(tmp_path / "place").bank()
    yield found
    found.close()


# To compile each query takes a fifth of what these tests use, for some rows. What commands run by themselves is compiled.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
SPARK = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2", **INTERPRETED}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for the whole run: it takes seconds to start. Tests that need it are marked `spark`."""
    from pipeline.spark.session import spark_session, stop
    from workers.commands.cluster import Cluster

    # Slots: each has a Python of its own, which imports all there is. With eight, two cores were busy with that a quarter of the time.
    session = spark_session("tests", Cluster("local[3,4]"), settings=SPARK)
    yield session
    stop(session)
    stop(session)  # it was stopped by its owner: nothing happens
