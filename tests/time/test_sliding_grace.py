"""Sliding windows whose grace period is shorter than records are out of order, against their definition: a record belongs to every
window that is not closed when it comes, whatever was committed between, and however often the task began anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator import App, Sliding
from pipeline.definitions.entries import due_at
from pipeline.process import TaskProcess
from pipeline.records import SourceRecord
from pipeline.tables.dict_store import DictStore
from pipeline.time.stored_form import StoredForm

MS = timedelta(milliseconds=1)
SIZE = 6
Beat = tuple[str, int]
Closed = tuple[str, int, list[int]]
beats_of_two = st.lists(
    st.tuples(
        st.sampled_from("aab"), st.sampled_from([0, 0, 1, 2, 3, 5, 7, 11]), st.sampled_from([0, 0, 0, 1, 3, 6, 9])
    ),
    min_size=3,
    max_size=16,
)


@dataclass
class Answer:
    closed: list[Closed] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)  # the numbers of the records that are not late
    looks: list[Any] = field(default_factory=list)


@cache
def app_of(grace: int, retain: int) -> tuple[App, Any, StoredForm, list[Answer]]:
    """With its tasks, what tools read of its store, and the answer that its functions give, as the last one there."""
    answers = [Answer()]
    app = App("slides", partitions=1)
    beats = app.topic("beats", key=str, value=int)
    held = app.table(
        "held", key=str, value=list[int], default=list, window=Sliding(SIZE * MS), grace=grace * MS, retain=retain * MS
    )

    @app.processor(beats, held)
    def beat(beat: Any, held: Any) -> None:
        answers[-1].taken.append(beat.value)
        for before in (3, 9, 14):
            found = held.at(beat.timestamp_ms - before)
            answers[-1].looks.append([(one.start_ms, one.get(beat.key), one.get("b")) for one in found])
        for window in held:
            window[beat.key] = [*window[beat.key], beat.value]

    @app.when_closed(held)
    def close(window: Any) -> None:
        answers[-1].closed.append((window.key, window.start_ms, window.value))

    return app, app.topology().subtopologies[0], StoredForm(app.describe()["tables"]["held"]), answers


class Played:
    """A task that takes records, and may be committed and opened anew between them."""

    def __init__(self, grace: int, retain: int) -> None:
        self.answer, self.store = Answer(), DictStore()
        self.open(grace, retain)

    def open(self, grace: int, retain: int) -> None:
        app, tasks, self.form, answers = app_of(grace, retain)
        answers[:] = [self.answer]
        self.task = TaskProcess(app, tasks, 0, {"held": self.store}, {})

    def take(self, number: int, beat: Beat) -> None:
        self.task.run([("beats", SourceRecord(number, beat[1], beat[0].encode(), number.to_bytes(8, "big")))])

    def commit(self) -> None:
        self.store.write(self.task.collect().writes.get("held", {}))
        self.task.mark_applied()

    def rows(self) -> dict[tuple[str, int], bytes]:
        """What tools show of the store."""
        found = [self.form.row(k, raw) for k, raw in self.store.data.items()]
        return {(row.key.decode(), row.start_ms or 0): row.value or b"" for row in found if row is not None}


def played(beats: list[Beat], grace: int, retain: int, commits: set[int], restarts: set[int]) -> Played:
    play = Played(grace, retain)
    for number, beat in enumerate(beats):
        play.take(number, beat)
        if number in commits | restarts:
            play.commit()
        if number in restarts:
            play.open(grace, retain)
    play.commit()
    return play


def defined(beats: list[Beat], grace: int) -> tuple[Answer, dict[tuple[str, int], list[int]]]:
    """By definition, and what each window holds in the end."""
    answer, windows = Answer(), dict[tuple[str, int], list[int]]()
    announced: set[tuple[str, int]] = set()
    now = -1
    for number, (key, at) in enumerate(beats):
        now = max(now, at)
        over = sorted((start, one) for one, start in windows.keys() - announced if start + SIZE + grace < now)
        answer.closed += [(one, start, windows[one, start]) for start, one in over]
        announced |= {(one, start) for start, one in over}
        taken = [n for n in answer.taken if beats[n][0] == key]
        times = {beats[n][1] for n in taken} | {at}
        starts = {max(0, time - SIZE) for time in times} | {time + 1 for time in times}
        is_open = {start for start in starts if start + SIZE + grace >= now}
        if not any(start <= at <= start + SIZE for start in is_open):
            continue
        answer.taken.append(number)
        for start in is_open:
            if inside := [n for n in [*taken, number] if start <= beats[n][1] <= start + SIZE]:
                windows[key, start] = inside
    return answer, windows


@settings(max_examples=100, deadline=None)
@given(
    steps=beats_of_two,
    grace=st.sampled_from([0, 1, 2, 5]),
    more=st.sampled_from([0, 3, 10]),
    commits=st.sets(st.integers(0, 15)),
    restarts=st.sets(st.integers(0, 15), max_size=4),
)
@example(  # the window that ends at 21 has closed, those that a later record makes have not
    steps=[("a", 19, 0), ("b", 3, 0), ("a", 0, 1), ("a", 3, 0)], grace=0, more=0, commits=set(), restarts={2}
)
@example(steps=[("a", 35, 0), ("a", 0, 6), ("a", 0, 1)], grace=2, more=10, commits={1}, restarts=set())
def test_a_record_belongs_to_every_window_that_is_open(
    steps: list[tuple[str, int, int]], grace: int, more: int, commits: set[int], restarts: set[int]
) -> None:
    beats, now = list[Beat](), 0
    for key, ahead, behind in steps:
        now += ahead
        beats.append((key, max(0, now - behind)))
    play = played(beats, grace, grace + more, commits, restarts)
    _, windows = defined(beats, grace)
    assert play.rows().keys() <= windows.keys()
    assert play.answer.looks == played(beats, grace, grace + more, set(), set()).answer.looks
    play = played([*beats, ("z", now + 1_000)], grace, grace + more, commits, restarts)
    expected, _ = defined([*beats, ("z", now + 1_000)], grace)
    assert play.answer.closed == expected.closed
    assert play.answer.taken == expected.taken


def test_what_windows_there_were_is_told_by_time_and_not_by_commits() -> None:
    """A commit sweeps what has expired, a window that a look goes by among it."""
    beats = [("a", 100), ("b", 112), ("a", 112)]
    one_by_one, together = (played(beats, 0, 10, commits, set()).answer.looks for commits in ({0, 1, 2}, set[int]()))
    assert one_by_one == together


def test_a_longer_grace_announces_no_window_that_was_never_there() -> None:
    """The window that keeps what later ones take over is none that ends at a record, or begins after one."""
    play = Played(2, 20)
    for number, beat in enumerate([("a", 35), ("a", 29)]):
        play.take(number, beat)
    play.commit()
    (held,) = app_of(2, 20)[0].tables.values()
    places = [due_at(held, announces=True)(k, raw) for k, raw in play.store.data.items()]
    assert [place[0] for place in places if place is not None] == [37, 38], "nor where state goes to other tasks"
    play.open(10, 20)
    play.take(2, ("a", 90))
    assert play.answer.closed == [("a", 29, [0, 1]), ("a", 30, [0])]
