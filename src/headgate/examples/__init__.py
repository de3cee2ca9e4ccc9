"""Pipelines to read, run and copy; `headgate examples` lists and runs them.

Each is a module with a function `main(env=None, ...)`: it builds its pipeline in the given environment, on Spark or
local, runs it, and returns the results. They use the public API only: `import headgate as hg`.
"""

from importlib import import_module

__all__ = ["EXAMPLES", "describe"]

EXAMPLES = {
    "word_count": "headgate.examples.word_count",
    "click_sessions": "headgate.examples.click_sessions",
    "streaming_join": "headgate.examples.streaming_join",
    "fraud_timers": "headgate.examples.fraud_timers",
    "async_enrichment": "headgate.examples.async_enrichment",
    "dataframe_to_parquet": "headgate.examples.dataframe_to_parquet",
    "nexmark": "headgate.examples.nexmark.queries",
}
"""The module of each example, by name. `dataframe_to_parquet` needs Spark; the others run on the local host as well."""


def describe(name: str) -> str:
    """Return the first line of an example's docstring.

    >>> describe("word_count")
    'Word count: how often does each word occur in a text?'
    """
    return (import_module(EXAMPLES[name]).__doc__ or "").partition("\n")[0]
