"""What is reported, and what is kept, of a call that failed. One rule: the user sees their own frames, not ours.

Builds ProcessorFailed (stop), and the dead letter: the original bytes with `error-...` headers, which are the same on
every machine, so that a dead letter is part of the one answer.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from pipeline.errors import CallLost, CodecError, DecodingFailed, Letter, ProcessorFailed, text_of
from pipeline.records import OutputRecord, RawRecord

_OURS = str(Path(__file__).parent)
_NOT_THEIRS = (_OURS, "<frozen importlib", str(importlib.__file__))
MESSAGE = 10_000  # characters of an error in the headers of a dead letter and in a halt, at most
_WAYS = 'correct the processor, or give it on_error="skip" or a topic for dead letters'


def failed(
    error: BaseException,
    *,
    processor: str,
    task: str,
    topic: str,
    partition: int,
    raw: RawRecord,
    decoding: bool = False,
    tries: int = 1,
) -> ProcessorFailed:
    """The error of a processor that stops, to be raised from `error`."""
    what = what_failed(
        error, processor=processor, task=task, topic=topic, partition=partition, raw=raw, decoding=decoding, tries=tries
    )
    kind: type[ProcessorFailed] = DecodingFailed if decoding else ProcessorFailed
    ways = f"correct the type, or {_WAYS.split(', or ')[1]}" if decoding else _WAYS
    return kind(
        f"{what}; {ways}",
        processor=processor,
        task=task,
        topic=topic,
        partition=partition,
        offset=raw.offset,
        frames="" if decoding else user_frames(error),
    )


def what_failed(
    error: BaseException,
    *,
    processor: str,
    task: str,
    topic: str,
    partition: int,
    raw: RawRecord,
    decoding: bool = False,
    tries: int = 1,
) -> str:
    """Which processor, at what, and how. A halt keeps it in the log, which does not take a record of any size."""
    where = f"{_shown(raw)[0] or f'{topic}-{partition}@{raw.offset}'} in task {task}"
    if decoding:
        return f"{processor} cannot read {where}: {_shortened(text_of(error))}"
    shown = f"{type(error).__name__}: {_shortened(text_of(error))}".rstrip(": ")
    often = f", tried {tries} times" if tries > 1 else ""
    return f"{processor} failed at {where}{often}: {shown}"


def user_frames(error: BaseException) -> str:
    """The traceback as text, without frames of this package, causes included; "" where the user has none in it."""
    summary = traceback.TracebackException.from_exception(error)
    seen: list[traceback.TracebackException] = []
    part: traceback.TracebackException | None = summary
    while part is not None and part not in seen:
        seen.append(part)
        kept = [frame for frame in part.stack if not frame.filename.startswith(_NOT_THEIRS)]
        part.stack = traceback.StackSummary.from_list(kept)
        part = part.__cause__ or part.__context__
    return "".join(summary.format())


def without_our_head(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def dead_letter(
    error: BaseException, *, processor: str, task: str, topic: str, partition: int, raw: RawRecord
) -> OutputRecord:
    """The record as it came, and why it is here. A call of a timer, a window or a join has no one record: its key, value and
    time, and what it was, with the bounds of its window or the places and times of its pair. One that its topic does not take
    so is cut: the record lies where its headers say."""
    is_cut = isinstance(error, CallLost) and error.letter is Letter.CUT
    added = {
        "error-topic": topic,
        "error-partition": str(partition),
        "error-offset": str(raw.offset),
        "error-task": task,
        "error-processor": processor,
        "error-type": type(error).__name__,
        "error-message": _shortened(text_of(error)),
        "error-where": _where(error),
    }
    name, facts = _shown(raw)
    added["error-due"] = name
    added.update((f"error-{name}", str(fact)) for name, fact in facts.items())
    if is_cut:
        what = "no value" if raw.value is None else f"the value of {len(raw.value)} bytes"
        added["error-cut"] = (
            f"left out, as this topic does not take it: {what}; headers of the record: {len(raw.headers)}"
        )
    headers = tuple((name, value.encode(errors="backslashreplace")) for name, value in added.items() if value)
    if is_cut:
        return OutputRecord(raw.key, None, raw.timestamp_ms, headers)
    return OutputRecord(raw.key, raw.value, raw.timestamp_ms, (*raw.headers, *headers))


def _shortened(text: str) -> str:
    """An error may show all of a record, as one of a decoder does."""
    return text if len(text) <= MESSAGE else f"{text[:MESSAGE]} ... ({len(text) - MESSAGE} more)"


def _shown(raw: RawRecord) -> tuple[str, Mapping[str, object]]:
    """What a call was that has no one record (`pipeline.calls.steps.CallRecord`)."""
    shown = getattr(raw, "shown", None)
    return ("", {}) if shown is None else shown()


def _where(error: BaseException) -> str:
    """The user's last frame as `bank.py:17 in settle`."""
    if isinstance(error, CodecError):
        return ""
    frames = list(_user_frames(error.__traceback__))
    return frames[-1] if frames else ""


def _user_frames(trace: TracebackType | None) -> Iterator[str]:
    for frame in traceback.extract_tb(trace):
        if not frame.filename.startswith(_OURS):
            yield f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
