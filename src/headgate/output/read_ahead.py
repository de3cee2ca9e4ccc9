"""Reading finished partitions from disk before their readers want them: whose turn it is, and into what memory.

There is one `ReadAhead` per worker. Its `step` is called by the thread `headgate-disk`: it reads several chunks for one
reader outside the exchange lock, and hands them over under it. Everything else runs under that lock.

Invariants: a reader stands in the queue at most once, and only while it has less than half of what it may have; what
is read ahead never takes more than the pool has.
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
    from headgate.output.blocking_reader import BlockingReader
    from headgate.sync import Wake

__all__ = ["ReadAhead", "Turn"]


class Turn(Enum):
    """What a step has done, and when the next one is due.

    >>> Turn.SLEEP.value
    'nothing to do until it is woken'
    """

    READ = "something was read"
    SLEEP = "nothing to do until it is woken"
    NAP = "memory is lent, and nobody may say when it is back"
    OVER = "closed"


class ReadAhead:
    """Which reader is read next, and into what memory: of all readers of a worker.

    `wake` is called when there is something to do, or it is closed, after a `step` that found nothing or before any.

    >>> from headgate.buffer import Limits
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     ahead = ReadAhead(worker.memory, Limits().read_ahead_pool(), most=8, wake=lambda: print("come"))
    ...     ahead.step()
    ...     ahead.close()
    ...     ahead.step()
    <Turn.SLEEP: 'nothing to do until it is woken'>
    come
    <Turn.OVER: 'closed'>
    """

    def __init__(self, memory: NetworkPool, bounds: PoolBounds, *, most: int, wake: Callable[[], object]) -> None:
        self.pool = memory.create_pool("read-ahead", required=bounds.required, maximum=bounds.maximum)
        self.lock = memory.lock
        self._memory = memory
        self._most = most
        self._wake = wake
        self._turns: deque[BlockingReader] = deque()
        self._readers = 0
        self._asleep = True  # whoever brings work calls `wake`
        self._listening = False  # the pool says when a segment is back
        self._closed = False

    # Readers.

    def joined_locked(self, reader: BlockingReader) -> Wake:
        """A new reader."""
        self._readers += 1
        reader.low = self._allowance() // 2
        return self.want_locked(reader)

    def left_locked(self) -> None:
        """One reader less: the others may have more."""
        self._readers -= 1

    def want_locked(self, reader: BlockingReader) -> Wake:
        """A reader has room for more."""
        reader.queued = True
        self._turns.append(reader)
        return self._rouse_locked()

    # The thread.

    def step(self) -> Turn:
        """Read for the reader whose turn it is."""
        self.lock.acquire()
        try:
            found = None if self._closed else self._next_locked()
            if found is None:
                return self._rest_locked()
            self._asleep = False
            reader, places = found
            file = reader.begin_locked()
        finally:
            self.lock.release()
        slices: list[BufferSlice] = []
        failure: HeadgateError | None = None
        try:
            slices = reader.read(file, self.pool, places)
        except HeadgateError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever it is, its reader must learn of it, and others go on
            failure = StorageError(f"cannot be read: {error!r}", path=file.path)
        self.lock.acquire()
        try:
            if failure is None:
                wake = reader.deliver_locked(slices)
            else:
                recycled = [self.pool.recycle_locked(one, UNCHANNELLED) for one in places if one is not None]
                wake = together(*recycled, reader.fail_locked(failure))
            reader.low = self._allowance() // 2
            reader.queued = reader.wants
            if reader.queued:
                self._turns.append(reader)
        finally:
            self.lock.release()
        if wake is not None:
            wake()
        return Turn.READ

    def close(self) -> None:
        """Read no more; the next `step` says so. May be repeated."""
        with self.lock:
            self._closed = True
            wake = together(self.pool.destroy_locked(), self._rouse_locked())
        if wake is not None:
            wake()

    # What the pool calls: see `BufferListener`.

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:  # noqa: ARG002 - the next step takes it, and more
        """A segment is back: leave it in the pool, and come for it."""
        self._listening = False
        return Answer.NOT_USED, self._rouse_locked()

    def cancel_locked(self) -> Wake:
        """The pool is gone."""
        self._listening = False
        return None

    # Inside.

    def _allowance(self) -> int:
        """How many buffers each reader may have at hand: all get the same, and at least one."""
        return max(1, min(self._most, self.pool.size // max(1, self._readers)))

    def _next_locked(self) -> tuple[BlockingReader, list[Segment | None]] | None:
        turns = self._turns
        while turns:
            reader = turns[0]
            if reader.wants:
                places = reader.plan_locked(self.pool, self._allowance())
                if not places:
                    return None  # it stays the first until there is memory
                turns.popleft()
                return reader, places
            turns.popleft()
            reader.queued = False
        return None

    def _rest_locked(self) -> Turn:
        if self._closed:
            return Turn.OVER
        self._asleep = True
        if not self._turns:
            return Turn.SLEEP
        if not self._listening:
            self._listening = True
            self.pool.listen_locked(self)
        return Turn.NAP if self.pool.lent else Turn.SLEEP

    def _rouse_locked(self) -> Wake:
        if not self._asleep:
            return None
        self._asleep = False
        return self._wake
