"""Partition assignors: pure functions from partitions and members to an assignment."""
