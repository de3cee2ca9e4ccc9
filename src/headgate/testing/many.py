"""Many seeds at once, on as many processes as there are cores.

Called by `headgate simulate`, by the test suite and by the soak. Which seeds fail does not depend on how they are
spread over processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.testing.simulation import Simulation, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Failure", "simulate_many"]

_SEEDS_AT_ONCE = 10  # so few that progress is smooth and an interrupt is quick


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that failed, and how.

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
    """Run seeds on `jobs` processes (None: one per core; 1: in this one); those that fail, in order.

    `progress` is called now and then with the number of seeds that have been run.

    >>> simulate_many(range(3), jobs=1)
    []
    """
    chunks = [seeds[start : start + _SEEDS_AT_ONCE] for start in range(0, len(seeds), _SEEDS_AT_ONCE)]
    tell = progress if progress is not None else _nobody
    jobs = jobs if jobs is not None else os.cpu_count() or 1
    if jobs == 1:
        return _one_by_one(chunks, tell)
    failures: list[Failure] = []
    done = 0
    # Not forked: whoever calls may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(chunks) or 1), mp_context=context, initializer=_ignore_interrupts)
    try:
        waiting: dict[Future[list[Failure]], int] = {pool.submit(_run, chunk): len(chunk) for chunk in chunks}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                failures += future.result()
                done += waiting.pop(future)
            tell(done)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return sorted(failures, key=lambda failure: failure.seed)


def _one_by_one(chunks: list[Sequence[int]], tell: Callable[[int], object]) -> list[Failure]:
    failures: list[Failure] = []
    done = 0
    for chunk in chunks:
        failures += _run(chunk)
        done += len(chunk)
        tell(done)
    return failures


def _run(seeds: Sequence[int]) -> list[Failure]:
    failures = []
    for seed in seeds:
        simulation = Simulation(seed)
        text = failure_of(simulation)
        if text is not None:
            failures.append(Failure(seed, tuple(map(str, simulation.struck)), text))
    return failures


def _ignore_interrupts() -> None:
    """Ctrl-C goes to the whole group: the parent ends its children by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _nobody(_done: int) -> None:
    """Nobody wants to know."""
