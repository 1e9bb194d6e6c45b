"""An app that reads what it writes: `seconds` is an output of one processor and the input of another."""

from __future__ import annotations

from orchestrator import App, Record, Sink, Table

app = App("loop", partitions=2)
firsts = app.topic("firsts", key=str, value=int)
seconds = app.topic("seconds", key=str, value=int)
sums = app.table("sums", key=str, value=int, default=int)


@app.processor(firsts, seconds)
def double(first: Record[str, int], seconds: Sink[str, int]) -> None:
    seconds.send(first.key, 2 * first.value)


@app.processor(seconds, sums)
def add(second: Record[str, int], sums: Table[str, int]) -> None:
    sums[second.key] += second.value
