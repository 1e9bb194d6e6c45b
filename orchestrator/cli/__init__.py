"""The command line: a table of command names as text, the settings, and the commands that need no worker.

One rule: a command prints its answer on stdout and raises its errors; main.py turns those into one line and an exit code.
Imported by commands of other rooms (arguments.py, settings.py, commands.py). Start at commands.py, main.py, settings.py.
"""
