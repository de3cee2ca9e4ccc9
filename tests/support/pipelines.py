"""Shared by the tests of whole jobs: small workers, sources with given batches, and sinks that keep values."""

import threading
from collections import defaultdict
from contextlib import contextmanager
from functools import partial

import headgate as hg
from headgate.connectors.collect import ProcessLocal
from headgate.functions.sink import Sink
from headgate.functions.source import Source, Wait

END_S = 30.0
"""The limit of the wait for a job's end: only a hang takes so long."""

SMALL = {
    "memory.segment_size": "512 B",
    "memory.network.fraction": 0.000001,  # so that min decides
    "memory.network.min": "256 KiB",
    "memory.network.max": "256 KiB",
}
"""Buffers so small that every exchange needs many."""


def small_env(parallelism=2, *, chaining=True, **settings):
    """Return an environment on the local host; `memory__segment_size="4 KiB"` sets memory.segment_size."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    env = hg.environment(local=True, parallelism=parallelism, settings={**SMALL, **dotted})
    return env if chaining else env.disable_operator_chaining()


def run(env):
    """Execute a job to its end, within the limit. Return the job. Its error is raised."""
    job = env.execute_async()
    ended = False
    try:
        ended = job.await_termination(END_S)
    finally:
        if not ended and not job.status.over:
            job.cancel(timeout_s=END_S)
    assert ended, f"the job hangs: {job.last_progress}"
    return job


def failure(env, kind=hg.HeadgateError):
    """Return the error of a job that must fail."""
    job = env.execute_async()
    try:
        ended = job.await_termination(END_S)
    except kind as error:
        found, ended = error, True
    else:
        found = None
    job.cancel(timeout_s=END_S)
    assert found is not None, "the job has finished" if ended else f"the job hangs: {job.last_progress}"
    assert job.status.value == "failed"
    assert job.exception is found
    return found


@contextmanager
def running(env):
    """Run a job during the block, and cancel it after it."""
    job = env.execute_async()
    try:
        yield job
    finally:
        assert job.cancel(timeout_s=END_S), "a cancelled job ends"


def wait_progress(job, condition, timeout_s=END_S):
    """Block until `condition` is true for the job's progress. Fail if the progress does not change for too long."""
    changed = threading.Event()
    forget = job.on_change(lambda _: changed.set())
    try:
        while not condition(job.last_progress):
            assert changed.wait(timeout_s), job.last_progress
            changed.clear()
    finally:
        forget()


def states(progress):
    """Return the states of all tasks."""
    return {one.state for vertex in progress.vertices for one in vertex.subtasks}


def collected(stream):
    """Run the job of a stream. Return all records of the stream."""
    sink = Gathered()
    stream.sink_to(sink)
    run(stream._env)
    return sink.values


class Shared:
    """The shared data of all copies of a source or sink; all run in this process."""

    def __init__(self):
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.by_subtask = defaultdict(list)
        self.calls = []


class Gathered(Sink):
    """Keeps all values, by subtask. `each` is called with every value first."""

    def __init__(self, each=None):
        self._here = ProcessLocal(Shared())
        self._each = each
        self._subtask = None

    @property
    def shared(self):
        return self._here.value

    @property
    def values(self):
        with self.shared.lock:
            return [value for _, values in sorted(self.shared.by_subtask.items()) for value in values]

    @property
    def by_subtask(self):
        with self.shared.lock:
            return {subtask: list(values) for subtask, values in self.shared.by_subtask.items()}

    @property
    def calls(self):
        """The calls of open, finish and close, each with its subtask."""
        with self.shared.lock:
            return list(self.shared.calls)

    def open(self, place):
        self._subtask = place.subtask
        self._called("open")

    def write(self, values):
        for value in values:
            if self._each is not None:
                self._each(value)
            with self.shared.changed:
                self.shared.by_subtask[self._subtask].append(value)
                self.shared.changed.notify_all()

    def finish(self):
        self._called("finish")

    def close(self):
        self._called("close")

    def _called(self, what):
        with self.shared.lock:
            self.shared.calls.append((what, self._subtask))

    def wait_for(self, count):
        """Block until so many values were received."""
        with self.shared.changed:
            came = self.shared.changed.wait_for(lambda: sum(map(len, self.shared.by_subtask.values())) >= count, END_S)
        assert came, f"{count} values did not come: {self.by_subtask}"


NEVER = None


class Batches(Source):
    """Emits the given batches, split by split; a number of seconds is a `Wait`, NEVER an endless one."""

    def __init__(self, *splits, bounded=True):
        self._splits = [list(split) for split in splits]
        self.bounded = bounded

    def splits(self, parallelism):
        return list(range(len(self._splits)))

    def read(self, split, offset, place):
        for batch in self._splits[split]:
            while batch is NEVER:
                yield Wait(3600.0)
            yield Wait(batch) if isinstance(batch, float) else list(batch)


def cut(values, size):
    """Return a list in batches of a size."""
    return [values[begin : begin + size] for begin in range(0, len(values), size)]


class Endless(Source):
    """Emits 0, 1, 2 ... in each subtask, for ever, and counts them."""

    bounded = False

    def __init__(self, batch=10, pause_s=None):
        self._here = ProcessLocal(Shared())
        self._batch = batch
        self._pause_s = pause_s

    @property
    def produced(self):
        with self._here.value.lock:
            return sum(map(len, self._here.value.by_subtask.values())) * self._batch

    @property
    def closed(self):
        return sorted(self._here.value.calls)

    def splits(self, parallelism):
        return list(range(parallelism))

    def read(self, split, offset, place):
        shared, begin = self._here.value, 0
        try:
            while True:
                with shared.lock:
                    shared.by_subtask[split].append(begin)
                yield list(range(begin, begin + self._batch))
                begin += self._batch
                if self._pause_s is not None:
                    yield Wait(self._pause_s)
        finally:
            with shared.lock:
                shared.calls.append(split)


class Silent(Source):
    """Emits nothing, and does not end."""

    bounded = False

    def splits(self, parallelism):
        return list(range(parallelism))

    def read(self, split, offset, place):
        while True:
            yield Wait(60.0)


class WithSubtask(hg.MapFunction):
    """Emits each value with the subtask that got it."""

    def open(self, context):
        self.subtask = context.subtask_index

    def map(self, value):
        return self.subtask, value


def raising(error, *_):
    raise error


def raises(text):
    """Return a function of any arguments that raises."""
    return partial(raising, ValueError(text))
