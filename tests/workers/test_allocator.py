"""What is not used any more goes back to the system, where it stood with the allocator for good: something behind it stays."""

from __future__ import annotations

import platform
import subprocess
import sys

GIVEN_BACK = """
import threading
from workers.instance.allocator import give_back

def resident():
    return sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

kept = []

def work():
    made = [bytes(1000) for _ in range(50_000)]
    kept.append(bytes(1000))

thread = threading.Thread(target=work)
thread.start()
thread.join()
held = resident()
asked = give_back()
print(asked, held - resident() > 30_000)
"""


def test_it_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, timeout=60)
    has_it = platform.libc_ver()[0] == "glibc"
    assert done.stdout == f"{has_it} {has_it}\n", done
