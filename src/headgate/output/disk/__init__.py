"""Blocking partitions: all that a task emits, in one file on disk, which consumers read when it is complete."""
