"""The exchange between two workers: two processes on loopback, beside what else carries bytes from one to another.

The contests are in modules of their own, by case: `throughput`, `latency`, `slow-neighbour` and `response`. Each has
two workers (`_wire_ends`) with default settings but for what it varies; docs/benchmarks.md says how to read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headgate.bench._wire_ends import Ends
from headgate.bench._wire_latency import latency
from headgate.bench._wire_neighbours import Phases, neighbours
from headgate.bench._wire_response import response
from headgate.bench._wire_throughput import throughput
from headgate.bench.harness import Bench, Rows, suite

if TYPE_CHECKING:
    from typing import Any

    from headgate.bench.harness import Contest

__all__ = ["Amounts", "wire"]

_MIB = 1024 * 1024


class Amounts(NamedTuple):
    """How much one run of each case does.

    >>> Amounts(total=2**20, latency_s=0.1, neighbours=Phases(0.1, 0.2), response_s=0.1).neighbours.end_s
    0.4
    """

    total: int  # bytes of throughput
    latency_s: float
    neighbours: Phases
    response_s: float  # of each of three phases


_FULL = Amounts(total=1024 * _MIB, latency_s=2.0, neighbours=Phases(0.5, 1.5), response_s=1.5)
_QUICK = Amounts(total=64 * _MIB, latency_s=0.3, neighbours=Phases(0.25, 0.5), response_s=0.3)


@suite("wire", "The exchange between two workers: throughput, latency, a slow neighbour, response.", charts=True)
def wire(bench: Bench, amounts: Amounts | None = None) -> Rows:
    """All cases; see the module.

    >>> from headgate.bench.harness import find_suite
    >>> find_suite("wire").charts
    True
    """
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    with Ends() as ends:
        cases: list[list[Contest[Any]]] = [
            list(throughput(ends, amounts.total)),
            list(latency(ends, amounts.latency_s)),
            list(neighbours(ends, amounts.neighbours)),
            list(response(ends, amounts.response_s)),
        ]
        bench.expect(sum(bench.steps(contest) for contests in cases for contest in contests))
        for contests in cases:
            for contest in contests:
                yield from bench.contest(contest)
            ends.close()  # the next case finds two fresh processes
