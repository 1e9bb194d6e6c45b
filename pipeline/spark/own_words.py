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
NO_FILE = re.compile(
    r"java\.(?:io\.FileNotFound|nio\.file\.NoSuchFile)Exception: (\S+)$"
)  # its path is all that it says
NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)".*?: (?:error=\d+, )?(.+)')
NO_SYSTEM = re.compile(r'Class (\S+FileSystem) not found|No FileSystem for scheme "?(\w+)"?')
NO_SOURCE = "[DATA_SOURCE_NOT_FOUND]"
PACKAGES = "name its jar with --packages GROUP:NAME:VERSION, one for this version of Spark"
NO_MODULE = "ModuleNotFoundError"
PACK = "where executors have not what is installed here, `orchestrator spark pack` makes an archive of it for them"
LOST = "a Python worker on an executor ended by itself: it was killed, or had not enough memory"


def own_words(text: str) -> str:
    """The line of a Spark failure that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not NOISE.search(line)]
    for found, advice in ADVICE.items():
        if any(found in line for line in lines):
            return advice
    for line in reversed(lines):
        if _is_python(line):
            if NO_SPACE in line and line.partition(": ")[0] in ANY_LIBRARY:
                return DISK
            return f"{line}; {PACK}" if line.startswith(NO_MODULE) else line
    for line in lines:
        if unable := NO_PROGRAM.search(line):  # the cause that Java names behind it does not say of which program
            return f"an executor cannot run {unable[1]} ({unable[2]}); name what each machine has with --conf spark.pyspark.python=PATH"
    if any(word in line for line in lines for word in CRASHED):
        return LOST
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    causes = [line for line in causes if not line.startswith(NO_CLASS)]  # what it was for stands before it
    named = causes[-1:] or [line for line in lines if JAVA_CLASS.match(line)][:1]
    named = named or lines[:1]
    if named and NO_SPACE in named[0]:
        return DISK
    if named and (system := NO_SYSTEM.search(named[0])):
        return f"Spark has not what reads this file system ({system[1] or system[2]}); {PACKAGES}"
    if named and NO_SOURCE in named[0]:
        return f"{JAVA_CLASS.sub('', named[0])}; {PACKAGES}"
    if named and (no_file := NO_FILE.search(named[0])):
        return f"there is no file {no_file[1]}"
    return JAVA_CLASS.sub("", named[0]) if named else "without a word"


def _is_python(line: str) -> bool:
    """Whether it is the last line of a Python traceback."""
    java = ("at ", "Caused by", "Suppressed", "org.", "java.", "scala.", "py4j.", ": ")
    name, colon, _ = line.partition(": ")
    if ALONE.fullmatch(line):
        return not line.startswith(java)
    named = colon and " " not in name and name.rpartition(".")[2][:1].isupper()
    return bool(named) and not line.startswith(java)
