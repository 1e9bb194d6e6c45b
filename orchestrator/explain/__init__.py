"""Why a task is where it is and what it waits for, in sentences.

One rule: reads the group, changes nothing; every sentence names who, and by which setting.
Imported by the coordinator's admin requests and by scenario files. Start at task.py (the order of the sentences).
"""
