"""What a failed Spark job says, out of a page of Java: one line.

One rule: the Python error of the user's or our own code first; then what Java names as the innermost cause, without the
names of its classes; never a name of py4j's. Pure.
"""

from __future__ import annotations

import re

NOISE = re.compile(r"An error occurred while calling \S+|^\s*SQLSTATE: \w+$")
JAVA_CLASS = re.compile(r"^:?\s*(?:[a-z]\w*\.)+\w+: ")
ALONE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)")  # of an error without a message
CRASHED = ("EOFException", "Python worker exited unexpectedly", "Connection reset")
ADVICE = {
    "Java heap space": "Java has not enough memory (Java heap space); give more, as in --conf spark.driver.memory=4g",
    "GC overhead limit exceeded": "Java has not enough memory; give more, as in --conf spark.driver.memory=4g",
}
NO_CLASS = "java.lang.ClassNotFoundException"
NO_SPACE, ANY_LIBRARY = "No space left on device", ("OSError", "Exception")
DISK = (
    "no space is left on a disk that tasks write to: that of the folder which the command writes, or Spark's own (--conf "
    "spark.local.dir=FOLDER); free some"
)
LOST = "a Python worker on an executor ended by itself: it was killed, or had not enough memory"


def own_words(text: str) -> str:
    """The line of a Spark failure that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not NOISE.search(line)]
    for found, advice in ADVICE.items():
        if any(found in line for line in lines):
            return advice
    for line in reversed(lines):
        if _is_python(line):
            return DISK if NO_SPACE in line and line.partition(": ")[0] in ANY_LIBRARY else line
    if any(word in line for line in lines for word in CRASHED):
        return LOST
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = [line for line in causes if not line.startswith(NO_CLASS)]  # what it was for stands before it
    named = causes[-1:] or [line for line in lines if JAVA_CLASS.match(line)][:1]
    named = named or lines[:1]
    if named and NO_SPACE in named[0]:
        return DISK
    return JAVA_CLASS.sub("", named[0]) if named else "without a word"


def _is_python(line: str) -> bool:
    """Whether it is the last line of a Python traceback."""
    java = ("at ", "Caused by", "Suppressed", "org.", "java.", "scala.", "py4j.", ": ")
    name, colon, _ = line.partition(": ")
    if ALONE.fullmatch(line):
        return not line.startswith(java)
    named = colon and " " not in name and name.rpartition(".")[2][:1].isupper()
    return bool(named) and not line.startswith(java)
