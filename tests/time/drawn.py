"""Random apps with everything that keeps time, as the text of a module, and random records out of order for them. From a seed.

What lies behind the re-key (`group...`, topic `behind`) goes by the order in which live tasks wrote; all else by the inputs alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

HEAD = '''
"""A drawn app."""

import os
from datetime import timedelta

from orchestrator import App, Hopping, Session, Sliding, Tumbling

MS = timedelta(milliseconds=1)
REPLAY = "REPLAY_BEHIND" in os.environ  # what lies behind the re-key alone, over what a live app wrote
app = App("drawn", partitions=2)
out = app.topic("out", key=str, value=str)
behind = app.topic("behind", key=str, value=str)
beats = app.topic("beats", key=str, value=int)
ships = app.topic("ships", key=str, value=int)
'''
SETTLED = 1_000_000  # a grace in which nothing is late


class Beat(NamedTuple):
    topic: str
    key: str
    value: int
    at_ms: int


class Drawn(NamedTuple):
    """`text`: the module; `records` as they are written to their topics."""

    text: str
    records: list[Beat]


def drawn(seed: int, count: int = 600) -> Drawn:
    chance = random.Random(seed)
    parts = chance.sample(sorted(PARTS), chance.randrange(3, len(PARTS) + 1))
    text = HEAD + "if not REPLAY:\n" + "".join(_indented(PARTS[name](chance)) for name in parts)
    text += "if REPLAY:\n    groups = app.topic('drawn-by-group-repartition', key=str, value=int)\nelse:\n"
    text += "    groups = beats.rekey('by-group', key=str, by=lambda beat: f'g{beat.value % 5}')\n"
    return Drawn(text + _groups(chance), _records(chance, count))


def _records(chance: random.Random, count: int) -> list[Beat]:
    """Each up to so much earlier than the latest before it; at last one of each key that closes what is open."""
    disorder = chance.choice([0, 10, 50, 200])
    keys = [f"k{number}" for number in range(6)]
    at_ms, found = 0, []
    for number in range(count):
        at_ms += chance.choice([0, 0, 1, 3, 10, 60])
        key, late_ms = chance.choice(keys), chance.randrange(disorder + 1)
        found.append(Beat(chance.choice(["beats", "beats", "ships"]), key, number, max(0, at_ms - late_ms)))
    return found + [
        Beat(topic, key, count + n, at_ms + 5_000) for topic in ("beats", "ships") for n, key in enumerate(keys)
    ]


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.strip().splitlines())


def _window(chance: random.Random) -> str:
    size = chance.choice([20, 50, 100])
    return chance.choice(
        [
            f"Tumbling({size} * MS)",
            f"Tumbling({size} * MS, offset={size // 3} * MS)",
            f"Hopping({size} * MS, every={chance.choice([size // 2, size // 3])} * MS)",
            f"Sliding({size} * MS)",
            f"Session(gap={size // 4} * MS, merge=lambda one, other: one + other)",
        ]
    )


def _windowed(name: str, topic: str, window: str, grace: int, retain: int, to: str, *, says: bool = True) -> str:
    each = f"for one in {name}:" if window.startswith(("Hopping", "Sliding")) else f"for one in [{name}]:"
    text = f'''
{name} = app.table("{name}", key=str, value=int, default=int, window={window}, grace={grace} * MS, retain={retain} * MS)

@app.processor({topic}, {name})
def to_{name}(beat, {name}):
    {each}
        one[beat.key] += beat.value
'''
    if says:
        text += f'''
@app.when_closed({name}, {to})
def {name}_closed(window, {to}):
    {to}.send(window.key, f"{name} {{window.start_ms}}-{{window.end_ms}}: {{window.value}}")
'''
    return text


def _counts(chance: random.Random) -> str:
    return """
counts = app.table("counts", key=str, value=int, default=int)

@app.processor(beats, counts, out)
def count(beat, counts, out):
    counts[beat.key] += beat.value
    out.send(beat.key, f"count {counts[beat.key]}")
"""


def _windows(chance: random.Random) -> str:
    text = ""
    for number in range(chance.randrange(1, 4)):
        grace = chance.choice([0, 10, 60, 300])
        text += _windowed(
            f"sums{number}", chance.choice(["beats", "ships"]), _window(chance), grace, grace + 100, "out"
        )
    return text


def _rolled(chance: random.Random) -> str:
    """Windows whose closes are added up in larger ones."""
    return f"""
small = app.table("small", key=str, value=int, default=int, window=Tumbling(20 * MS), grace={chance.choice([0, 40])} * MS)
large = app.table("large", key=str, value=int, default=int, window=Tumbling(200 * MS), grace=100 * MS)

@app.processor(beats, small)
def to_small(beat, small):
    small[beat.key] += 1

@app.when_closed(small, large)
def roll(window, large):
    large[window.key] += window.value

@app.when_closed(large, out)
def large_closed(window, out):
    out.send(window.key, f"large {{window.start_ms}}: {{window.value}}")
"""


def _timers(chance: random.Random) -> str:
    return f"""
silent = app.timers("silent", key=str)

@app.processor(beats, silent)
def heard(beat, silent):
    if beat.value % 7 == 0:
        silent.pop(beat.key, None)
    else:
        silent[beat.key] = max(0, beat.timestamp_ms + {chance.choice([30, 5, -20])})

@app.when_due(silent, silent, out)
def gone(due, silent, out):
    out.send(due.key, f"silent at {{due.timestamp_ms}}")
    if due.timestamp_ms % 3 == 0:
        silent[due.key] = due.timestamp_ms + {chance.choice([7, 90])}
"""


def _join(chance: random.Random) -> str:
    before, after, kind = chance.choice([0, 5, 40]), chance.choice([0, 20]), chance.choice(["inner", "left", "outer"])
    left, right = chance.choice([("beats", "ships"), ("ships", "beats"), ("beats", "beats")])
    return f"""
@app.join({left}, {right}, out, within=({before} * MS, {after} * MS), grace={chance.choice([0, 30, 250])} * MS, kind="{kind}")
def paired(one, other, out):
    out.send((one or other).key, f"pair {{one and one.value}} {{other and other.value}}")
"""


def _table_of(chance: random.Random) -> str:
    return f"""
known = app.table_of(ships, versions={chance.choice([20, 400])} * MS, alias="known")

@app.processor(beats, known, out)
def enrich(beat, known, out):
    out.send(beat.key, f"known {{known.get(beat.key)}} {{known.as_of(beat.timestamp_ms).get(beat.key)}}")
"""


def _table_join(chance: random.Random) -> str:
    return f"""
totals = app.table("totals", key=str, value=int, default=int)
largest = app.table("largest", key=str, value=int, default=int)

@app.processor(beats, totals)
def total(beat, totals):
    totals[beat.key] += 1

@app.processor(ships, largest)
def large_one(ship, largest):
    if ship.value % 4 == 0:
        largest.pop(ship.key, None)
    else:
        largest[ship.key] = max(largest[ship.key], ship.value)

@app.table_join(totals, largest, out, kind="{chance.choice(["inner", "left", "outer"])}")
def both(one, other, out):
    key = (one or other).key
    out.send(key, f"both {{one and one.value}} {{other and other.value}}")
"""


def _groups(chance: random.Random) -> str:
    """Behind the re-key: what is the same in any order, and what goes by the order of arrival."""
    return (
        """
group_counts = app.table("group_counts", key=str, value=int, default=int)

@app.processor(groups, group_counts)
def count_group(beat, group_counts):
    group_counts[beat.key] += beat.value
"""
        + _windowed("group_settled", "groups", "Tumbling(100 * MS)", SETTLED, SETTLED, "behind", says=False)
        + _windowed("group_closing", "groups", _window(chance), chance.choice([0, 50]), 400, "behind")
        + """
group_silent = app.timers("group_silent", key=str)

@app.processor(groups, group_silent)
def group_heard(beat, group_silent):
    group_silent[beat.key] = beat.timestamp_ms + 15

@app.when_due(group_silent, behind)
def group_gone(due, behind):
    behind.send(due.key, f"silent at {due.timestamp_ms}")
"""
    )


PARTS: dict[str, Callable[[random.Random], str]] = {
    "counts": _counts,
    "windows": _windows,
    "rolled": _rolled,
    "timers": _timers,
    "join": _join,
    "table_of": _table_of,
    "table_join": _table_join,
}
