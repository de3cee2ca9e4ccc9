"""The journey of a record, stage by stage, by plain calls: no thread, no socket. Read this first.

Within one worker, a reader takes the buffers that the writer has filled:

    writer -> selector -> serializer -> buffer -> subpartition ----------------------------------------> gate -> reader

Between two workers, a connection is in the middle. Data flows to the right, credit to the left:

    writer -> ... -> subpartition -> producer session -> bytes -> consumer session -> remote channel -> gate -> reader
"""

import random

import pytest

from headgate.buffer import Arena, NetworkPool
from headgate.clock import ManualClock
from headgate.config import BufferTimeout, NetworkSettings
from headgate.config.table import RecordSettings
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import InputGate, LocalSource, RecordReader
from headgate.net import Identity, Network
from headgate.net.memory import MemoryStream, MemoryTransport
from headgate.output import Hash, PartitionRegistry, PartitionType, RecordWriter, ResultPartition
from headgate.record import Batch, EndOfPartition, MsgpackSerializer, Watermark
from headgate.sync import Sync, ThreadSync
from headgate.wire import AddCredit, CancelRequest, Close, Data, Decoder, Frame, Payload, RequestPartition
from headgate.worker.exchange import WorkerExchange

WORDS = [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)]
JOB, ATTEMPT = JobId("word-count"), AttemptId(1)
PARTITION = PartitionId(JOB, ATTEMPT, vertex=0, output=0, subtask=0)
SEGMENT_SIZE = 64
PAIRS = MsgpackSerializer(tuple[str, int])


def writer_into(partition: ResultPartition, sync: Sync) -> RecordWriter[tuple[str, int]]:
    """Return a writer that selects a subpartition by the first two letters, and flushes only if `flush` is called."""
    return RecordWriter(
        partition,
        Hash(lambda pair: pair[0][:2]),
        PAIRS,
        sync=sync,
        below=random.Random(0).randrange,
        buffer_timeout=BufferTimeout.parse("-1"),
    )


@pytest.mark.spec("T2", "T5", "M3", "M9", "R1", "W1", "P2", "P4", "G1")
def test_a_record_travels_from_its_writer_to_its_reader() -> None:
    # A worker has one allocation of network memory, cut into segments, and one lock: the exchange lock.
    sync = ThreadSync()
    memory = NetworkPool(Arena(SEGMENT_SIZE, count=16), sync)

    # The producing task has a partition with two subpartitions. Its pool limits the buffers that it may use.
    pool = memory.create_pool("partition", required=3, maximum=8, channels=2, max_per_channel=4)
    partition = ResultPartition(PARTITION, PartitionType.PIPELINED_BOUNDED, 2, pool)
    registry = PartitionRegistry(sync.lock)
    registry.register(partition)

    # Two consuming tasks have a gate each. The only channel of a gate reads one subpartition.
    readers = []
    for index in range(2):
        gate = InputGate(f"count-{index}", channels=1, sync=sync, clock=ManualClock())
        gate.connect(0, LocalSource(registry, PARTITION, SubpartitionIndex(index)))
        readers.append(RecordReader(gate, PAIRS))
    assert [reader.poll() for reader in readers] == [None, None]

    # `emit` selects a channel and appends the record to the list of that channel. No buffer is used yet.
    writer = writer_into(partition, sync)
    for word in WORDS:
        writer.emit(word)
    assert memory.statistics().free == 16

    # `flush` serializes each list as one batch into a buffer, and makes the unfinished buffers readable.
    writer.flush()
    assert memory.statistics().free < 16
    batches = [reader.poll() for reader in readers]
    received = [pair for batch in batches if isinstance(batch, Batch) for pair in batch.values]
    assert sorted(received) == sorted(WORDS)

    # Records with equal keys are in one reader, in the order in which they were emitted.
    for batch in batches:
        if isinstance(batch, Batch):
            assert batch.values == [pair for pair in WORDS if pair in batch.values]

    # A watermark is sent to every channel, in order with the records.
    writer.emit_element(Watermark(1000))
    writer.flush()
    assert [reader.poll() for reader in readers] == [Watermark(1000), Watermark(1000)]

    # A record that is larger than a buffer spans several. The reader collects its parts.
    long_word = ("x" * 150, 1)
    writer.emit(long_word)
    writer.flush()
    assert [element for reader in readers if (element := reader.poll())] == [Batch([long_word])]
    assert max(reader.statistics().buffers_in for reader in readers) >= 3

    # The end is sent to every channel. When it is read, every buffer is free again.
    writer.finish()
    writer.close()
    assert [reader.poll() for reader in readers] == [EndOfPartition(), EndOfPartition()]
    assert all(reader.finished for reader in readers)
    assert memory.statistics().free == memory.statistics().total
    assert writer.statistics().records_out == len(WORDS) + 1


class Wire:
    """The frames that cross the connection of two workers, from now on. It decodes the bytes that both sides write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[Frame] = []
        """The frames since the last `take`."""
        self.credit = 0
        """Buffers that the producer may still send: the credit that was granted minus the data that was sent."""
        write, decoders = MemoryStream.write, {}

        def write_and_record(stream: MemoryStream, pieces: list[bytes | memoryview]) -> int:
            accepted = write(stream, pieces)
            decoder = decoders.setdefault(stream, Decoder(max_payload_bytes=4096))
            for item in decoder.feed(memoryview(b"".join(pieces)[:accepted])):
                if not isinstance(item, Payload):  # the bytes of a buffer, after the frame that is their head
                    self._record(item)
            return accepted

        monkeypatch.setattr(MemoryStream, "write", write_and_record)

    def _record(self, frame: Frame) -> None:
        self.frames.append(frame)
        match frame:
            case RequestPartition(credit=int(credit)) | AddCredit(credit=credit):
                self.credit += credit
            case Data(event=False):
                self.credit -= 1

    def take(self) -> list[Frame]:
        """Return the frames since the last call."""
        frames, self.frames = self.frames, []
        return frames


def make_worker(number: int, transport: MemoryTransport) -> tuple[WorkerExchange, Network, Sync]:
    """Return one worker: its side of the exchange, and its network over streams in memory."""
    # A remote channel has two exclusive buffers, and all channels of a gate share one floating buffer.
    settings = NetworkSettings(buffers_per_channel=2, floating_buffers_per_gate=1)
    sync = ThreadSync()
    registry = PartitionRegistry(sync.lock)
    worker = WorkerExchange(
        settings,
        RecordSettings(),
        memory=NetworkPool(Arena(SEGMENT_SIZE, count=16), sync),
        registry=registry,
        sync=sync,
        clock=transport,
        chance=random.Random(0),
    )
    identity = Identity(JOB, ATTEMPT, number, secret=bytes(32))
    network = Network(identity, registry, settings, transport, segment_size=SEGMENT_SIZE)
    worker.use_network(network)
    return worker, network, sync


@pytest.mark.spec("T2", "T5", "M9", "P2", "G1", "N1", "N2")
def test_a_record_crosses_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two workers. `run_network` does what their network threads do: it delivers bytes until there are none.
    transport = MemoryTransport()
    run_network = transport.run_until_idle
    (producing, network, sync), (consuming, _, _) = (make_worker(number, transport) for number in range(2))
    address = network.listen()
    partition = producing.partition(PARTITION, subpartitions=2)

    # The first remote channel opens a connection, and both workers prove that they know the secret of the job. The
    # second channel uses the same connection. It requests its subpartition, and its two exclusive buffers are its first
    # credit: the number of buffers that the producer may send.
    readers, receiver = [], 1
    for index in range(2):
        gate = consuming.gate(f"count-{index}", channels=1)
        channel = consuming.remote_source(gate, PARTITION, SubpartitionIndex(index), worker=0, address=address)
        wire = Wire(monkeypatch) if index == receiver else None
        gate.connect(0, channel)
        run_network()
        readers.append(consuming.reader(gate, PAIRS))
    assert wire is not None
    assert wire.take() == [RequestPartition(receiver, PARTITION, SubpartitionIndex(1), credit=2)]

    # A flush fills a buffer. The producer session polls it from the subpartition and sends it as a `Data` frame. The
    # consumer session passes it to the remote channel, which copies it into one of its buffers and queues that in the
    # gate.
    writer = writer_into(partition, sync)
    for count in (1, 2, 3):
        writer.emit(("to", count))
    writer.flush()
    assert readers[receiver].poll() is None, "the bytes are not sent yet"
    run_network()
    (data,) = wire.take()
    assert isinstance(data, Data)
    assert (data.receiver, data.sequence, wire.credit) == (receiver, 0, 1)
    assert readers[receiver].poll() == Batch([("to", 1), ("to", 2), ("to", 3)])

    # The next poll recycles the buffer that was read. It is a credit again, which the consumer announces.
    assert readers[receiver].poll() is None
    run_network()
    assert all(isinstance(frame, AddCredit) and frame.receiver == receiver for frame in wire.take())
    assert wire.credit >= 2

    # Back pressure: a record of five buffers is written, and the producer sends only as many as it has credit for. Each
    # frame contains the backlog: the number of buffers that wait behind it. For a backlog, the channel requests
    # floating buffers from its gate, which are credit, too.
    long_word = ("to" * 130, 1)
    writer.emit(long_word)
    writer.flush()
    before = wire.credit
    run_network()
    sent = [frame for frame in wire.take() if isinstance(frame, Data)]
    assert len(sent) >= before
    assert [frame.backlog for frame in sent] == sorted((frame.backlog for frame in sent), reverse=True)
    assert sent[-1].backlog > 0
    assert wire.credit == 0

    # The reader collects the parts of the record. Each buffer that it recycles lets the producer send another one.
    assert readers[receiver].poll() is None, "the record is not complete"
    run_network()
    frames = wire.take()
    assert isinstance(frames[0], AddCredit)
    assert isinstance(frames[-1], Data)
    assert readers[receiver].poll() == Batch([long_word])

    # The end is an event: it needs no credit. It is the last frame of its direction on each channel; the reader answers
    # with `CancelRequest`. A connection without channels is closed, and every buffer of both workers is free again.
    writer.finish()
    writer.close()
    run_network()
    ends = [frame for frame in wire.take() if isinstance(frame, Data)]
    assert {(frame.receiver, frame.event, frame.last) for frame in ends} == {(0, True, True), (1, True, True)}
    assert [reader.poll() for reader in readers] == [EndOfPartition(), EndOfPartition()]
    run_network()
    *cancelled, ours, theirs = wire.take()
    assert set(cancelled) == {CancelRequest(0, ATTEMPT), CancelRequest(1, ATTEMPT)}
    assert ours == theirs == Close()
    for worker in (producing, consuming):
        assert worker.memory.statistics().free == worker.memory.statistics().total
