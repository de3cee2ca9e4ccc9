"""A blocking partition to test with: its memory, its file, and a read-ahead whose steps the test takes itself."""

import os
import threading

from tests.support.buffers import make_network
from tests.support.exchange import partition_id
from tests.support.waiting import PATIENCE_S

from headgate.buffer import Limits
from headgate.config import BatchSettings, Compression
from headgate.ids import SubpartitionIndex
from headgate.output import BlockingPartition, PartitionRegistry, ReadAhead, StepResult
from headgate.output.disk.file import PartitionFileWriter
from headgate.worker.disk import DiskThread
from headgate.worker.storage import Storage

SIZE = 64
"""The bytes of a segment."""


def store(env, directory, identity=None, **batch):
    """Give a worker a directory on disk for a job."""
    identity = partition_id() if identity is None else identity
    env.storage = Storage(
        BatchSettings(directories=str(directory), **batch), identity.job, identity.attempt, driver_here=True
    )
    return env.storage


def files_in(directory):
    """Return every file below a directory that is not a lock or a marker, by name."""
    return sorted(name for _, _, names in os.walk(directory) for name in names if "partition" in name)


class Gated:
    """A file or a writer whose I/O blocks until the test releases it."""

    def __init__(self, under, *names):
        self._under = under
        self._names = names
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        found = getattr(self._under, name)
        if name not in self._names:
            return found

        def held(*args, **options):
            self.entered.set()
            assert self.go_on.wait(PATIENCE_S)
            return found(*args, **options)

        return held


class Reading:
    """One reader of a subpartition: it is notified of data, and polls as a gate does."""

    def __init__(self, rig, index):
        self.rig = rig
        self.index = SubpartitionIndex(index)
        self.told = 0
        self.held = []
        with rig.lock:
            self.reader, wake = rig.registry.attach_locked(rig.partition.id, self.index, self)
        if wake is not None:
            wake()

    def available_locked(self):
        self.told += 1

    def poll(self):
        """Return the next bytes, which are held until `drop`; None if there are none yet."""
        with self.rig.lock:
            taken, wake = self.reader.poll_locked()
        if wake is not None:
            wake()
        if taken is None:
            return None
        self.held.append(taken)
        return taken.memory.tobytes()

    def drop(self):
        for taken in self.held:
            taken.release()
        self.held.clear()

    def take(self):
        found = self.poll()
        self.drop()
        return found

    def rest(self):
        """Return all bytes to the end, read from disk on request; without the end event."""
        found = []
        while not self.reader.drained:
            one = self.take()
            if one is not None:
                found.append(one)
            else:
                assert self.rig.ahead.step() is StepResult.READ
        return found[:-1]

    def leave(self):
        with self.rig.lock:
            wake = self.rig.registry.release_subpartition_locked(self.rig.partition.id, self.index, None, self)
        if wake is not None:
            wake()
        self.drop()


class Rig:
    """One blocking partition with its memory, file and read-ahead."""

    def __init__(
        self,
        directory,
        subpartitions=1,
        *,
        segments=64,
        most=4,
        compression=Compression.NONE,
        quota=None,
        around=lambda writer: writer,
        thread=False,
    ):
        self.memory = make_network(segments, SIZE)
        self.lock = self.memory.lock
        self.registry = PartitionRegistry(self.lock)
        self.woken = 0
        self.thread = DiskThread(self.memory, Limits(), most=most) if thread else None
        self.ahead = (
            self.thread.read_ahead
            if self.thread is not None
            else ReadAhead(self.memory, Limits().read_ahead_pool(), most=most, wake=self._wake)
        )
        self.path = f"{directory}/v0.0-0.partition"
        self.writer = around(
            PartitionFileWriter(
                self.path,
                temporary=f"{directory}/.v0.0-0.partition.part",
                subpartitions=subpartitions,
                segment_size=SIZE,
                compression=compression,
                quota=quota,
            )
        )
        pool = self.memory.create_pool("partition", required=subpartitions + 1, channels=subpartitions)
        self.partition = BlockingPartition(partition_id(), subpartitions, pool, self.writer, self.ahead)
        self.registry.register(self.partition)

    def _wake(self):
        self.woken += 1

    def put(self, channel, data):
        """Write one finished buffer."""
        buffer = self.partition.next_buffer(channel, None, mid_record=False)
        assert buffer.append(data) == len(data)
        self.partition.end_buffer(channel, buffer)

    def step(self, turns=1):
        return [self.ahead.step() for _ in range(turns)][-1]

    def step_out(self):
        """Run read-ahead steps until there is nothing to read."""
        while self.ahead.step() is StepResult.READ:
            pass

    @property
    def used(self):
        now = self.memory.statistics()
        return now.total - now.free

    def close(self, *, keep=False):
        self.registry.release_all(keep=keep)
        (self.thread or self.ahead).close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
        assert not self.used
