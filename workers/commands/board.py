"""`orchestrator board`: the Grafana board that comes with the package."""

from __future__ import annotations

from importlib.resources import files

from orchestrator.cli.arguments import Parser


def run(argv: list[str]) -> int:
    """Runs `orchestrator board`; its exit code."""
    parser = Parser("board", "Print a Grafana board of the metrics of `run --metrics-port`, to be imported there.")
    parser.parse_args(argv)
    print(files("workers.metrics").joinpath("board.json").read_text(), end="")
    return 0
