"""Durable bytes: logs, stores, changelogs, snapshots, directories. Knows keys and offsets, nothing of groups or apps."""
