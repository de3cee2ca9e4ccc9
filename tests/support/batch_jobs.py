"""Shared by the tests of BATCH jobs: environments with a directory of their own, functions that fail on request,
and a way to lose a worker of the local host."""

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager

from tests.support.pipelines import END_S, SMALL

import headgate as hg
from headgate.connectors.collect import ProcessLocal
from headgate.worker import run as worker_run


def batch_env(directory, parallelism=2, *, chaining=True, **settings):
    """Return a BATCH environment on the local host whose files are in `directory`."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    settings = {**SMALL, "batch.directories": str(directory), **dotted}
    env = hg.environment(local=True, parallelism=parallelism, settings=settings, runtime_mode="BATCH")
    return env if chaining else env.disable_operator_chaining()


def files_of(directory):
    """Return all files that BATCH jobs have left in a directory."""
    return sorted(
        os.path.join(path, name)
        for path, directories, names in os.walk(directory)
        for name in [*directories, *names]
        if not (path == str(directory) and name.startswith("headgate-"))
    )


class Seen:
    """What all copies of a function have recorded: `opened` and `values`, by subtask."""

    def __init__(self):
        self.lock = threading.Lock()
        self.opened = Counter()
        self.active = Counter()
        self.values = []
        self.together = 0  # how many were open at the same time in one subtask, at most
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.waited = Counter()  # runs that have come to where they wait
        self.let_go = 0  # runs up to this number need not wait


class Watched(hg.MapFunction):
    """Passes values on, and records when it is opened and the values that it gets.

    `fails`: it raises in its first runs, so many, of subtask `subtask`, in the method `method`. `waits`: at the first
    value it waits until the test lets it go on.
    """

    def __init__(self, *, fails=0, method="map", subtask=0, waits=False, seen=None):
        self._here = ProcessLocal(Seen()) if seen is None else seen._here
        self.fails, self.method, self.subtask, self.waits = fails, method, subtask, waits
        self.mine = 0
        self.own = []

    @property
    def seen(self):
        return self._here.value

    def _in(self, method):
        if method == self.method and self.here == self.subtask and self.seen.opened[self.here] <= self.fails:
            raise ValueError(f"made to fail in run {self.seen.opened[self.here]}")

    def open(self, context):
        self.here = context.subtask_index
        with self.seen.lock:
            self.seen.opened[self.here] += 1
            self.run = self.seen.opened[self.here]
            self.seen.active[self.here] += 1
            self.seen.together = max(self.seen.together, self.seen.active[self.here])
        self._in("open")

    def map(self, value):
        self.own.append(value)
        with self.seen.lock:
            self.seen.values.append(value)
        if self.waits:
            self._wait()
        if len(self.own) == 3:
            self._in("map")
        return value

    def _wait(self):
        seen, deadline = self.seen, time.monotonic() + END_S
        seen.waited[self.here] = self.run
        seen.reached.set()
        while not (seen.go_on.is_set() or seen.let_go >= self.run):
            assert time.monotonic() < deadline, "the test did not release it"
            seen.go_on.wait(0.01)

    def close(self):
        with self.seen.lock:
            self.seen.active[self.here] -= 1
        self._in("close")


@contextmanager
def links(monkeypatch):
    """Collect the control links of all workers that are started meanwhile, by (worker, attempt)."""
    found = {}
    real = worker_run.connect_control

    def connect(transport, coordinator, identity, *args, **kwargs):
        link = real(transport, coordinator, identity, *args, **kwargs)
        found[identity.worker, identity.attempt] = link
        return link

    with monkeypatch.context() as patched:
        patched.setattr(worker_run, "connect_control", connect)
        yield found


def texts(job):
    """Return the texts of a job's events."""
    return [event.text for event in job.events]
