"""The producing side of a connection: a session over real subpartitions, buffers and a pool."""

from collections.abc import Callable
from typing import Self

from tests.support.frames import Message, assemble, feed

from headgate.buffer import Arena, Buffer, BufferReader, NetworkPool
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import PipelinedSubpartition
from headgate.record import EndOfPartition, Event
from headgate.record.element import encode_event
from headgate.sync import ThreadSync, Wake
from headgate.wire import (
    AddCredit,
    CancelRequest,
    Data,
    Decoder,
    ProducerSession,
    ProducerStream,
    RequestPartition,
    When,
    encode_frame,
)

ATTEMPT = AttemptId(1)
PLENTY = 1 << 30
"""More room than any test needs."""


def partition(subtask: int = 0, attempt: int = ATTEMPT) -> PartitionId:
    return PartitionId(JobId("etl"), AttemptId(attempt), vertex=0, output=0, subtask=subtask)


class Producer:
    """A `ProducerSession`; the subpartition of receiver r is `queues[r]`."""

    def __init__(
        self,
        *receivers: int,
        credit: int | None = 2,
        max_streams: int = 10,
        segment_size: int = 256,
        segments: int = 64,
        checksum: Callable[[memoryview], int] | None = None,
    ) -> None:
        self.sync = ThreadSync()
        self.memory = NetworkPool(Arena(segment_size, segments), self.sync)
        self.pool = self.memory.create_pool("partition", required=1)
        self.wakes = 0
        self.urgent = 0  # of these, how many asked for a flush NOW
        self.scheduled: list[When] = []  # what each of them asked for
        self.attended = 0  # how often credit was awaited with flushed data
        self.session = ProducerSession(
            max_streams=max_streams, schedule_locked=self._schedule_locked, checksum=checksum, await_credit=self._attend
        )
        self.queues: dict[int, PipelinedSubpartition] = {}
        for receiver in receivers:
            self.request(receiver, credit)

    def _schedule_locked(self, when: When) -> Wake:
        def wake() -> None:
            self.wakes += 1
            self.urgent += when is not When.LATER
            self.scheduled.append(when)

        return wake

    def _attend(self) -> None:
        assert not self.sync.lock.locked(), "it is called after the lock"
        self.attended += 1

    def locked(self, function: Callable[..., object], *args: object) -> object:
        """Call a function under the lock, and the wake-up that it returns after the lock is released."""
        with self.sync.lock:
            result = function(*args)
        wake = result[1] if isinstance(result, tuple) else result
        if callable(wake):
            wake()
        return result

    @property
    def woken(self) -> bool:
        """True if the network thread was woken since the last access."""
        wakes, self.wakes = self.wakes, 0
        return wakes > 0

    @property
    def in_use(self) -> int:
        """The number of buffers in use."""
        statistics = self.pool.statistics()
        return statistics.held - statistics.available

    # What the peer does.

    def request(self, receiver: int, credit: int | None = 2, *, accept: bool = True) -> ProducerStream:
        frame = RequestPartition(receiver, partition(receiver), SubpartitionIndex(0), credit)
        stream = self.session.on_request(frame)
        if accept:
            self.accept(stream)
        return stream

    def accept(self, stream: ProducerStream) -> None:
        queue = self.queue(stream.receiver)
        self.locked(queue.attach_locked, stream)
        self.locked(self.session.accept_locked, stream, queue)

    def queue(self, receiver: int) -> PipelinedSubpartition:
        if receiver not in self.queues:
            self.queues[receiver] = PipelinedSubpartition(SubpartitionIndex(0), self.sync.lock, f"partition {receiver}")
        return self.queues[receiver]

    def credit(self, receiver: int, credit: int, attempt: int = ATTEMPT) -> None:
        frame = encode_frame(AddCredit(receiver, AttemptId(attempt), credit))
        self.locked(self.session.on_credit_locked, memoryview(frame))

    def cancel(self, receiver: int, attempt: int = ATTEMPT) -> None:
        stream, _ = self.locked(self.session.on_cancel_locked, CancelRequest(receiver, AttemptId(attempt)))
        if stream.supply is not None:
            self.locked(self.queues[receiver].release_locked)

    # What the tasks do.

    def add(self, receiver: int, *data: bytes) -> None:
        """Add each of these bytes as a finished buffer."""
        for one in data:
            self.end(receiver, self.begin(receiver, one))

    def begin(self, receiver: int, data: bytes = b"") -> Buffer:
        """Add an unfinished buffer, and return it."""
        segment = self.pool.request()
        buffer = Buffer(segment.memory, segment=segment, owner=self.pool, channel=-1)
        buffer.append(data)
        self.locked(self.queues[receiver].add_locked, BufferReader(buffer))
        return buffer

    def end(self, receiver: int, buffer: Buffer) -> None:
        self.locked(buffer.finish_locked)
        self.locked(self.queues[receiver].notify_locked)

    def flush(self, receiver: int) -> None:
        self.locked(self.queues[receiver].flush_locked)

    def event(self, receiver: int, event: Event) -> None:
        self.locked(self.queues[receiver].add_locked, BufferReader(Buffer.event(encode_event(event))))

    def finish(self, receiver: int) -> None:
        """Add the end, as a partition does: the event and the state under one lock."""
        with self.sync.lock:
            queue = self.queues[receiver]
            wake = queue.add_locked(BufferReader(Buffer.event(encode_event(EndOfPartition()))))
            queue.finish_locked()
        if wake is not None:
            wake()

    def fail(self, receiver: int, cause: BaseException | None = None) -> None:
        self.locked(self.queues[receiver].release_locked, cause)

    # What the network thread does.

    def send(self, room_bytes: int = PLENTY) -> list[Message]:
        """Return all frames that can be sent now, with their payloads."""
        with self.sync.lock:
            sending, wake = self.session.data_to_send_locked(room_bytes)
        if wake is not None:
            wake()
        pieces = []
        for piece, taken in zip(*sending, strict=True):
            pieces.append(bytes(piece))
            if taken is not None:
                taken.release()
        return assemble(feed(Decoder(max_payload_bytes=4096), b"".join(pieces)))

    def close(self) -> None:
        for queue in self.queues.values():
            self.locked(queue.release_locked)
        self.pool.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def short(messages: list[Message]) -> list[tuple[int, bytes] | object]:
    """Return `Data` as (receiver, payload), or (receiver, "event"); other frames as they are."""
    said: list[tuple[int, bytes] | object] = []
    for frame, payload in messages:
        if isinstance(frame, Data):
            said.append((frame.receiver, "event" if frame.event else payload))
        else:
            said.append(frame)
    return said
