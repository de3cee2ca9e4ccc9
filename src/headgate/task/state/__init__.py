"""State and timers of keys."""
