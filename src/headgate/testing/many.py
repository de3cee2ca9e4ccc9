"""Runs many seeds, on one process per core.

Called by `headgate simulate`, by the test suite and by the soak. The result of a seed does not depend on the process
that runs it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.testing.loop_model import loop_failure_of
from headgate.testing.simulation import Simulation, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Failure", "simulate_many"]

_SEEDS_AT_ONCE = 10  # few enough to report progress often and to stop fast


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that failed, with its faults and the text of the error.

    >>> Failure(7, ("pause after 3 actions (0, 1, 0.500)",), "InvariantViolated: ...").repeat
    'headgate simulate --seed 7'
    """

    seed: int
    faults: tuple[str, ...]
    text: str

    @property
    def repeat(self) -> str:
        """The command that repeats it."""
        return f"headgate simulate --seed {self.seed}"


def simulate_many(
    seeds: Sequence[int], *, jobs: int | None = None, progress: Callable[[int], object] | None = None
) -> list[Failure]:
    """Run seeds on `jobs` processes (None: one per core; 1: this one). Return those that failed, in order.

    `progress` is called with the number of seeds that have run, after every few of them.

    >>> simulate_many(range(3), jobs=1)
    []
    """
    chunks = [seeds[start : start + _SEEDS_AT_ONCE] for start in range(0, len(seeds), _SEEDS_AT_ONCE)]
    report = progress if progress is not None else _ignore
    jobs = jobs if jobs is not None else os.cpu_count() or 1
    if jobs == 1:
        return _one_by_one(chunks, report)
    failures: list[Failure] = []
    done = 0
    # Not forked: the calling process may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(chunks) or 1), mp_context=context, initializer=_ignore_interrupts)
    try:
        waiting: dict[Future[list[Failure]], int] = {pool.submit(_run, chunk): len(chunk) for chunk in chunks}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                failures += future.result()
                done += waiting.pop(future)
            report(done)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return sorted(failures, key=lambda failure: failure.seed)


def _one_by_one(chunks: list[Sequence[int]], report: Callable[[int], object]) -> list[Failure]:
    failures: list[Failure] = []
    done = 0
    for chunk in chunks:
        failures += _run(chunk)
        done += len(chunk)
        report(done)
    return failures


def _run(seeds: Sequence[int]) -> list[Failure]:
    failures = []
    for seed in seeds:
        simulation = Simulation(seed)
        text = failure_of(simulation) or loop_failure_of(seed)
        if text is not None:
            failures.append(Failure(seed, tuple(map(str, simulation.struck)), text))
    return failures


def _ignore_interrupts() -> None:
    """Ignore SIGINT in a child: Ctrl-C sends it to the whole group, and the parent ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ignore(_done: int) -> None:
    """Report no progress."""
