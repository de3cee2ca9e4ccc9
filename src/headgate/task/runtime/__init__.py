"""A running subtask: its thread, its loop, its chain of operators, and what it measures."""
