"""Runs tasks: instances, worker processes, fetch, process, commit, restore."""
