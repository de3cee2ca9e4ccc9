"""Published jobs that never ran, and sockets that send invalid bytes."""

import socket
import struct
from contextlib import contextmanager
from dataclasses import replace

from tests.support.job_views import FakeWatched, synthetic_view
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.attach.directories import PrivateDirectory
from headgate.attach.publishing import RUN, PublishedJobs
from headgate.observe import JobStatus, SettingView


class FakeJob(FakeWatched):
    """A job that can be offered."""

    def __init__(self, job="job-1", name="etl", *, keep=None, **shape):
        super().__init__(synthetic_view(**{"vertices": 3, "subtasks": 2, "job": job, "name": name, **shape}))
        if keep is not None:
            kept = SettingView(key="metrics.keep", value=str(keep), origin="code")
            self.shown = replace(self.shown, settings=(*self.shown.settings, kept))
        self.id = job
        self.callbacks = []

    @property
    def status(self):
        return self.shown.progress.status

    def on_change(self, callback):
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def end(self, status=JobStatus.FINISHED):
        self.shown = replace(self.shown, progress=replace(self.shown.progress, status=status))
        for callback in list(self.callbacks):
            callback(self)


@contextmanager
def offered(root, *jobs):
    """Publish these jobs; at the end, end those that still run."""
    offers = PublishedJobs(root)
    for job in jobs:
        offers.add(job)
    if jobs:
        wait_until(lambda: offers._servers)
    try:
        yield offers
    finally:
        for job in offers.jobs().values():
            job.gate.set()
            job.end()
        ended(offers)


def ended(offers):
    """Block until the thread of a `PublishedJobs` without jobs has ended."""
    wait_until(lambda: offers._wake is None)
    offers._thread.join(PATIENCE_S)
    assert not offers._thread.is_alive()


def sockets(root):
    """Return the names of all sockets in the state directory."""
    try:
        with PrivateDirectory(RUN, root=root) as directory:
            return [one for one in directory.names() if not one.startswith(".")]
    except FileNotFoundError:
        return []


@contextmanager
def connected(root):
    """Connect to the only process that offers jobs."""
    (name,) = sockets(root)
    with PrivateDirectory(RUN, root=root) as directory, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(directory.via(name))
        yield sock


def message(data):
    return struct.pack("!I", len(data)) + data


def all_of(sock):
    """Return all bytes until the other side closes the connection."""
    data = b""
    try:
        while some := sock.recv(65536):
            data += some
    except ConnectionResetError:
        pass
    return data
