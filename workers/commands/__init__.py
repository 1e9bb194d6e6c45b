"""The commands that this room owns: run, produce, consume, status, scaling, query."""
