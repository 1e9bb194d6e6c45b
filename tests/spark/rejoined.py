"""A join of streams behind a re-key, and dead letters behind it: what several tasks have sent on has no place in the log on Spark."""

from __future__ import annotations

from datetime import timedelta

from orchestrator import App, Record, Sink

app = App("rejoined", partitions=4)
calls = app.topic("calls", key=str, value=str)  # value: who calls which room
visits = app.topic("visits", key=str, value=str)  # key: the room
pairs = app.topic("pairs", key=str, value=str)
letters = app.topic("letters", key=bytes, value=bytes)
unmet = app.topic("unmet", key=bytes, value=bytes)
by_room = calls.rekey("by-room", key=str, by=lambda call: call.value.split()[-1])


@app.join(by_room, visits, pairs, within=timedelta(seconds=10), grace=timedelta(hours=1), on_error=unmet)
def meet(call: Record[str, str], visit: Record[str, str], pairs: Sink[str, str]) -> None:
    if visit.value == "nobody":
        raise ValueError(f"nobody came to {visit.key}")
    pairs.send(visit.key, f"{call.value} {visit.value}")


@app.processor(by_room, on_error=letters)
def check(call: Record[str, str]) -> None:
    if call.key == "cellar":
        raise ValueError("there is no cellar")
