"""Event time in a task: windows, sessions, timers, joins, and the order in which what is due happens."""
