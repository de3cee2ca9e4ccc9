"""Fewer, longer steps from many intervals: the arithmetic of timelines, on the arrays of `history`.

Arrays are (tasks, intervals, fields), with each figure plus one, and 0 for an unknown one. Pure; any thread.

Invariants: an unknown step is -1 in every figure; else unknown intervals do not count, neither in a mean nor in a sum;
means are rounded to the nearest, halves up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from headgate.observe.timeline import TaskLine

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["COUNT_FIELDS", "SHARE_FIELDS", "Figures", "task_lines", "vertex_line"]

_TIMES: Final = ("busy", "idle", "back_pressured", "waiting")
_POOLS: Final = ("in_pool", "out_pool")
_RECORDS: Final = ("records_in", "records_out")
_QUEUES: Final = ("in_queued", "backlog")

SHARE_FIELDS: Final = (*_TIMES, *_POOLS)
"""The fields of a `SubtaskInterval` in thousandths, in the order of the array `shares`."""

COUNT_FIELDS: Final = (*_RECORDS, *_QUEUES)
"""The fields of a `SubtaskInterval` that are counts, in the order of the array `counts`."""

Figures: TypeAlias = "NDArray[np.integer[Any]]"
"""Unsigned figures of tasks in intervals, each plus one."""

_Ints: TypeAlias = "NDArray[np.int64]"


def task_lines(vertex: int, shares: Figures, counts: Figures, per_step: int) -> list[TaskLine]:
    """Return one line for each task of a vertex: means of times, sums of records, maxima of queues and pools.

    >>> shares = np.array([[[901, 101, 1, 1, 1, 251], [701, 301, 1, 1, 1, 1]]], np.uint16)
    >>> counts = np.array([[[6, 6, 1, 1], [4, 4, 3, 1]]], np.uint32)
    >>> line, = task_lines(0, shares, counts, per_step=2)
    >>> line.busy, line.records_in, line.in_queued, line.out_pool
    ((800,), (8,), (2,), (250,))
    """
    tasks, intervals, _ = shares.shape
    steps = intervals // per_step
    shares = shares.reshape(tasks, steps, per_step, -1)
    counts = counts.reshape(tasks, steps, per_step, -1)
    known = np.count_nonzero(shares[..., 0], axis=2)
    times = shares[..., : len(_TIMES)].sum(axis=2, dtype=np.int64) - known[..., None]
    records = counts[..., : len(_RECORDS)].sum(axis=2, dtype=np.int64) - known[..., None]
    pools = shares[..., len(_TIMES) :].max(axis=2).astype(np.int64) - 1
    queues = counts[..., len(_RECORDS) :].max(axis=2).astype(np.int64) - 1
    means = _mean(times, known[..., None])
    records[known == 0] = -1
    return [
        _line(vertex, one, times=means[one], records=records[one], queues=queues[one], pools=pools[one])
        for one in range(tasks)
    ]


def vertex_line(vertex: int, shares: Figures, counts: Figures, per_step: int) -> TaskLine:
    """Return one line for all tasks of a vertex: means of times and pools, sums of records and queues.

    Queues and pools are combined for each interval first; the step has the greatest of its intervals.

    >>> shares = np.array([[[901, 101, 1, 1, 1, 251]], [[701, 301, 1, 1, 1, 1]]], np.uint16)
    >>> counts = np.array([[[6, 6, 1, 1]], [[4, 4, 3, 1]]], np.uint32)
    >>> line = vertex_line(0, shares, counts, per_step=1)
    >>> line.busy, line.records_in, line.in_queued, line.out_pool
    ((800,), (8,), (2,), (125,))
    """
    steps = shares.shape[1] // per_step
    known = np.count_nonzero(shares[..., 0], axis=0)  # tasks, by interval
    share_sums = shares.sum(axis=0, dtype=np.int64) - known[:, None]
    count_sums = counts.sum(axis=0, dtype=np.int64) - known[:, None]
    pools = _mean(share_sums[:, len(_TIMES) :], known[:, None])
    queues = np.where(known[:, None] > 0, count_sums[:, len(_RECORDS) :], -1)
    known_in_step = known.reshape(steps, per_step).sum(axis=1)
    times = share_sums[:, : len(_TIMES)].reshape(steps, per_step, len(_TIMES)).sum(axis=1)
    records = count_sums[:, : len(_RECORDS)].reshape(steps, per_step, len(_RECORDS)).sum(axis=1)
    records[known_in_step == 0] = -1
    return _line(
        vertex,
        -1,
        times=_mean(times, known_in_step[:, None]),
        records=records,
        queues=queues.reshape(steps, per_step, len(_QUEUES)).max(axis=1),
        pools=pools.reshape(steps, per_step, len(_POOLS)).max(axis=1),
    )


def _mean(sums: _Ints, of: _Ints) -> _Ints:
    """Return the means, rounded to the nearest; -1 for a mean of nothing."""
    return np.where(of > 0, (2 * sums + of) // np.maximum(1, 2 * of), -1)


def _line(vertex: int, subtask: int, *, times: _Ints, records: _Ints, queues: _Ints, pools: _Ints) -> TaskLine:
    groups = ((_TIMES, times), (_RECORDS, records), (_QUEUES, queues), (_POOLS, pools))
    columns = {
        name: tuple(column) for names, figures in groups for name, column in zip(names, figures.T.tolist(), strict=True)
    }
    return TaskLine(vertex=vertex, subtask=subtask, **columns)
