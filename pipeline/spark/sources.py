"""What Spark reads as history besides files on this machine: queries, tables, its formats, files elsewhere, other logs.

One rule: rows come to the app as Spark has them, through the one reader of files: they are written as Parquet first, by the
executors; text files elsewhere are copied as they are, because Spark would guess their types.
In the flow: options -> From -> `local_files`, when a session is there -> `history`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.errors import WrongUse
from pipeline.files.columns import Columns
from pipeline.files.shape import BadFile, Reading, Shape
from pipeline.files.text import COMPRESSED
from pipeline.spark import avro_columns, log_range
from pipeline.spark.file_order import one_split_a_task, order_of_parts
from pipeline.spark.folder_columns import as_they_stand
from pipeline.spark.frame_files import write
from pipeline.spark.history import BadHistory
from pipeline.spark.log_range import LOG
from pipeline.spark.own_words import own_words
from pipeline.spark.set_to import set_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = re.compile(r"\s*(select|with|from|values|table)\b", re.IGNORECASE)
FORMAT = re.compile(r"([a-z][a-z0-9_]*):(.+)", re.IGNORECASE | re.DOTALL)
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
BY_SUFFIX = {".parquet": "parquet", ".orc": "orc", ".avro": "avro"}
TEXT = (".csv", ".json", ".jsonl", ".ndjson")
GUESSED = ("csv", "json")
MERGED = ("parquet", "orc")  # of which Spark can look at the columns of every file
SHOWN = 80
TWO_TYPES = re.compile(r'Failed to merge incompatible data types "?(.+?)"? and "?(.+?)"?[.\s]')


class From(msgspec.Struct, frozen=True):
    """One source, as it was given: a query, a table, FORMAT:PATH, log:URL/TOPIC, or a pattern of files elsewhere."""

    text: str

    @property
    def shown(self) -> str:
        text = " ".join(self.text.split())
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def is_for_spark(pattern: str) -> bool:
    """Whether a pattern of files is not for the reader of files on this machine."""
    return bool(URL.match(pattern)) or Path(pattern).suffix.lower() in (".orc", ".avro")


def local_files(
    session: SparkSession, source: From, folder: Path, reading: Reading, shape: Shape
) -> tuple[list[str], dict[str, str]]:
    """The rows of a source in files of this folder; how they are called in errors, by file. Raises BadHistory."""
    text, called = source.text.strip(), source.shown
    try:
        if text.lower().startswith(f"{LOG}:"):
            text = called = str(log_range.fixed(text.partition(":")[2]))
        frame = _read(session, text, folder, reading, shape)
        if isinstance(frame, dict):
            return list(frame), frame
        Columns(reading, shape, frame.columns, text=False, file=called)
        order: list[int] = []
        if _is_path(text):
            with one_split_a_task(session):
                order = order_of_parts(frame)
                write(frame, folder)
        else:
            with merged_in_queries(session):
                write(frame, folder)
    except (BadFile, WrongUse) as error:
        raise BadHistory(str(error)) from None
    except Exception as error:
        raise BadHistory(f"{called}: {_two_types(str(error)) or own_words(str(error))}") from error
    places = {number: place for place, number in enumerate(order)}
    found = sorted(map(str, folder.glob("*.parquet")), key=lambda path: (places.get(_task_of(path), 0), path))
    return found, dict.fromkeys(found, called)


def _two_types(text: str) -> str:
    """What to say of files whose columns do not go together; "" for another error."""
    found = TWO_TYPES.search(text)
    return (
        found
        and (
            f"its files have a column of two types ({found.group(1)} and {found.group(2)}); name those of each type by a --from of their own"
        )
    ) or ""


def _task_of(path: str) -> int:
    """The number of the task that has written a part."""
    return int(Path(path).name.split("-")[1])


def _read(session: SparkSession, text: str, folder: Path, reading: Reading, shape: Shape) -> DataFrame | dict[str, str]:
    if _is_path(text):
        return as_they_stand(session, partial(_frame, session, text), reading, shape)
    with merged_in_queries(session):
        return read_as(session, text, folder)


@contextmanager
def merged_in_queries(session: SparkSession) -> Iterator[None]:
    """Files that a query names, as parquet.`PATH`, have the columns of all of them, unless the user's own settings say how it is."""
    names = [f"spark.sql.{kind}.mergeSchema" for kind in MERGED]
    own = session.sparkContext.getConf()
    with set_to(session, {name: "true" for name in names if not own.contains(name)}):
        yield


def _is_path(text: str) -> bool:
    """Whether it names files that Spark reads by a format of theirs."""
    is_named = not QUERY.match(text) and (URL.match(text) or FORMAT.fullmatch(text) or is_for_spark(text))
    is_ours = _text_file(text) or text.lower().startswith((f"{LOG}:", *(f"{kind}:" for kind in GUESSED)))
    return bool(is_named) and not is_ours


def read_as(session: SparkSession, text: str, folder: Path) -> DataFrame | dict[str, str]:
    """A source as Spark reads it; text files elsewhere, and those that its format of text is named for, as their copies in a folder,
    with what each is a copy of. Raises WrongUse."""
    if URL.match(text):
        return _copied(session, text, folder) if _text_file(text) else _frame(session, text)
    named = None if QUERY.match(text) else FORMAT.fullmatch(text)
    if named is None or named.group(1).lower() not in GUESSED:
        return _frame(session, text)
    kind, path = named.groups()
    if not _text_file(path):
        raise BadHistory(
            f"{text} is no pattern of files: Spark would guess types of all of a folder's {kind} together, and change values by them; "
            f"name the files, as in {kind}:{path.rstrip('/')}/*.{kind.lower()}"
        )
    return _copied(session, path, folder)


def _frame(session: SparkSession, text: str, *, is_merged: bool = True) -> DataFrame:
    """`is_merged`: with the columns of all files: Spark takes those of one of them, and what others have besides would be lost."""
    if QUERY.match(text):
        return session.sql(text)
    named = None if URL.match(text) else FORMAT.fullmatch(text)
    if named is None and (URL.match(text) or is_for_spark(text)):
        kind = BY_SUFFIX.get(Path(text).suffix.lower())
        if kind is None:
            raise BadHistory(
                f"{text}: files elsewhere are read that end with {', '.join((*BY_SUFFIX, *TEXT))}; for others name the format, as "
                f"in --from TOPIC=delta:{text}"
            )
        return _files(session, kind, text, is_merged)
    if named is None:
        return session.table(text)
    kind, path = named.groups()
    if kind.lower() == LOG:
        return log_range.frame(session, path)
    return _files(session, kind, path, is_merged)


def _files(session: SparkSession, kind: str, path: str, is_merged: bool) -> DataFrame:
    reader = session.read.format(kind)
    if is_merged and kind.lower() in MERGED:
        reader = reader.option("mergeSchema", "true")
    if is_merged and kind.lower() == "avro":
        schema = avro_columns.of_all(session, path)
        reader = reader if schema is None else reader.schema(schema)
    return reader.load(path)


def _text_file(text: str) -> bool:
    suffixes = [suffix.lower() for suffix in Path(text).suffixes if suffix.lower() not in COMPRESSED]
    return suffixes[-1:] in ([one] for one in TEXT)


def made_of(session: SparkSession, source: From) -> list[tuple[str, int, int, int]] | None:
    """The files that a source is read from, with their sizes and times, and when those of this machine were changed; None where that
    is not known: other rows may come of it with each look."""
    text = source.text.strip()
    if text.lower().startswith(f"{LOG}:"):
        return []  # what was read of a topic stays there
    try:
        paths = _paths(session, text)
        conf: Any = session.sparkContext._jsc.hadoopConfiguration()
        statuses = [path.getFileSystem(conf).getFileStatus(path) for path in paths]
        changed = [_changed_ns(one.getPath()) for one in statuses]
    except Exception:  # noqa: BLE001 - whatever it is, reading it says so
        return None
    found = [
        (str(one.getPath().toString()), int(one.getLen()), int(one.getModificationTime()), at_ns)
        for one, at_ns in zip(statuses, changed, strict=True)
    ]
    return sorted(found) or None


def _changed_ns(path: Any) -> int:
    """When a file of this machine was changed, whatever its time was set to; 0 elsewhere."""
    uri = path.toUri()
    return Path(str(uri.getPath())).stat().st_ctime_ns if str(uri.getScheme()) == "file" else 0


def _paths(session: SparkSession, text: str) -> list[Any]:
    """Of the files that Spark, or we, read for a source."""
    named = None if QUERY.match(text) or URL.match(text) else FORMAT.fullmatch(text)
    pattern = named.group(2) if named is not None and named.group(1).lower() in GUESSED else text
    if (named is not None or URL.match(text)) and _text_file(pattern):
        system, statuses = _found(session, pattern)
        return [path for status in statuses for path in _files_of(system, status)]
    java: Any = session.sparkContext._jvm
    files = _frame(session, text, is_merged=False).inputFiles()
    return [java.org.apache.hadoop.fs.Path(java.java.net.URI(name)) for name in files]


def _found(session: SparkSession, pattern: str) -> tuple[Any, list[Any]]:
    """The file system of Hadoop's, and what it has of this name."""
    context: Any = session.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(pattern)
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    return system, list(system.globStatus(path) or ())


def _copied(session: SparkSession, pattern: str, folder: Path) -> dict[str, str]:
    """Files as they are, whatever file system of Hadoop's they lie in."""
    context: Any = session.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs
    system, statuses = _found(session, pattern)
    named: dict[str, str] = {}
    folder.mkdir(parents=True)
    found = [one for status in statuses for one in _files_of(system, status)]
    for number, one in enumerate(found):
        target = folder / f"{number:06}-{one.getName()}"
        system.copyToLocalFile(False, one, hadoop.Path(str(target)), True)
        named[str(target)] = str(one.toString())
    if not named:
        raise BadHistory(f"no file is called {pattern}; name files, or a pattern of files")
    return named


def _files_of(system: Any, status: Any) -> list[Any]:
    """The path of a file, or those below a folder, as Spark writes one: without its marks. Raises BadHistory."""
    top = status.getPath()
    if not status.isDirectory():
        return [top]
    found, listed = [], system.listFiles(top, True)
    while listed.hasNext():
        one = listed.next().getPath()
        below = str(one.toString()).removeprefix(f"{top.toString()}/").split("/")
        if any(name.startswith(("_", ".")) for name in below):
            continue
        if column := next((name for name in below[:-1] if "=" in name), ""):
            raise BadHistory(
                f"{top.toString()} has a column in the names of its folders ({column}), which its files do not have; name the files of each "
                "folder, or read it as Spark does, with a query"
            )
        found.append(one)
    return sorted(found, key=lambda one: str(one.toString()))


def given(text: str, topics: Sequence[str]) -> tuple[str, From]:
    """`--from TOPIC=SOURCE`, or SOURCE alone for an app with one input. Raises WrongUse."""
    name, equals, source = text.partition("=")
    if equals and name.strip() in topics and source.strip():
        return name.strip(), From(_no_file(name.strip(), source))
    if len(topics) == 1 and (QUERY.match(text) or not equals):
        return topics[0], From(_no_file(topics[0], text))
    raise WrongUse(
        f"--from '{text[:SHOWN]}': write TOPIC=SOURCE with an input of the app, {', '.join(sorted(topics))}; a source is a query, a table, "
        "FORMAT:PATH or log:URL/TOPIC"
    )


def _no_file(topic: str, source: str) -> str:
    """Spark would look for a table of this name. Raises WrongUse."""
    text = source.strip()
    is_named = QUERY.match(text) or URL.match(text) or FORMAT.fullmatch(text) or is_for_spark(text)
    if not is_named and (Path(text).suffix.lower() == ".parquet" or _text_file(text)):
        raise WrongUse(
            f"--from '{text[:SHOWN]}': files of this machine are given without --from, as {topic}={text[:SHOWN]}"
        )
    if not is_named and "/" in text and "`" not in text:  # a table's name has none, but in quotes
        raise WrongUse(
            f"--from '{text[:SHOWN]}' is a path: name its format, as in --from {topic}=orc:{text[:SHOWN]}; Parquet, JSON lines and CSV of "
            f"this machine are given without --from, as {topic}=PATTERN"
        )
    return source
