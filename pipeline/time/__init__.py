"""Event time in a task: windows, sessions, timers, joins, and the order in which what is due happens.

One rule: pure; an answer depends on the records and their times, not on how they were batched.
Imported by the rest of pipeline. Start at `position.py` and `timed_view.py`; the order of calls is in `pipeline/calls/passing.py`.
"""
