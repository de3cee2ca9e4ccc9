"""A small exchange to test with: memory, one partition with its writer, and a gate and a reader per subpartition."""

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from headgate.buffer import Arena, NetworkPool
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import InputGate, LocalSource, RecordReader
from headgate.output import Forward, PartitionRegistry, PartitionType, RecordWriter, ResultPartition
from headgate.record import Batch, BytesSerializer, EndOfPartition, Record
from headgate.sync import ThreadSync

JOIN_S = 30.0
"""How long a test waits for a thread that should have ended: only a hang takes so long."""


def partition_id(subtask: int = 0, job: str = "job") -> PartitionId:
    return PartitionId(JobId(job), AttemptId(1), vertex=0, output=0, subtask=subtask)


class HookedSync(ThreadSync):
    """Where threads would sleep, `on_wait(timeout_s)` is called instead and must bring the wake-up about, or time."""

    __slots__ = ("on_wait", "waits")

    def __init__(self, on_wait: Callable[[float | None], object]) -> None:
        super().__init__()
        self.on_wait = on_wait
        self.waits: list[float | None] = []

    def waiter(self) -> "HookedWaiter":
        return HookedWaiter(self)


class HookedWaiter:
    def __init__(self, sync: HookedSync) -> None:
        self._sync = sync
        self._wakes = 0

    def wait(self, timeout_s: float | None) -> bool:
        if not self._wakes:
            self._sync.waits.append(timeout_s)
            self._sync.on_wait(timeout_s)
        woken = self._wakes > 0
        assert woken or timeout_s is not None, "the thread would sleep for ever"
        self._wakes = 0
        return woken

    def wake(self) -> None:
        self._wakes += 1
        assert self._wakes == 1, "a sleeper is woken once"


class Exchange:
    """One partition; `readers[i]` reads subpartition i. `close` gives everything back that the test has let go of."""

    def __init__(
        self,
        selector=None,
        serializer=None,
        *,
        channels=1,
        segment_size=64,
        segments=16,
        required=None,
        maximum=None,
        max_per_channel=None,
        overdraft=0,
        buffer_timeout="-1",
        batch_size=1000,
        limits=None,
        request_timeout_s=None,
        sync=None,
        clock=None,
        below=None,
        writer=RecordWriter,
        connect=True,
        backoff=None,
        timer=None,
    ) -> None:
        self.sync = sync if sync is not None else ThreadSync()
        self.clock = clock if clock is not None else ManualClock()
        self.serializer = serializer if serializer is not None else BytesSerializer()
        self.memory = NetworkPool(Arena(segment_size, segments), self.sync)
        self.pool = self.memory.create_pool(
            "partition",
            required=channels + 1 if required is None else required,
            maximum=maximum,
            channels=channels,
            max_per_channel=max_per_channel,
            overdraft=overdraft,
        )
        self.partition = ResultPartition(
            partition_id(),
            PartitionType.PIPELINED_BOUNDED,
            channels,
            self.pool,
            request_timeout_s=request_timeout_s,
            timer=timer,
        )
        self.registry = PartitionRegistry(self.sync.lock)
        self.registry.register(self.partition)
        self.gates = [InputGate(f"gate-{i}", 1, sync=self.sync, clock=self.clock) for i in range(channels)]
        self.sources = [
            LocalSource(self.registry, partition_id(), SubpartitionIndex(i), backoff) for i in range(channels)
        ]
        if connect:
            for gate, source in zip(self.gates, self.sources, strict=True):
                gate.connect(0, source)
        self.readers = [RecordReader(gate, self.serializer, limits=limits) for gate in self.gates]
        self.writer = writer(
            self.partition,
            selector if selector is not None else Forward(),
            self.serializer,
            sync=self.sync,
            below=below if below is not None else random.Random(0).randrange,
            limits=limits,
            buffer_timeout=BufferTimeout.parse(buffer_timeout),
            batch_size=batch_size,
        )

    @property
    def reader(self) -> RecordReader:
        return self.readers[0]

    @property
    def used(self) -> int:
        """Segments that are not back."""
        statistics = self.memory.statistics()
        return statistics.total - statistics.free

    def take(self, channel: int = 0) -> list:
        """All that is at hand in a channel, with batches and records as their values."""
        return values_of(iter(self.readers[channel].poll, None))

    def close(self) -> None:
        self.partition.release()
        self.writer.close()
        for reader in self.readers:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def values_of(elements) -> list:
    """The records' values one by one; other elements and events as they are, the end left out."""
    found = []
    for element in elements:
        if isinstance(element, Batch):
            times = element.timestamps_ms
            found.extend(element.values if times is None else map(Record, element.values, times))
        elif isinstance(element, Record):
            found.append(element.value if element.timestamp_ms is None else element)
        elif not isinstance(element, EndOfPartition):
            found.append(element)
    return found


class Thread(threading.Thread):
    """A thread that keeps what its function returned or raised, and never outlives `join` unnoticed."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def end(self) -> object:
        """Wait for it; what it returned. What it raised is raised here."""
        self.join(JOIN_S)
        assert not self.is_alive(), "a thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def unnamed_files() -> set[str]:
    """Sockets and open files of this process that have no name, or no more."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:") or target.endswith("(deleted)"):
            found.add(f"{fd} -> {target}")
    return found
