"""Which headgate this is: all workers of a job must have the same."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
"""As it stands in the package index; what ends in dev has not been released."""
