"""A worker's reports: what its tasks say of themselves, and what is known of its process, memory and connections.

Called by the worker, on the thread that serves the control connection.

Invariant: each report fits into one control message, however many tasks and channels there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.worker.messages import ConnectionReport, Report
from headgate.worker.processor import process_cpu_ns, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headgate.net import ConnectionStatistics
    from headgate.worker.environment import Environment
    from headgate.worker.messages import SubtaskReport

__all__ = ["connection_reports", "reports_of"]

_MAX_BYTES: Final = 512 * 1024  # of one message, by a generous estimate
_MAX_CONNECTIONS: Final = 1024


def reports_of(environment: Environment, subtasks: Sequence[SubtaskReport], at_ms: int) -> list[Report]:
    """The reports of a worker: one, or several that say the same of the worker and share out its tasks.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     report, = reports_of(environment, [], at_ms=1000)
    >>> report.segments_total, report.segments_free, report.connections
    (32, 32, [])
    """
    memory = environment.memory.statistics()
    memory_bytes, cpu_ns = resident_bytes(), process_cpu_ns()
    connections = connection_reports(environment.connections())[:_MAX_CONNECTIONS]
    return [
        Report(
            at_ms=at_ms,
            subtasks=some,
            memory_bytes=memory_bytes,
            cpu_ns=cpu_ns,
            segments_total=memory.total,
            segments_free=memory.free,
            connections=connections,
        )
        for some in _shared_out(subtasks)
    ]


def connection_reports(connections: Iterable[ConnectionStatistics]) -> list[ConnectionReport]:
    """What to say of connections whose peers have proved themselves, by peer.

    Those to the same worker count as one: there is one in each lane, and the next while one is being closed.

    >>> connection_reports([])
    []
    """
    by_peer: dict[int, list[ConnectionStatistics]] = {}
    for one in connections:
        if one.worker >= 0:
            by_peer.setdefault(one.worker, []).append(one)
    return [
        ConnectionReport(
            peer=peer,
            bytes_out=sum(one.written_bytes for one in some),
            waiting_bytes=sum(one.waiting_bytes for one in some),
            blocked_ns=max(one.blocked_ns for one in some),
            round_trip_us=some[-1].path.round_trip_us,
            unsent_bytes=sum(known) if (known := [n for one in some if (n := one.path.unsent_bytes) >= 0]) else -1,
        )
        for peer, some in sorted(by_peer.items())
    ]


def _shared_out(subtasks: Sequence[SubtaskReport]) -> Iterator[list[SubtaskReport]]:
    some: list[SubtaskReport] = []
    size = 0
    for one in subtasks:
        weight = _weight_bytes(one)
        if some and size + weight > _MAX_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += weight
    yield some


def _weight_bytes(one: SubtaskReport) -> int:
    """About how many bytes it takes, rather more."""
    keys = sum(len(key.key) * 4 + 20 for key in one.hot_keys)
    counters = sum(len(name) * 4 + 20 for name in one.counters)
    return 1000 + 50 * (len(one.channels) + len(one.states) + len(one.latencies)) + keys + counters
