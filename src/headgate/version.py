"""The version of headgate: all workers of a job must have the same."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
"""The version in the package index; one that ends in dev is not released."""
