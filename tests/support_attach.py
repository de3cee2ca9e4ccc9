"""Jobs to be offered that never ran, and sockets that say what they should not."""

import socket
import struct
import time
from contextlib import contextmanager
from dataclasses import replace

from tests.support_views import FakeWatched, synthetic_view

from headgate.attach.offers import RUN, Offers
from headgate.attach.places import PrivateDirectory
from headgate.observe import JobStatus, SettingView

WAIT_S = 20.0
"""How long a test waits for what should happen at once."""


class FakeJob(FakeWatched):
    """A job as `offer` takes it."""

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
    """A process that has these jobs; in the end all that are left are over."""
    offers = Offers(root)
    for job in jobs:
        offers.add(job)
    if jobs:
        until(lambda: offers._servers)
    try:
        yield offers
    finally:
        for job in offers.jobs().values():
            job.gate.set()
            job.end()
        ended(offers)


def ended(offers):
    """Wait until nothing is left of a process that has no jobs."""
    until(lambda: offers._wake is None)
    offers._thread.join(WAIT_S)
    assert not offers._thread.is_alive()


def sockets(root):
    """The names of all sockets that there are."""
    try:
        with PrivateDirectory(RUN, root=root) as directory:
            return [one for one in directory.names() if not one.startswith(".")]
    except FileNotFoundError:
        return []


@contextmanager
def connected(root):
    """A connection to the only process."""
    (name,) = sockets(root)
    with PrivateDirectory(RUN, root=root) as directory, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(directory.via(name))
        yield sock


def message(data):
    return struct.pack("!I", len(data)) + data


def all_of(sock):
    """What comes until the other side hangs up."""
    data = b""
    try:
        while some := sock.recv(65536):
            data += some
    except ConnectionResetError:
        pass
    return data


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return found
