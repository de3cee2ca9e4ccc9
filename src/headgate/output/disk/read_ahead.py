"""ReadAhead: reads finished partitions from disk before their readers poll: a queue of readers, and a buffer pool.

There is one `ReadAhead` per worker. The thread `headgate-disk` calls `step`, which reads several chunks for one reader
outside the exchange lock, and delivers them under it. All other methods run under that lock.

Invariants: a reader is in the queue at most once, and only while it has less than half of its allowance. Read-ahead
never uses more buffers than the pool has.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from headgate.buffer import UNCHANNELLED, Answer
from headgate.errors import HeadgateError, StorageError
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice, NetworkPool, PoolBounds, Segment
    from headgate.output.disk.reader import BlockingReader
    from headgate.sync import Wake

__all__ = ["ReadAhead", "StepResult"]


class StepResult(Enum):
    """The result of a step, which decides about the next one."""

    READ = "chunks were read: call the next step at once"
    BLOCK = "there is nothing to read: block until `wake` is called"
    POLL = "memory is lent, and its return may not wake the thread: call the next step after a short time"
    CLOSED = "the read-ahead is closed: end the thread"


class ReadAhead:
    """Reads ahead for all readers of a worker, which take turns.

    `most` is the maximum number of buffers of a reader. `wake` is called if there is work, or on close, after a `step`
    that found nothing to read or before the first one.

    >>> from headgate.buffer import Limits
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     ahead = ReadAhead(worker.memory, Limits().read_ahead_pool(), most=8, wake=lambda: print("wake"))
    ...     ahead.step().name
    ...     ahead.close()
    ...     ahead.step().name
    'BLOCK'
    wake
    'CLOSED'
    """

    def __init__(self, memory: NetworkPool, bounds: PoolBounds, *, most: int, wake: Callable[[], object]) -> None:
        self.pool = memory.create_pool("read-ahead", required=bounds.required, maximum=bounds.maximum)
        self.lock = memory.lock
        self._memory = memory
        self._most = most
        self._wake = wake
        self._queue: deque[BlockingReader] = deque()
        self._readers = 0
        self._blocked = True  # new work must call `wake`
        self._listening = False  # the pool calls `offer_locked` for the next free segment
        self._closed = False

    # Called for readers.

    def add_reader_locked(self, reader: BlockingReader) -> Wake:
        """Add a new reader, and queue it."""
        self._readers += 1
        reader.low = self._allowance() // 2
        return self.queue_locked(reader)

    def remove_reader_locked(self) -> None:
        """Remove a reader: the allowance of the others grows."""
        self._readers -= 1

    def queue_locked(self, reader: BlockingReader) -> Wake:
        """Queue a reader that has room for more buffers."""
        reader.queued = True
        self._queue.append(reader)
        return self._wake_locked()

    # Called by the thread.

    def step(self) -> StepResult:
        """Read for the first reader of the queue."""
        self.lock.acquire()
        try:
            found = None if self._closed else self._next_locked()
            if found is None:
                return self._block_locked()
            self._blocked = False
            reader, segments = found
            file = reader.begin_locked()
        finally:
            self.lock.release()
        slices: list[BufferSlice] = []
        failure: HeadgateError | None = None
        try:
            slices = reader.read(file, self.pool, segments)
        except HeadgateError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - any error belongs to this reader, and must not stop the others
            failure = StorageError(f"cannot be read: {error!r}", path=file.path)
        self.lock.acquire()
        try:
            if failure is None:
                wake = reader.deliver_locked(slices)
            else:
                recycled = [self.pool.recycle_locked(one, UNCHANNELLED) for one in segments if one is not None]
                wake = together(*recycled, reader.fail_locked(failure))
            reader.low = self._allowance() // 2
            reader.queued = reader.wants
            if reader.queued:
                self._queue.append(reader)
        finally:
            self.lock.release()
        if wake is not None:
            wake()
        return StepResult.READ

    def close(self) -> None:
        """Close: the next `step` returns CLOSED. May be called more than once."""
        with self.lock:
            self._closed = True
            wake = together(self.pool.destroy_locked(), self._wake_locked())
        if wake is not None:
            wake()

    # Called by the pool: see `BufferListener`.

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:  # noqa: ARG002 - the next step requests it
        """Leave a recycled segment in the pool, and wake the thread, which requests it."""
        self._listening = False
        return Answer.NOT_USED, self._wake_locked()

    def cancel_locked(self) -> Wake:
        """See `BufferListener`: the pool is destroyed."""
        self._listening = False
        return None

    def _allowance(self) -> int:
        """Return the maximum number of buffers of each reader: an equal share, at least one."""
        return max(1, min(self._most, self.pool.size // max(1, self._readers)))

    def _next_locked(self) -> tuple[BlockingReader, list[Segment | None]] | None:
        queue = self._queue
        while queue:
            reader = queue[0]
            if reader.wants:
                segments = reader.plan_locked(self.pool, self._allowance())
                if not segments:
                    return None  # the reader stays first until there is memory
                queue.popleft()
                return reader, segments
            queue.popleft()
            reader.queued = False
        return None

    def _block_locked(self) -> StepResult:
        if self._closed:
            return StepResult.CLOSED
        self._blocked = True
        if not self._queue:
            return StepResult.BLOCK
        if not self._listening:
            self._listening = True
            self.pool.listen_locked(self)
        return StepResult.POLL if self.pool.lent else StepResult.BLOCK

    def _wake_locked(self) -> Wake:
        if not self._blocked:
            return None
        self._blocked = False
        return self._wake
