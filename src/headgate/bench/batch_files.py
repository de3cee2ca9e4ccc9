"""Bytes through a blocking partition and back, beside a plain file, in processes of their own.

All sides put the same blocks of text into buffers of the same size, from one thread, with the same codec, and read them
again: the plain file without index or bounds; the partition through a gate of the same worker, or of another worker
over loopback. Before each run, pending writes are flushed to disk, and a file of the same size is written and removed:
a virtual machine gets pages from its host for the first time, which costs several times what it costs later. No side
waits for its bytes to reach the disk: with enough memory, all read from the page cache.

A reader checks every block, in the order of its channel: otherwise there is no figure.
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

from headgate.bench.processes import START_S, Parent, child
from headgate.bench.workers import JOB, PRODUCER, partition_id, run_workers
from headgate.bench.workloads import lines
from headgate.config import BatchSettings, Compression, MemorySettings, Settings
from headgate.config.units import KIB, MIB
from headgate.errors import InvariantViolated
from headgate.ids import AttemptId, SubpartitionIndex
from headgate.output import PartitionType
from headgate.worker import Environment
from headgate.worker.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headgate.bench.processes import ProcessPair
    from headgate.bench.workers import WorkerEnd
    from headgate.buffer import Buffer
    from headgate.input import InputGate
    from headgate.input.channel import ChannelSource

__all__ = ["Load", "Moved", "carry_local", "carry_plain", "carry_remote"]

_MEMORY_BYTES: Final = 64 * MIB  # a worker's default
_BLOCKS: Final = 16  # different ones
_STAMP_BYTES: Final = 8  # at the start of each block, unique
_LINE_BYTES: Final = 60  # of text, at least
_SLOWEST: Final = 10e6  # bytes/s: a slower run hangs
_CODECS: Final = {Compression.LZ4: "lz4_raw", Compression.ZSTD: "zstd"}  # those of partitions, by pyarrow's names


@dataclass(frozen=True, slots=True)
class Load:
    """What one run carries."""

    directory: str
    compression: Compression
    total: int  # bytes, rounded to whole buffers
    buffer_bytes: int = 256 * KIB  # the default in BATCH
    channels: int = 10  # of the partition

    @property
    def count(self) -> int:
        """The number of buffers."""
        return max(1, self.total // self.buffer_bytes)

    @property
    def limit_s(self) -> float:
        """The limit of a run, with its start."""
        return START_S + 2 * self.total / _SLOWEST

    @property
    def settings(self) -> Settings:
        """The settings of a worker that carries it."""
        batch = BatchSettings(directories=self.directory, compression=self.compression)
        return Settings(memory=MemorySettings(segment_size=self.buffer_bytes), batch=batch)


class Moved(NamedTuple):
    """The result of one run."""

    total: int  # bytes
    stored: int  # bytes in files
    write_s: float
    read_s: float
    cpu_s: float  # of all threads and processes of both sides

    @property
    def gb_per_s(self) -> float:
        """Written and read again."""
        return self.total / (self.write_s + self.read_s) / 1e9

    @property
    def written_gb_per_s(self) -> float:
        """Written."""
        return self.total / self.write_s / 1e9

    @property
    def read_gb_per_s(self) -> float:
        """Read."""
        return self.total / self.read_s / 1e9

    @property
    def stored_percent(self) -> float:
        """The size on disk."""
        return 100 * self.stored / self.total


def carry_plain(load: Load) -> Moved:
    """Run with a plain file."""
    return _in_child(_plain, load)


def carry_local(load: Load) -> Moved:
    """Run with a partition that is read in its own worker."""
    return _in_child(_local, load)


def carry_remote(pair: ProcessPair, load: Load) -> Moved:
    """Run with a partition that a worker in another process reads over loopback."""
    with _prepared(load) as own:
        ends = partial(_produce, load=own), partial(_consume, load=own)
        return _moved(own, *run_workers(pair, *ends, settings=own.settings, limit_s=own.limit_s))


def _in_child(function: Callable[[Parent, Load], Moved], load: Load) -> Moved:
    with _prepared(load) as own, child(function, own) as process:
        return process.result(own.limit_s)


@contextmanager
def _prepared(load: Load) -> Iterator[Load]:
    """Yield the load with a temporary directory of its own, after what the module describes."""
    with tempfile.TemporaryDirectory(dir=load.directory) as directory:
        os.sync()
        _warm(Path(directory) / "warm", load.total)
        yield replace(load, directory=directory)


def _warm(path: Path, total: int) -> None:
    with open(path, "xb", buffering=0) as file:
        path.unlink()
        file.writelines(bytes(MIB) for _ in range(0, total, MIB))


class _Blocks:
    """Different blocks of text, as large as a buffer; block n is block n modulo 16."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._stamps = [b"%0*d\n" % (_STAMP_BYTES - 1, number) for number in range(_BLOCKS)]
        text = "\n".join(lines(_BLOCKS * size // _LINE_BYTES + 1)).encode()
        rest = size - _STAMP_BYTES
        self._blocks = [stamp + text[at * rest : (at + 1) * rest] for at, stamp in enumerate(self._stamps)]
        assert {len(block) for block in self._blocks} == {size}, "there is enough text"

    def __getitem__(self, number: int) -> bytes:
        return self._blocks[number % _BLOCKS]

    def check(self, number: int, found: memoryview) -> None:
        """Raise unless this is that block, by its length and its first bytes."""
        if len(found) != self.size or found[:_STAMP_BYTES] != self._stamps[number % _BLOCKS]:
            raise InvariantViolated(f"{len(found)} bytes were read that are not block {number}")


class _Took(NamedTuple):
    """The cost of one side of a run."""

    seconds: float
    cpu_s: float
    stored: int = 0


def _clock() -> Callable[[], _Took]:
    """Start a clock, and one of this process's processor time; return the function that reads both."""
    began_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
    return lambda: _Took((time.monotonic_ns() - began_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9)


def _moved(load: Load, write: _Took, read: _Took) -> Moved:
    total = load.count * load.buffer_bytes
    return Moved(total, write.stored, write.seconds, read.seconds, write.cpu_s + read.cpu_s)


def _stored(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())


# In the processes ------------------------------------------------------------------------------------------------


def _plain(parent: Parent, load: Load) -> Moved:  # noqa: ARG001 - a child's function
    blocks, codec = _Blocks(load.buffer_bytes), None
    if load.compression is not Compression.NONE:
        from pyarrow import Codec  # noqa: PLC0415 - slow to import

        codec = Codec(_CODECS[load.compression])
    buffer = memoryview(bytearray(load.buffer_bytes))
    with open(Path(load.directory) / "plain", "x+b", buffering=0) as file:
        took, lengths = _clock(), []
        for number in range(load.count):
            buffer[:] = blocks[number]  # a program puts its data into a buffer, here as in a partition
            data = buffer if codec is None else codec.compress(buffer)
            lengths.append(len(data))
            if file.write(data) != len(data):
                raise InvariantViolated("the file took a part of a block")
        wrote = took()
        file.seek(0)
        took = _clock()
        for number, length in enumerate(lengths):
            stored = buffer[:length]
            if file.readinto(stored) != length:
                raise InvariantViolated("the file returned a part of a block")
            blocks.check(number, stored if codec is None else memoryview(codec.decompress(stored, load.buffer_bytes)))
        read = took()
        return _moved(load, wrote._replace(stored=_stored(load.directory)), read)


@contextmanager
def _worker(load: Load, settings: Settings) -> Iterator[Environment]:
    """Yield a worker with files in the load's directory."""
    with Environment(settings, memory_bytes=_MEMORY_BYTES) as worker:
        for segment in worker.memory.arena.segments:
            segment.memory[:] = bytes(load.buffer_bytes)  # every page exists before the clock starts
        worker.storage = Storage(settings.batch, JOB, AttemptId(1), driver_here=True)
        yield worker


def _write(worker: Environment, load: Load, blocks: _Blocks) -> _Took:
    """Fill a partition, its channels in turn."""
    partition = worker.partition(partition_id(), subpartitions=load.channels, kind=PartitionType.BLOCKING)
    filled: list[Buffer | None] = [None] * load.channels
    took = _clock()
    for number in range(load.count):
        channel = number % load.channels
        filled[channel] = buffer = partition.next_buffer(channel, filled[channel], mid_record=False)
        assert buffer is not None, "next_buffer blocks until there is one"
        buffer.memory[:] = blocks[number]
        buffer.publish(load.buffer_bytes)
    for channel, last in enumerate(filled):
        if last is not None:
            partition.end_buffer(channel, last)
    partition.finish()
    return took()._replace(stored=_stored(load.directory))


def _read(gate: InputGate, sources: Iterable[ChannelSource], load: Load, blocks: _Blocks) -> _Took:
    """Connect a gate and read everything."""
    took = _clock()
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
    return took()


def _local(parent: Parent, load: Load) -> Moved:  # noqa: ARG001 - a child's function
    blocks = _Blocks(load.buffer_bytes)
    with _worker(load, load.settings) as worker:
        wrote = _write(worker, load, blocks)
        gate = worker.gate("bench", channels=load.channels)
        sources = [worker.local_source(partition_id(), SubpartitionIndex(index)) for index in range(load.channels)]
        return _moved(load, wrote, _read(gate, sources, load, blocks))


def _produce(parent: Parent, end: WorkerEnd, *, load: Load) -> _Took:
    """Write, and serve the reader: the processor time is that of both."""
    with _worker(load, end.settings) as worker:
        address = worker.join(end.identity)
        blocks, took = _Blocks(load.buffer_bytes), _clock()
        wrote = _write(worker, load, blocks)
        parent.send(address)
        parent.receive(load.limit_s)  # all is read
        return wrote._replace(cpu_s=took().cpu_s)


def _consume(parent: Parent, end: WorkerEnd, *, load: Load) -> _Took:
    blocks = _Blocks(load.buffer_bytes)
    with Environment(end.settings, memory_bytes=_MEMORY_BYTES) as worker:
        worker.join(end.identity)
        address = parent.receive(load.limit_s)
        gate = worker.gate("bench", channels=load.channels)
        sources = [
            worker.remote_source(gate, partition_id(), SubpartitionIndex(index), worker=PRODUCER, address=address)
            for index in range(load.channels)
        ]
        read = _read(gate, sources, load, blocks)
        parent.send("read")
        return read
