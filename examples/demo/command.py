"""`orchestrator demo`: the options, the one entrance, and the guarantee that nothing is left running.

One rule: whatever happens (an error, Ctrl-C at any moment), every process that the demo started is ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from examples.demo.options import Options
from examples.demo.show import Show
from orchestrator.cli.arguments import Parser
from orchestrator.errors import OrchestratorError, RefusedBySafety, WrongUse

MARK = "this folder belongs to orchestrator demo.txt"


def run(argv: list[str]) -> int:
    """Exit code 0 only if every check ran and held. Raises WrongUse."""
    parser = Parser("demo", "Flights of 2013: backfill on Spark, live instances, scale up, kill, scale down, verify.")
    parser.add_argument("--seed", type=int, default=1, help="decides the moment of the kill")
    parser.add_argument("--rate", type=int, default=500, help="live records a second")
    parser.add_argument("--instances", type=int, default=2, help="how many to start with; the demo doubles them")
    parser.add_argument("--on", choices=["spark", "processes"], default="spark", help="where instances live")
    parser.add_argument("--history", type=int, default=9, help="months that are backfilled")
    parser.add_argument("--live", type=int, default=3, help="months that follow live")
    parser.add_argument("--json", action="store_true")
    parser.setting("state-dir", default=".orchestrator/demo", help="folder for log, state, snapshots and reports")
    args = parser.parse_args(argv)
    for name, low, high in (("rate", 1, 1_000_000), ("instances", 1, 16), ("history", 1, 11), ("live", 1, 11)):
        if not low <= getattr(args, name) <= high:
            raise WrongUse(f"--{name} {getattr(args, name)}: write a number from {low} to {high}")
    if args.history + args.live > 12:
        raise WrongUse(f"--history {args.history} and --live {args.live} are more than the 12 months there are")
    options = Options(
        Path(args.state_dir).absolute(),
        args.on,
        args.seed,
        args.rate,
        args.instances,
        args.history,
        args.live,
        args.json,
    )
    show = Show(quiet=args.json)
    lock = _claim(options, show)
    try:
        return asyncio.run(_tour(options, show))
    finally:
        os.close(lock)


async def _tour(options: Options, show: Show) -> int:
    from examples.demo.processes import Processes
    from examples.demo.tour import Tour
    from workers.end_watch import stopping_signals

    processes = Processes(options.folder / "output")
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()

    for number in stopping_signals():
        loop.add_signal_handler(number, stop, number)
    try:
        report = await Tour(options, processes, show).run()
    except asyncio.CancelledError:
        show.note("stopping everything")
        return 128 + (received[0] if received else signal.SIGINT)
    except OrchestratorError:
        show.note(f"what the processes said is in {options.folder / 'output'}")
        raise
    finally:
        await processes.stop_all()
    (options.folder / "report.json").write_text(json.dumps(report, indent=1))
    if options.json:
        print(json.dumps({"schema": 1, **report}))
    else:
        show.report(report)
    return 0 if report["ok"] else 1


def _claim(options: Options, show: Show) -> int:
    """A clean folder for this run alone. Refuses a folder that is not the demo's."""
    folder = options.folder
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
            raise WrongUse(f"--state-dir {folder} holds something that is not the demo's; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text("Everything in here is removed when `orchestrator demo` starts again.\n")
    except OSError as error:
        raise WrongUse(f"--state-dir {folder} cannot be written ({error.strerror}); name another folder") from None
    lock = os.open(folder / MARK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RefusedBySafety(f"another demo runs in {folder}; wait for it, or name another --state-dir") from None
    old = [path for path in folder.iterdir() if path.name != MARK]
    for path in old:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if old:
        show.note(f"removed what an earlier demo left in {folder}")
    (folder / "output").mkdir()
    return lock


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
