"""Benchmarks: what headgate costs, measured against something the reader knows, in one run.

`harness` is the frame; every other module here whose name does not start with an underscore is one suite
of that name, run by `headgate bench <name>`.
"""

from headgate.bench.harness import (
    Bench,
    Case,
    Contest,
    Report,
    Row,
    machine,
    median_of,
    ratio_of_medians,
    run_suite,
    suite,
)

__all__ = [
    "Bench",
    "Case",
    "Contest",
    "Report",
    "Row",
    "machine",
    "median_of",
    "ratio_of_medians",
    "run_suite",
    "suite",
]
