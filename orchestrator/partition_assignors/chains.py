"""Evens out along chains of members. One rule: what no single move can improve, a chain of moves may.

A gives a partition to B, which gives one of another topic to C: B keeps its number, and A and C come closer. Used by
`general` when single moves have done what they can. From the fullest members, all they can reach is searched; whoever
cannot reach anybody with two less is done with, together with all that was reached. Large groups get a budget of work,
so that the whole stays linear; what is left then is still free of improving single moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Move = Callable[[int, int, int], None]  # topic, giver, taker


def even_out(
    loads: list[int],
    held: Sequence[dict[int, int]],
    had: Sequence[dict[int, int]],
    readers: Sequence[Sequence[int]],
    move: Move,
) -> None:
    """Follow chains until there is none left or the budget is spent."""
    if max(loads) - min(loads) < 2:
        return
    holds: list[set[int]] = [set() for _ in loads]
    for topic, counts in enumerate(held):
        for member in counts:
            holds[member].add(topic)
    budget = max(2_000, (sum(map(len, readers)) + sum(loads)) // 2)
    active = set(range(len(loads)))
    while active and budget > 0:
        top = max(loads[member] for member in active)
        came: dict[int, tuple[int, int]] = {}
        row = sorted(member for member in active if loads[member] == top)
        reached, seen = set(row), set[int]()
        end = -1
        for member in row:  # grows while it is walked through
            for topic in sorted(holds[member] - seen, key=lambda t: (held[t][member] <= had[t].get(member, 0), t)):
                seen.add(topic)
                budget -= len(readers[topic])
                for reader in readers[topic]:
                    if reader in active and reader not in reached:
                        reached.add(reader)
                        came[reader] = member, topic
                        row.append(reader)
                        if loads[reader] < top - 1:
                            end = reader
                            break
                if end >= 0:
                    break
            if end >= 0:
                break
        if end < 0:
            active -= reached
        while end in came:
            giver, topic = came[end]
            move(topic, giver, end)
            holds[end].add(topic)
            if giver not in held[topic]:
                holds[giver].discard(topic)
            end = giver
