"""Pipelines that are slow for one known reason each, and calls of `why` for them. Spark's workers import it, too."""

import asyncio
import inspect
import random
import time
from contextlib import contextmanager

from tests.support.pipelines import END_S, wait_progress

import headgate as hg
from headgate.functions.source import Wait
from headgate.observe import JobStatus

QUICK = {
    "backpressure.samples": 20,  # enough to see where a task stands that always stands in the same place
    "backpressure.delay": "10 ms",
    "memory.segment_size": "512 B",  # a job settles, and is cancelled, after a few buffers
    "memory.network.fraction": 0.000001,  # so that min decides
    "memory.network.min": "1 MiB",
    "memory.network.max": "1 MiB",
}
"""Settings with frequent reports and a fast end."""

SETTLED_S = 2.0
"""How long a job runs before `why` is called: every task has sent a report or two."""

HOT_KEY, HOT_SHARE = "london", 0.8


def burn(value):
    total = 0
    for i in range(50_000):
        total += i
    return value


def look_up(value):
    time.sleep(0.02)
    return value


async def look_up_together(value):
    await asyncio.sleep(0.05)
    return value


def nap(value):
    """Block for 5 ms: short enough that the records of a job's start are soon processed."""
    time.sleep(0.005)
    return value


def drop(value):
    pass


def lines(function):
    """Return the line numbers of a function."""
    source, first = inspect.getsourcelines(function)
    return range(first, first + len(source))


def is_in(found, function):
    """Return True if a place in the code, as `why` names it, is in a function."""
    name, _, line = (found or "").rstrip(")").rpartition(":")
    file = inspect.getsourcefile(function).rpartition("/")[2]
    return name == f"{function.__qualname__} ({file}" and int(line) in lines(function)


class Numbers(hg.Source):
    """Emits 0, 1, 2 ... in each subtask, for ever, as long texts, so that few fit into the buffers."""

    bounded = False

    def splits(self, parallelism):
        return range(parallelism)

    def read(self, split, offset, place):
        for begin in range(0, 2**60, 20):
            yield self.batch(begin)

    def batch(self, begin):
        return [f"{begin + i:>80}" for i in range(20)]


class HardNumbers(Numbers):
    """The same source, with much work for each batch."""

    def batch(self, begin):
        for _ in range(5):
            burn(begin)
        return super().batch(begin)


class LeisurelyNumbers(Numbers):
    """The same source; it works half of the time, and waits the other half."""

    def read(self, split, offset, place):
        while True:
            time.sleep(0.03)
            yield [split]
            yield Wait(0.02)


class Cities(Numbers):
    """The same source, of cities; most records have the same city."""

    def batch(self, begin):
        chance = random.Random(begin)
        cities = [HOT_KEY if chance.random() < HOT_SHARE else f"town {chance.randrange(1000)}" for _ in range(20)]
        return list(zip(cities, super().batch(begin), strict=True))


@contextmanager
def asked(env, *, held=True, begins_s=END_S):
    """Return the diagnosis of a running job, and its view. `held`: wait until its source is back-pressured."""
    job = env.execute_async()
    try:
        wait_progress(job, lambda progress: progress.status is not JobStatus.CREATED, begins_s)
        wait_settled(job, held=held)
        yield job.why(refresh=True), job.view()
    finally:
        assert job.cancel(timeout_s=END_S), "a cancelled job ends"


def wait_settled(job, *, held):
    """Block until the figures no longer include the start of the job."""
    deadline = time.monotonic() + END_S
    while True:
        progress = job.last_progress
        tasks = [task for vertex in progress.vertices for task in vertex.subtasks]
        told = all(task.busy + task.idle + task.back_pressured + task.waiting > 0 for task in tasks)
        filled = not held or progress.vertices[0].back_pressured > 0.8
        if told and filled and progress.uptime_s >= SETTLED_S:
            return
        assert time.monotonic() < deadline, progress
        assert not job.status.over, progress
        time.sleep(0.05)


def busiest(view, vertex):
    """Return the subtask of a vertex that gets most records."""
    return max(view.progress.vertices[vertex].subtasks, key=lambda one: one.records_in).subtask
