"""What a failed Spark job says, out of a page of Java: one line.

One rule: the Python error of the user's or our own code first; then what Java names as the innermost cause, without the
names of its classes; never a name of py4j's. Pure.
"""

from __future__ import annotations

import re

CALL = re.compile(r"An error occurred while calling \S+")
JAVA_CLASS = re.compile(r"^:?\s*(?:[a-z]\w*\.)+\w+: ")
CRASHED = ("EOFException", "Python worker exited unexpectedly", "Connection reset")
ADVICE = {
    "Java heap space": "Java has not enough memory (Java heap space); give more, as in --conf spark.driver.memory=4g",
    "GC overhead limit exceeded": "Java has not enough memory; give more, as in --conf spark.driver.memory=4g",
}
LOST = "a Python worker on an executor ended by itself: it was killed, or had not enough memory"


def own_words(text: str) -> str:
    """The line of a Spark failure that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not CALL.search(line)]
    for found, advice in ADVICE.items():
        if any(found in line for line in lines):
            return advice
    for line in reversed(lines):
        if _is_python(line):
            return line
    if any(word in line for line in lines for word in CRASHED):
        return LOST
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    named = causes[-1:] or [line for line in lines if JAVA_CLASS.match(line)][:1]
    named = named or lines[:1]
    return JAVA_CLASS.sub("", named[0]) if named else "without a word"


def _is_python(line: str) -> bool:
    """Whether it is the last line of a Python traceback."""
    java = ("at ", "Caused by", "org.", "java.", "scala.", "py4j.", ": ")
    name, colon, _ = line.partition(": ")
    named = colon and " " not in name and name.rpartition(".")[2][:1].isupper()
    return bool(named) and not line.startswith(java)
