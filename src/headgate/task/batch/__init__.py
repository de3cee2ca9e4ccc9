"""Keyed operators in BATCH mode: values are grouped by key, in memory or on disk, and seen one key after another."""
