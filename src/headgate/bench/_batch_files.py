"""Bytes through a blocking partition and back, beside a plain file, in processes of their own; run by the batch suite.

All sides put the same blocks of text into buffers of the same size, one after the other, from one thread, with the
same codec, and read them again: the plain file without index or bounds, the partition by next_buffer and publish, and
through a gate of the same worker, or of another worker on loopback. Before each run whatever was to be written to disks
is written, and a file of the same size is made and removed: nobody pays for pages that a virtual machine gets from its
host for the first time, which cost several times what they cost later. Nobody waits for its own bytes to reach the
disk, so with memory to spare all read from the page cache.

Invariant: whoever reads finds every block, each channel's in their order, or there is no figure.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.bench._children import START_S, Parent, child
from headgate.bench._workloads import lines
from headgate.config import BatchSettings, Compression, MemorySettings, Settings
from headgate.errors import InvariantViolated
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import PartitionType
from headgate.worker import Environment
from headgate.worker.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headgate.bench._wire_ends import Ends, Place
    from headgate.buffer import Buffer
    from headgate.input import InputGate
    from headgate.input.channel import Source

__all__ = ["Load", "Moved", "carry_local", "carry_plain", "carry_remote"]

_JOB: Final = JobId("bench")
_ATTEMPT: Final = AttemptId(1)
_PARTITION: Final = PartitionId(_JOB, _ATTEMPT, 0, 0, 0)
_MEMORY_BYTES: Final = 64 * 1024 * 1024  # a worker's, by default
_BLOCKS: Final = 16  # different ones
_STAMP_BYTES: Final = 8  # at the beginning of each, by which it is known
_LINE_BYTES: Final = 60  # of text, at least
_PRODUCER: Final = 0  # its worker's number; the reader's is 1
_WARM_BYTES: Final = 1024 * 1024  # a write
_SLOWEST: Final = 10e6  # bytes/s: below it something hangs
_CODECS: Final = {Compression.LZ4: "lz4_raw", Compression.ZSTD: "zstd"}  # what partitions use, by pyarrow's names


@dataclass(frozen=True, slots=True)
class Load:
    """What one run carries.

    >>> Load("", Compression.NONE, total=10**6, buffer_bytes=2**18).count
    3
    """

    directory: str
    compression: Compression
    total: int  # bytes, about: a whole number of buffers
    buffer_bytes: int = 256 * 1024  # what jobs in BATCH have
    channels: int = 10  # of the partition

    @property
    def count(self) -> int:
        """How many buffers."""
        return max(1, self.total // self.buffer_bytes)

    @property
    def limit_s(self) -> float:
        """How long a run may take, with its start."""
        return START_S + 2 * self.total / _SLOWEST

    @property
    def settings(self) -> Settings:
        """Those of a worker that carries it."""
        batch = BatchSettings(directories=self.directory, compression=self.compression)
        return Settings(memory=MemorySettings(segment_size=self.buffer_bytes), batch=batch)


class Moved(NamedTuple):
    """What one run took.

    >>> moved = Moved(total=4 * 10**9, stored=10**9, write_s=3.0, read_s=1.0, cpu_s=5.0)
    >>> moved.gb_per_s, moved.stored_percent
    (1.0, 25.0)
    """

    total: int  # bytes
    stored: int  # bytes in files
    write_s: float
    read_s: float
    cpu_s: float  # of all threads and processes of both sides

    @property
    def gb_per_s(self) -> float:
        """There and back."""
        return self.total / (self.write_s + self.read_s) / 1e9

    @property
    def written_gb_per_s(self) -> float:
        """There."""
        return self.total / self.write_s / 1e9

    @property
    def read_gb_per_s(self) -> float:
        """And back."""
        return self.total / self.read_s / 1e9

    @property
    def stored_percent(self) -> float:
        """What is left of it on disk."""
        return 100 * self.stored / self.total


def carry_plain(load: Load) -> Moved:
    """One run of a plain file."""
    return _alone(_plain, load)


def carry_local(load: Load) -> Moved:
    """One run of a partition that is read in its own worker."""
    return _alone(_local, load)


def carry_remote(ends: Ends, load: Load) -> Moved:
    """One run of a partition that is read by a worker in another process, over loopback."""
    with _clean(load) as own:
        produce, consume = partial(_produce, load=own), partial(_consume, load=own)
        return _moved(own, *ends.run(produce, consume, settings=own.settings, limit_s=own.limit_s))


def _alone(function: Callable[[Parent, Load], Moved], load: Load) -> Moved:
    with _clean(load) as own, child(function, own) as process:
        return process.result(own.limit_s)


@contextmanager
def _clean(load: Load) -> Iterator[Load]:
    """In a directory of its own, which goes with all that is in it; for what is done first see above."""
    with tempfile.TemporaryDirectory(dir=load.directory) as directory:
        os.sync()
        _warm(Path(directory) / "warm", load.total)
        yield replace(load, directory=directory)


def _warm(path: Path, total: int) -> None:
    with open(path, "xb", buffering=0) as file:
        path.unlink()
        file.writelines(bytes(_WARM_BYTES) for _ in range(0, total, _WARM_BYTES))


# What is carried --------------------------------------------------------------------------------------------


class _Blocks:
    """Text in blocks as large as a buffer, given out again and again; no two begin alike."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._stamps = [b"%0*d\n" % (_STAMP_BYTES - 1, number) for number in range(_BLOCKS)]
        text = "\n".join(lines(_BLOCKS * size // _LINE_BYTES + 1)).encode()
        rest = size - _STAMP_BYTES
        self._blocks = [stamp + text[at * rest : (at + 1) * rest] for at, stamp in enumerate(self._stamps)]
        assert {len(block) for block in self._blocks} == {size}, "there is text enough"

    def __getitem__(self, number: int) -> bytes:
        return self._blocks[number % _BLOCKS]

    def check(self, number: int, found: memoryview) -> None:
        """Raises unless this is that block, by its length and its first bytes."""
        if len(found) != self.size or found[:_STAMP_BYTES] != self._stamps[number % _BLOCKS]:
            raise InvariantViolated(f"{len(found)} bytes were read that are not block {number}")


class _Took(NamedTuple):
    """What one side of a run took."""

    seconds: float
    cpu_s: float
    stored: int = 0


class _Watch:
    """A clock, and the processor time of this process."""

    def __init__(self) -> None:
        self._began_ns, self._cpu_ns = time.monotonic_ns(), time.process_time_ns()

    @property
    def took(self) -> _Took:
        return _Took((time.monotonic_ns() - self._began_ns) / 1e9, (time.process_time_ns() - self._cpu_ns) / 1e9)


def _moved(load: Load, write: _Took, read: _Took) -> Moved:
    total = load.count * load.buffer_bytes
    return Moved(total, write.stored, write.seconds, read.seconds, write.cpu_s + read.cpu_s)


def _stored(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())


# A plain file -----------------------------------------------------------------------------------------------


def _plain(parent: Parent, load: Load) -> Moved:  # noqa: ARG001 - it has nothing to say
    """In a process of its own."""
    blocks, codec = _Blocks(load.buffer_bytes), None
    if load.compression is not Compression.NONE:
        from pyarrow import Codec  # noqa: PLC0415 - slow to import

        codec = Codec(_CODECS[load.compression])
    buffer = memoryview(bytearray(load.buffer_bytes))
    with open(Path(load.directory) / "plain", "x+b", buffering=0) as file:
        watch, lengths = _Watch(), []
        for number in range(load.count):
            buffer[:] = blocks[number]  # a program puts what it has into a buffer, here as there
            data = buffer if codec is None else codec.compress(buffer)
            lengths.append(len(data))
            if file.write(data) != len(data):
                raise InvariantViolated("a file takes all that it is given, or fails")
        wrote = watch.took
        file.seek(0)
        watch = _Watch()
        for number, length in enumerate(lengths):
            stored = buffer[:length]
            if file.readinto(stored) != length:
                raise InvariantViolated("a file gives all that was written to it")
            blocks.check(number, stored if codec is None else memoryview(codec.decompress(stored, load.buffer_bytes)))
        read = watch.took
        return _moved(load, wrote._replace(stored=_stored(load.directory)), read)


# A partition ------------------------------------------------------------------------------------------------


@contextmanager
def _worker(load: Load, settings: Settings) -> Iterator[Environment]:
    """A worker with files in the directory, which go with it."""
    with Environment(settings, memory_bytes=_MEMORY_BYTES) as worker:
        for segment in worker.memory.arena.segments:
            segment.memory[:] = bytes(load.buffer_bytes)  # so that every page is there before the clock starts
        worker.storage = Storage(settings.batch, _JOB, _ATTEMPT, driver_here=True)
        yield worker


def _write(worker: Environment, load: Load, blocks: _Blocks) -> _Took:
    """Fill a partition, its channels in turn."""
    partition = worker.partition(_PARTITION, subpartitions=load.channels, kind=PartitionType.BLOCKING)
    filled: list[Buffer | None] = [None] * load.channels
    watch = _Watch()
    for number in range(load.count):
        channel = number % load.channels
        filled[channel] = buffer = partition.next_buffer(channel, filled[channel], mid_record=False)
        assert buffer is not None, "it was waited for"
        buffer.memory[:] = blocks[number]
        buffer.publish(load.buffer_bytes)
    for channel, last in enumerate(filled):
        if last is not None:
            partition.end_buffer(channel, last)
    partition.finish()
    return watch.took._replace(stored=_stored(load.directory))


def _read(gate: InputGate, sources: Iterable[Source], load: Load, blocks: _Blocks) -> _Took:
    """Connect a gate and read all there is."""
    watch = _Watch()
    for index, source in enumerate(sources):
        gate.connect(index, source)
    due, count, taken = list(range(load.channels)), 0, gate.read()  # the next block of each channel
    while taken is not None:
        if taken.event is None:
            blocks.check(due[taken.channel], taken.memory)
            due[taken.channel] += load.channels
            count += 1
        taken = gate.read(done=taken)
    if count != load.count:
        raise InvariantViolated(f"{count} of {load.count} blocks were read")
    return watch.took


def _local(parent: Parent, load: Load) -> Moved:  # noqa: ARG001 - it has nothing to say
    """In a process of its own."""
    blocks = _Blocks(load.buffer_bytes)
    with _worker(load, load.settings) as worker:
        wrote = _write(worker, load, blocks)
        gate = worker.gate("bench", channels=load.channels)
        sources = [worker.local_source(_PARTITION, SubpartitionIndex(index)) for index in range(load.channels)]
        return _moved(load, wrote, _read(gate, sources, load, blocks))


def _produce(parent: Parent, place: Place, *, load: Load) -> _Took:
    """In the one process: its processor time is of writing and of serving the reader."""
    with _worker(load, place.settings) as worker:
        address = worker.join(place.identity)
        blocks, watch = _Blocks(load.buffer_bytes), _Watch()
        wrote = _write(worker, load, blocks)
        parent.send(address)
        parent.receive(load.limit_s)  # until all is read
        return wrote._replace(cpu_s=watch.took.cpu_s)


def _consume(parent: Parent, place: Place, *, load: Load) -> _Took:
    """In the other."""
    blocks = _Blocks(load.buffer_bytes)
    with Environment(place.settings, memory_bytes=_MEMORY_BYTES) as worker:
        worker.join(place.identity)
        address = parent.receive(load.limit_s)
        gate = worker.gate("bench", channels=load.channels)
        sources = [
            worker.remote_source(gate, _PARTITION, SubpartitionIndex(index), worker=_PRODUCER, address=address)
            for index in range(load.channels)
        ]
        read = _read(gate, sources, load, blocks)
        parent.send("read")
        return read
