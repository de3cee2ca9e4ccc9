"""A job in one process: workers as threads, the rest as on Spark."""

from headgate.local.host import LocalHost

__all__ = ["LocalHost"]
