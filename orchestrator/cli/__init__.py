"""The command line: a table of command names as text, the settings, and the commands that need no worker.

One rule: a command prints its answer on stdout and raises its errors; main.py turns those into one line and an exit code.
Commands of other rooms import arguments.py and settings.py from here. Start at main.py (COMMANDS), then settings.py.
"""
