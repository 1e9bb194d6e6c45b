"""What the processes of a fleet have used so far, as the kernel counts it. One rule: read from /proc alone (Linux)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """`kind`: "run" (the fleet), "instance" or "worker"."""

    pid: int
    kind: str


class Usage(NamedTuple):
    """CPU seconds, and how often one of its threads was woken (voluntary context switches), of a process so far."""

    cpu_s: float
    wakes: int


def family(fleet: int) -> list[Process]:
    """All processes of a fleet, itself first."""
    found, instances = [Process(fleet, "run")], children(fleet)
    found += [Process(pid, "instance") for pid in instances]
    return found + [Process(pid, "worker") for instance in instances for pid in children(instance)]


def children(pid: int) -> list[int]:
    """Those of all its threads; a thread that ends meanwhile leaves its own to another one."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cpu_s(pid: int) -> float:
    """User and system time of a process; ticks are counted, so it is good to some hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def usage(pid: int) -> Usage:
    wakes = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text()
        wakes += int(status.rpartition("nonvoluntary_ctxt_switches")[0].rpartition("voluntary_ctxt_switches:")[2])
    return Usage(cpu_s(pid), wakes)


def tree_cpu_s(pid: int) -> float:
    """CPU time of a process, of all below it, and of those of them that have ended and were waited for."""
    try:
        below = children(pid)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended meanwhile: its time is its parent's now
    return sum(int(field) for field in fields[11:15]) / TICKS + sum(tree_cpu_s(child) for child in below)


def waited_s() -> float:
    """Seconds since the start of the machine in which something that could run waited for a processor; 0 where Linux does not count
    them."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
