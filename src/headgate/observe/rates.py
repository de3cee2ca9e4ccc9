"""Rates and shares of tasks and workers, computed from their last two reports.

Used by the tracker, which keeps the reports; pure. Meters are read by name, so that a new field of `TaskMeters` needs
no line here, and a new field `x_per_s` of `TaskRates` is the rate of `x`.

Invariant: rates and shares are of the time between two reports, or since the task's start if there is only one.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headgate.control.reports import ConnectionMeters, OperatorMeters, SubtaskMeters
from headgate.observe.progress import (
    ChannelProgress,
    ConnectionProgress,
    OperatorProgress,
    SubtaskProgress,
    TaskRates,
    WorkerProgress,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.control.messages import TaskState
    from headgate.control.reports import ConnectionReport, SubtaskReport, WorkerReport

__all__ = ["RATES", "SHARES", "TaskCounters", "TaskSpan", "subtask_progress", "worker_progress"]

RATES: Final = tuple(one.name for one in fields(TaskRates) if one.name.endswith("_per_s"))
"""The fields of `TaskRates` that are rates."""

SHARES: Final = ("busy", "idle", "back_pressured", "waiting")
"""The fields of `TaskRates` that are shares of a task's time."""

_THREAD_SHARES: Final = ("cpu", "run_queue")
_ENDLESS_MS: Final = 2**62  # watermarks beyond are the beginning and the end of time

_Channels = tuple[ChannelProgress, ...]

_read_counts = attrgetter(*[name.removesuffix("_per_s") for name in RATES])
_read_times_ns = attrgetter(*[f"{name}_ns" for name in SHARES])
_read_thread_ns = attrgetter(*[f"{name}_ns" for name in _THREAD_SHARES])
_read_operator = attrgetter("records_in", "records_out")


class TaskCounters(NamedTuple):
    """The numbers of a report that rates and shares are computed from."""

    counts: tuple[int, ...]
    times_ns: tuple[int, ...]
    thread_ns: tuple[int, ...]  # -1: the system does not report it
    operators: tuple[tuple[int, int], ...] = ()  # records in and out of each operator

    @classmethod
    def of(cls, report: SubtaskReport) -> TaskCounters:
        """Return those of a report."""
        operators = tuple(map(_read_operator, report.operators))
        return cls(_read_counts(report), _read_times_ns(report), _read_thread_ns(report), operators)


class TaskSpan(NamedTuple):
    """The time between two reports of a task."""

    now: TaskCounters
    before: TaskCounters | None  # None: `now` is the first report
    elapsed_ms: int | None  # None: since the task's start

    def figures(self) -> dict[str, Any]:
        """Return the fields of a `SubtaskProgress` that are rates and shares; none if no time has passed."""
        now, before, elapsed_ms = self
        times_ns = _increases(now.times_ns, None if before is None else before.times_ns)
        total_ns = sum(times_ns)
        elapsed_ns = total_ns if elapsed_ms is None else elapsed_ms * 1_000_000
        if elapsed_ns <= 0:
            return {}
        counts = _increases(now.counts, None if before is None else before.counts)
        found: dict[str, Any] = {name: one * 1e9 / elapsed_ns for name, one in zip(RATES, counts, strict=True)}
        if total_ns > 0:
            found |= {name: one / total_ns for name, one in zip(SHARES, times_ns, strict=True)}
        earlier = (0,) * len(_THREAD_SHARES) if before is None else before.thread_ns
        for name, new, old in zip(_THREAD_SHARES, now.thread_ns, earlier, strict=True):
            if new >= 0 and old >= 0:
                found[name] = min(1.0, max(0, new - old) / elapsed_ns)
        return found

    def operator_rates(self) -> list[tuple[float, float]]:
        """Return the records in and out per second of each operator."""
        now, before, elapsed_ms = self
        times_ns = _increases(now.times_ns, None if before is None else before.times_ns)
        elapsed_ns = sum(times_ns) if elapsed_ms is None else elapsed_ms * 1_000_000
        if elapsed_ns <= 0:
            return []
        earlier = () if before is None else before.operators[: len(now.operators)]
        return [
            (max(0, new[0] - old[0]) * 1e9 / elapsed_ns, max(0, new[1] - old[1]) * 1e9 / elapsed_ns)
            for new, old in zip_longest(now.operators, earlier, fillvalue=(0, 0))
        ]


def _increases(now: tuple[int, ...], before: tuple[int, ...] | None) -> tuple[int, ...]:
    if before is None:
        return now
    return tuple([max(0, new - old) for new, old in zip(now, before, strict=True)])


_SUBTASK_METERS: Final = tuple(one.name for one in fields(SubtaskMeters))
_CONNECTION_METERS: Final = tuple(one.name for one in fields(ConnectionMeters))
_OPERATOR_METERS: Final = tuple(one.name for one in fields(OperatorMeters))


def _copy(names: Iterable[str], source: object) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def subtask_progress(
    subtask: int, worker: int, state: TaskState, *, last: SubtaskReport | None, at_ms: int, span: TaskSpan | None
) -> SubtaskProgress:
    """Return the figures of a task.

    Args:
        subtask: Its number.
        worker: Its worker.
        state: Its state.
        last: Its last report, if there is one.
        at_ms: The time of that report by the worker's clock.
        span: The time that rates are computed of; None: the task is over, or has not reported.
    """
    if last is None:
        return SubtaskProgress(subtask=subtask, worker=worker, state=state)
    mark = last.watermark_ms
    return SubtaskProgress(
        subtask=subtask,
        worker=worker,
        state=state,
        **_copy(_SUBTASK_METERS, last),
        **({} if span is None else span.figures()),
        in_pool_usage=_usage(last.in_pool_used, last.in_pool_size),
        out_pool_usage=_usage(last.out_pool_used, last.out_pool_size),
        channels=msgspec.convert(last.channels, _Channels, from_attributes=True),  # in C: there may be very many
        watermark_lag_ms=None if mark is None or abs(mark) >= _ENDLESS_MS else at_ms - mark,
        operators=_operators(last.operators, [] if span is None else span.operator_rates()),
    )


def _usage(used: int, size: int) -> float:
    return min(1.0, used / size) if size > 0 else 0.0


def _operators(meters: Sequence[OperatorMeters], rates: Sequence[tuple[float, float]]) -> tuple[OperatorProgress, ...]:
    known = rates or [(0.0, 0.0)] * len(meters)
    return tuple(
        [
            OperatorProgress(**_copy(_OPERATOR_METERS, one), records_in_per_s=in_per_s, records_out_per_s=out_per_s)
            for one, (in_per_s, out_per_s) in zip(meters, known, strict=True)
        ]
    )


def worker_progress(shown: WorkerProgress, last: WorkerReport | None, now: WorkerReport) -> WorkerProgress:
    """Return the figures of a worker that has reported `now`, and `last` before.

    If no time has passed between the two, rates stay as they are in `shown`.

    >>> from headgate.control.reports import WorkerReport
    >>> before, now = WorkerReport(1000, [], cpu_ns=0), WorkerReport(2000, [], cpu_ns=1_500_000_000)
    >>> worker_progress(WorkerProgress(number=0), before, now).cpu
    1.5
    """
    elapsed_ms = 0 if last is None else now.at_ms - last.at_ms
    cpu = shown.cpu
    if last is not None and elapsed_ms > 0:
        known = now.cpu_ns >= 0 and last.cpu_ns >= 0
        cpu = max(0, now.cpu_ns - last.cpu_ns) / (elapsed_ms * 1e6) if known else None
    before = {} if last is None else {one.peer: one for one in last.connections}
    connections = {one.peer: one for one in shown.connections}
    return replace(
        shown,
        **_copy([one.name for one in fields(now.process)], now.process),
        cpu=cpu,
        connections=tuple(
            _connection_progress(connections.get(one.peer), before.get(one.peer), one, elapsed_ms)
            for one in now.connections
        ),
    )


def _connection_progress(
    shown: ConnectionProgress | None, last: ConnectionReport | None, now: ConnectionReport, elapsed_ms: int
) -> ConnectionProgress:
    per_s, blocked = (0.0, 0.0) if shown is None else (shown.bytes_out_per_s, shown.blocked)
    if elapsed_ms > 0:
        per_s = max(0, now.bytes_out - (0 if last is None else last.bytes_out)) * 1000 / elapsed_ms
        blocked_ns = max(0, now.blocked_ns - (0 if last is None else last.blocked_ns))
        blocked = min(1.0, blocked_ns / (elapsed_ms * 1e6))
    return ConnectionProgress(**_copy(_CONNECTION_METERS, now), bytes_out_per_s=per_s, blocked=blocked)
