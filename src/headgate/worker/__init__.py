"""One worker: a Python process with its share of a job's tasks.

`environment` holds what its tasks share.
"""

from headgate.worker.environment import Environment, EnvironmentStatistics

__all__ = ["Environment", "EnvironmentStatistics"]
