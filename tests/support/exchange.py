"""A small exchange to test with: memory, one partition with its writer, and a gate and a reader per subpartition."""

import random
from typing import Self

from headgate.buffer import Arena, NetworkPool
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import InputGate, LocalSource, RecordReader
from headgate.output import Forward, PartitionRegistry, PartitionType, RecordWriter, ResultPartition
from headgate.record import Batch, BytesSerializer, EndOfPartition, Record
from headgate.sync import ThreadSync


def partition_id(subtask: int = 0, job: str = "job") -> PartitionId:
    return PartitionId(JobId(job), AttemptId(1), vertex=0, output=0, subtask=subtask)


class Exchange:
    """One partition; `readers[i]` reads subpartition i. `close` gives back everything that the test has released."""

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
        """The number of segments that are in use."""
        statistics = self.memory.statistics()
        return statistics.total - statistics.free

    def take(self, channel: int = 0) -> list:
        """Return all elements that a channel has now, batches and records as their values."""
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
    """Return the values of records one by one, other elements and events unchanged; without the end."""
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
