"""Many moments of tasks made into fewer steps: the arithmetic of time-lines, on arrays of `history`.

Arrays are (tasks, moments, figures), with each figure plus one, and 0 where nothing is known. Pure; any thread.

Invariants: a step of which nothing is known is -1 in every figure; else unknown moments do not count, neither in a mean
nor in a sum; means are rounded to the nearest, halves up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headgate.observe.timeline import TaskLine

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Figures", "lines_of", "together"]

Figures: TypeAlias = "NDArray[np.integer[Any]]"
"""Unsigned figures of tasks in moments, each plus one."""

_Ints: TypeAlias = "NDArray[np.int64]"


def lines_of(vertex: int, shares: Figures, counts: Figures, per_step: int) -> list[TaskLine]:
    """The lines of a vertex's tasks, one each.

    >>> shares = np.array([[[901, 101, 1, 1, 251], [701, 301, 1, 1, 1]]], np.uint16)
    >>> counts = np.array([[[6, 6, 1, 1], [4, 4, 3, 1]]], np.uint32)
    >>> line, = lines_of(0, shares, counts, per_step=2)
    >>> line.busy, line.records_in, line.in_queued, line.out_pool
    ((800,), (8,), (2,), (250,))
    """
    tasks, moments, _ = shares.shape
    steps = moments // per_step
    shaped = shares.reshape(tasks, steps, per_step, -1)
    known = np.count_nonzero(shaped[..., 0], axis=2)
    spent = shaped[..., :3].sum(axis=2, dtype=np.int64) - known[..., None]
    counted = counts.reshape(tasks, steps, per_step, -1)
    moved = counted[..., :2].sum(axis=2, dtype=np.int64) - known[..., None]
    pools = shaped[..., 3:].max(axis=2).astype(np.int64) - 1
    queues = counted[..., 2:].max(axis=2).astype(np.int64) - 1
    means = _mean(spent, known[..., None])
    moved[known == 0] = -1
    return [
        _line(vertex, one, spent=means[one], moved=moved[one], queues=queues[one], pools=pools[one])
        for one in range(tasks)
    ]


def together(vertex: int, shares: Figures, counts: Figures, per_step: int) -> TaskLine:
    """One line for all tasks of a vertex: means of shares and pools, sums of what is counted.

    Queues and pools are first put together for each moment, and then the most in the step is taken.

    >>> shares = np.array([[[901, 101, 1, 1, 251]], [[701, 301, 1, 1, 1]]], np.uint16)
    >>> counts = np.array([[[6, 6, 1, 1]], [[4, 4, 3, 1]]], np.uint32)
    >>> line = together(0, shares, counts, per_step=1)
    >>> line.busy, line.records_in, line.in_queued, line.out_pool
    ((800,), (8,), (2,), (125,))
    """
    steps = shares.shape[1] // per_step
    known = np.count_nonzero(shares[..., 0], axis=0)  # tasks, in each moment
    shared = shares.sum(axis=0, dtype=np.int64) - known[:, None]
    counted = counts.sum(axis=0, dtype=np.int64) - known[:, None]
    pools = _mean(shared[:, 3:], known[:, None])
    queues = np.where(known[:, None] > 0, counted[:, 2:], -1)
    known_in_step = known.reshape(steps, per_step).sum(axis=1)
    spent = shared[:, :3].reshape(steps, per_step, 3).sum(axis=1)
    moved = counted[:, :2].reshape(steps, per_step, 2).sum(axis=1)
    moved[known_in_step == 0] = -1
    return _line(
        vertex,
        -1,
        spent=_mean(spent, known_in_step[:, None]),
        moved=moved,
        queues=queues.reshape(steps, per_step, 2).max(axis=1),
        pools=pools.reshape(steps, per_step, 2).max(axis=1),
    )


def _mean(sums: _Ints, of: _Ints) -> _Ints:
    """To the nearest; -1 where it is of nothing."""
    return np.where(of > 0, (2 * sums + of) // np.maximum(1, 2 * of), -1)


def _line(vertex: int, subtask: int, *, spent: _Ints, moved: _Ints, queues: _Ints, pools: _Ints) -> TaskLine:
    busy, idle, held = (tuple(column) for column in spent.T.tolist())
    came, went = (tuple(column) for column in moved.T.tolist())
    queued, backlog = (tuple(column) for column in queues.T.tolist())
    in_pool, out_pool = (tuple(column) for column in pools.T.tolist())
    return TaskLine(
        vertex=vertex,
        subtask=subtask,
        busy=busy,
        idle=idle,
        back_pressured=held,
        records_in=came,
        records_out=went,
        in_queued=queued,
        backlog=backlog,
        in_pool=in_pool,
        out_pool=out_pool,
    )
