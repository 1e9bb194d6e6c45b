"""Chaos: real instances on real brokers while processes, connections and brokers fail, drawn from a seed; ids are judged.

Start at `life.py`; the kinds of events are in `events.py`, what is judged in `judge.py`.
"""
