"""The end of a worker process in which no thread of Python runs any more.

One rule: it is for what nothing written in Python can see, a call that never gives the interpreter back: a regular expression that
backtracks for hours, an extension. A thread shows once a second that it runs; where it has not for the limit, a
thread of C writes down where all stand, and ends the process. That is a crash: blame.py finds the record. Used by worker_main.py.
"""

from __future__ import annotations

import faulthandler
import threading
import time

from workers.spec import InstanceSpec

SHOWN_EVERY_S = 1.0


def watch(instance: InstanceSpec) -> None:
    """Begins. A call may last for `--max-call`; a process that stands still as a whole (SIGSTOP) is ended by its instance after a
    session, and not from here."""
    limit_s = (instance.max_call_ms + instance.settings.session_timeout_ms) / 1000
    threading.Thread(target=_show, args=(limit_s,), name="stand still", daemon=True).start()


def _show(limit_s: float) -> None:
    while True:
        faulthandler.dump_traceback_later(limit_s + SHOWN_EVERY_S, exit=True)
        time.sleep(SHOWN_EVERY_S)
