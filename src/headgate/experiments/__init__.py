"""Experiments that show flow control at work on Spark, with charts: `follow` (B3) and `neighbour` (B4)."""
