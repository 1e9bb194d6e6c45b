"""Durable bytes: logs, stores, changelogs, snapshots. Knows keys and offsets, nothing of groups or apps."""
