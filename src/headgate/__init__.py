"""headgate: push-based, credit-controlled data exchange for PySpark."""

__version__ = "0.1.0.dev0"
