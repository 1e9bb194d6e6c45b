"""How the tour is shown: rich on a terminal, plain lines otherwise; nothing but JSON on stdout with --json."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from orchestrator.clocks import monotonic_s


class Show:
    """Lines with the time since the start."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._started = monotonic_s()
        self._console: Any = None
        if not quiet and sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)

    def step(self, number: int, text: str) -> None:
        """A step begins."""
        self._print(f"{number}. {text}", "bold")

    def note(self, text: str) -> None:
        """Something happened."""
        self._print(f"   {text}", None)

    def _print(self, text: str, style: str | None) -> None:
        stamp = f"{monotonic_s() - self._started:6.1f} s  "
        if self._quiet:
            print(stamp + text, file=sys.stderr, flush=True)
        elif self._console is not None:
            self._console.print(f"[dim]{stamp}[/dim]", end="")
            self._console.print(text, style=style, markup=False)
        else:
            print(stamp + text, flush=True)

    def report(self, report: dict[str, Any]) -> None:
        """The report, as lines."""
        for line in report_lines(report):
            if self._console is not None:
                style = "red" if line.startswith("FAILED") else "green" if line.startswith("ok") else None
                self._console.print(line, style=style, markup=False)
            else:
                print(line, flush=True)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for a person."""
    lines = ["", "report"]
    records = report["records"]
    lines.append(
        f"  records in {records['in']}, counted once {records['counted']}, lost {records['lost']}, doubled {records['doubled']}"
    )
    lines.append(f"  outputs: {', '.join(f'{topic} {count}' for topic, count in records['outputs'].items())}")
    lines += delay_lines(report["delays"])
    lines.append("  hand-overs (what a user would have felt: last record of the old owner to first of the new)")
    for move in report["hand_overs"]:
        gap = "no record came on one side" if move["gap_ms"] is None else f"{move['gap_ms']} ms"
        pause = "" if move["pause_ms"] is None else f", nobody ran it for {move['pause_ms']} ms"
        lines.append(f"    {move['step']:<10}  {move['task']}  {move['from']} -> {move['to']}  {gap}{pause}")
    pause = report["longest_silence_of_tasks_that_stayed_ms"]
    lines.append(
        f"  longest silence of tasks that did not move, quiet input included: {pause['ms']} ms ({pause['task']})"
    )
    restore = report["restore"]
    lines.append(
        f"  restore of {restore['tasks']} tasks, {restore['entries']} keys: from snapshot {restore['snapshot_ms']} ms, "
        f"by replay {restore['replay_ms']} ms"
    )
    lines.append(f"  seconds: {', '.join(f'{name} {value}' for name, value in report['seconds'].items())}")
    for name, path in report["paths"].items():
        lines.append(f"  {name}: {path}")
    for check in report["checks"]:
        state = "ok    " if check["ok"] else "FAILED"
        lines.append(f"{state}  {check['check']}: expected {check['expected']}, found {check['found']}")
    lines.append("every check held" if report["ok"] else "some checks FAILED")
    return lines


def delay_lines(delays: list[dict[str, Any]]) -> list[str]:
    """Delays by hour and airport: a line each."""
    lines = ["  delays by airport and hour, in windows that the weather reached hours later"]
    for row in delays:
        worst = row["worst"]
        at = datetime.fromtimestamp(worst["start_ms"] / 1000, UTC)
        lines.append(
            f"    {row['origin']}  {row['flights']} flights in {row['hours']} hours ({row['observed']} with their weather), "
            f"{mean(row)} late; worst {at:%Y-%m-%d %Hh} UTC: {worst['flights']} flights, {mean(worst)}, "
            f"wind {worst['wind'] or 'not observed'}, visibility {worst['visibility'] or 'not observed'}"
        )
    return lines


def mean(row: dict[str, Any]) -> str:
    """Of the flights that left."""
    return f"{row['minutes'] / row['left']:.1f} min" if row["left"] else "none left"
