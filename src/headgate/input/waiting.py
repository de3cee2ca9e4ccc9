"""Where a task waits for input: what all gates share, and one of the two places where a task blocks.

One task thread reads; others wake it. Missing partitions are asked for again on the reader's thread, while it waits.

Invariant: the reader sleeps only while there is nothing to read, and is woken only when that changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headgate.buffer import Kind
from headgate.errors import Cancelled, HeadgateError
from headgate.meters import TaskState
from headgate.record.element import EndOfPartition, decode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice
    from headgate.clock import Clock
    from headgate.meters import TaskTimer
    from headgate.sync import Lock, Sync, Waiter, Wake

__all__ = ["Gate"]

_DATA = Kind.DATA


class Gate(ABC):
    """What all gates share: blocking and non-blocking reads by one task thread.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     gate = worker.gate("words", channels=1)
    ...     gate.poll(), gate.read(timeout_s=0), gate.finished
    (None, None, False)
    """

    def __init__(self, name: str, sync: Sync, clock: Clock, timer: TaskTimer | None) -> None:
        self.name = name
        self.lock: Lock = sync.lock
        self._sync = sync
        self._clock = clock
        self._timer = timer
        self._sleeper: Waiter | None = None
        self._interrupted = False
        self.failure: HeadgateError | None = None
        """What every further read raises."""

    @property
    @abstractmethod
    def channel_count(self) -> int:
        """How many channels there are."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether every channel has ended."""

    def poll(self, done: BufferSlice | None = None) -> BufferSlice | None:
        """What is at hand, with its `channel` and, for an event, its `event`; None if nothing is, or all has ended.

        The caller releases what it gets, or hands it to its next call as `done`, which costs less.

        Raises:
            ProducerFailed: a producer's task failed; the same again at every further read.
            PartitionNotFound: a partition did not appear in time.
            Cancelled: the gate was released.
        """
        taken = self._take(done)
        if taken is None:
            with self.lock:
                rested = self._rest_locked()
            if rested is not None:
                rested()
        return taken

    def _take(self, done: BufferSlice | None = None) -> BufferSlice | None:
        """As `poll`; what waits for the reader to rest waits on."""
        freed = None
        self.lock.acquire()  # see the note on locks in `sync`
        try:
            if done is not None:
                freed = done.release_locked()
            if self.failure is not None:
                raise self.failure
            taken, wake = self.poll_locked()
        finally:
            self.lock.release()
            if freed is not None:
                freed()
        if wake is not None:
            wake()
        if taken is not None and taken.buffer.kind is not _DATA:
            self._on_event(taken)
        return taken

    def read(
        self,
        timeout_s: float | None = None,
        *,
        done: BufferSlice | None = None,
        before_wait: Callable[[], object] | None = None,
    ) -> BufferSlice | None:
        """As `poll`, but asleep until something comes; None if all have ended, after `timeout_s` or an `interrupt`.

        `before_wait` is called when there is nothing at hand, before the thread goes to sleep: a task flushes
        its outputs there.
        """
        taken = self._take(done)
        if taken is None and not self.finished and self._help():
            taken = self._take()
        if taken is not None or self.finished:
            return taken
        if before_wait is not None:
            before_wait()
        deadline_ns = None if timeout_s is None else self._clock.now_ns() + int(timeout_s * 1e9)
        while True:
            self._sleep(deadline_ns)
            taken = self._take()
            if taken is not None or self.finished:
                return taken
            if self._interrupted:
                self._interrupted = False
                return None
            if deadline_ns is not None and self._clock.now_ns() >= deadline_ns:
                return None

    def interrupt(self) -> None:
        """Let a `read` that finds nothing return, the one under way or the next; from any thread."""
        with self.lock:
            self._interrupted = True
            wake = self.wake_reader_locked()
        if wake is not None:
            wake()

    def release(self) -> None:
        """Give everything back; a reader asleep here gets Cancelled. May be repeated."""
        with self.lock:
            error = Cancelled(f"gate {self.name} was released")
            wake = together(self._fail_all_locked(error), self._release_locked())
        if wake is not None:
            wake()

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Let every further read raise this, or what it raised before."""
        if self.failure is None or isinstance(error, Cancelled):
            self.failure = error
        return self.wake_reader_locked()

    def _fail_all_locked(self, error: HeadgateError) -> Wake:
        """As `fail_locked`, also for a union that this gate is part of."""
        return self.fail_locked(error)

    def wake_reader_locked(self) -> Wake:
        """Let the reader look again, if it is asleep."""
        sleeper, self._sleeper = self._sleeper, None
        return None if sleeper is None else sleeper.wake

    @abstractmethod
    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next bytes of whoever's turn it is, and whom to wake; a failure is remembered."""

    def _help(self) -> bool:
        """Look whether the network has something, which costs less than to fall asleep for it. Whether it had."""
        if self._timer is None:
            return self._sync.help()
        self._timer.enter(TaskState.IDLE)
        try:
            return self._sync.help()
        finally:
            self._timer.leave()

    def _sleep(self, deadline_ns: int | None) -> None:
        """Wait for a wake-up, the deadline or the next retry, whatever is first; then retry what is due."""
        with self.lock:
            if self._has_data_locked() or self.finished or self.failure is not None or self._interrupted:
                return
            self._sleeper = waiter = self._sync.waiter()
            until_ns = self._retry_at_locked()
            rested = self._rest_locked()
        if rested is not None:
            rested()
        if until_ns is None or (deadline_ns is not None and deadline_ns < until_ns):
            until_ns = deadline_ns
        if self._timer is not None:
            self._timer.enter(TaskState.IDLE)
        try:
            waiter.wait(None if until_ns is None else (until_ns - self._clock.now_ns()) / 1e9)
        finally:
            if self._timer is not None:
                self._timer.leave()
            now_ns = self._clock.now_ns()
            with self.lock:
                self._sleeper = None
                wake = self._retry_locked(now_ns)
            if wake is not None:
                wake()

    def _on_event(self, taken: BufferSlice) -> None:
        event = decode_event(taken.memory, f"gate {self.name}, channel {taken.channel}")
        taken.buffer.event_read = event
        if isinstance(event, EndOfPartition):
            with self.lock:
                wake = self._end_locked(taken.channel)
            if wake is not None:
                wake()

    @abstractmethod
    def _has_data_locked(self) -> bool: ...

    @abstractmethod
    def _rest_locked(self) -> Wake:
        """Let credit that waits for more be announced: the reader has nothing at hand."""

    @abstractmethod
    def _end_locked(self, number: int) -> Wake: ...

    @abstractmethod
    def _release_locked(self) -> Wake: ...

    @abstractmethod
    def _retry_at_locked(self) -> int | None: ...

    @abstractmethod
    def _retry_locked(self, now_ns: int) -> Wake: ...
