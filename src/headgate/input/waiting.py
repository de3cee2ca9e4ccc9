"""The base of all gates: where a task blocks for input.

One task thread reads; producers and the network thread wake it. The reader's thread requests missing partitions again
while it blocks.

Invariant: the reader blocks only while there is nothing to read, and is woken only when that changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headgate.buffer import Kind
from headgate.errors import Cancelled, HeadgateError
from headgate.meters import Activity
from headgate.record.element import EndOfPartition, decode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice
    from headgate.clock import Clock
    from headgate.meters import TaskTimer
    from headgate.sync import Lock, Sync, Wake, WakeSignal

__all__ = ["Gate"]

_DATA = Kind.DATA


class Gate(ABC):
    """The base of all gates: blocking and non-blocking reads by one task thread.

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
        self._blocked_reader: WakeSignal | None = None
        self._interrupted = False
        self.failure: HeadgateError | None = None
        """Raised by every further read."""

    @property
    @abstractmethod
    def channel_count(self) -> int:
        """The number of channels."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True once every channel has ended."""

    def poll(self, done: BufferSlice | None = None) -> BufferSlice | None:
        """Return the next buffer with its `channel` and, for an event, its `event`; None if there is none now.

        The caller releases the buffer, or passes it to its next call as `done`, which costs less.

        Raises:
            ProducerFailed: a producer's task failed; every further read raises the same.
            PartitionNotFound: a partition did not appear in time.
            Cancelled: the gate was released.
        """
        taken = self._take(done)
        if taken is None:
            with self.lock:
                announced = self._announce_all_locked()
            if announced is not None:
                announced()
        return taken

    def _take(self, done: BufferSlice | None = None) -> BufferSlice | None:
        """Do the same as `poll`, but announce no credit if there is nothing: the caller may poll the network first."""
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
        """Do the same as `poll`, but block until there is a buffer.

        None if all channels have ended, after `timeout_s`, or after an `interrupt`. `before_wait` is called before the
        thread blocks: a task flushes its outputs there.
        """
        taken = self._take(done)
        if taken is None and not self.finished and self._poll_network():
            taken = self._take()
        if taken is not None or self.finished:
            return taken
        if before_wait is not None:
            before_wait()
        deadline_ns = None if timeout_s is None else self._clock.now_ns() + int(timeout_s * 1e9)
        while True:
            self._block(deadline_ns)
            taken = self._take()
            if taken is not None or self.finished:
                return taken
            if self._interrupted:
                self._interrupted = False
                return None
            if deadline_ns is not None and self._clock.now_ns() >= deadline_ns:
                return None

    def interrupt(self) -> None:
        """Let the current `read`, or else the next, return if there is nothing to read. From any thread."""
        with self.lock:
            self._interrupted = True
            wake = self.wake_reader_locked()
        if wake is not None:
            wake()

    def release(self) -> None:
        """Release all channels; a blocked reader gets Cancelled. Idempotent."""
        with self.lock:
            error = Cancelled(f"gate {self.name} was released")
            wake = together(self._fail_all_locked(error), self._release_locked())
        if wake is not None:
            wake()

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Let every further read raise this error, or the first one."""
        if self.failure is None or isinstance(error, Cancelled):
            self.failure = error
        return self.wake_reader_locked()

    def _fail_all_locked(self, error: HeadgateError) -> Wake:
        """Do the same as `fail_locked`, also for the union of this gate."""
        return self.fail_locked(error)

    def wake_reader_locked(self) -> Wake:
        """Wake the reader if it is blocked."""
        signal, self._blocked_reader = self._blocked_reader, None
        return None if signal is None else signal.wake

    @abstractmethod
    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return the next buffer, or None, and a wake-up to perform after the lock. A failure is kept."""

    def _poll_network(self) -> bool:
        """Poll the network once, which costs less than to block and be woken. Return True if there was anything."""
        if self._timer is None:
            return self._sync.poll_once()
        self._timer.enter(Activity.IDLE)
        try:
            return self._sync.poll_once()
        finally:
            self._timer.leave()

    def _block(self, deadline_ns: int | None) -> None:
        """Block until a wake-up, the deadline or the next retry, whichever is first; then request what is due."""
        with self.lock:
            if self._has_data_locked() or self.finished or self.failure is not None or self._interrupted:
                return
            self._blocked_reader = signal = self._sync.new_signal()
            until_ns = self._retry_at_locked()
            announced = self._announce_all_locked()
        if announced is not None:
            announced()
        if until_ns is None or (deadline_ns is not None and deadline_ns < until_ns):
            until_ns = deadline_ns
        if self._timer is not None:
            self._timer.enter(Activity.IDLE)
        try:
            signal.wait(None if until_ns is None else (until_ns - self._clock.now_ns()) / 1e9)
        finally:
            if self._timer is not None:
                self._timer.leave()
            now_ns = self._clock.now_ns()
            with self.lock:
                self._blocked_reader = None
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
    def _announce_all_locked(self) -> Wake:
        """Announce all scheduled credit: trigger 3 of `wire.flow`."""

    @abstractmethod
    def _end_locked(self, number: int) -> Wake: ...

    @abstractmethod
    def _release_locked(self) -> Wake: ...

    @abstractmethod
    def _retry_at_locked(self) -> int | None: ...

    @abstractmethod
    def _retry_locked(self, now_ns: int) -> Wake: ...
