"""Several gates read as one, by one task thread.

The union has a fair queue of gates with data, as each gate has one of channels.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.input.waiting import Gate
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.buffer import BufferSlice
    from headgate.clock import Clock
    from headgate.input.gate import GateStatistics, InputGate
    from headgate.meters import TaskTimer
    from headgate.sync import Sync, Wake

__all__ = ["UnionGate"]


class UnionGate(Gate):
    """Reads several gates as one; a channel's number is offset by the channels of the gates before its own.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     orders, clicks = worker.gate("orders", channels=2), worker.gate("clicks", channels=3)
    ...     worker.union("both", [orders, clicks]).channel_count
    5
    """

    def __init__(
        self, name: str, gates: Sequence[InputGate], *, sync: Sync, clock: Clock, timer: TaskTimer | None = None
    ) -> None:
        super().__init__(name, sync, clock, timer)
        assert gates, "a union has at least one gate"
        self.gates = tuple(gates)
        self._queue: deque[InputGate] = deque()
        self._offsets: dict[InputGate, int] = {}
        self._owners: list[InputGate] = []  # by channel number
        with self.lock:
            for gate in self.gates:
                self._offsets[gate] = len(self._owners)
                self._owners.extend([gate] * gate.channel_count)
                gate.join_locked(self)
                if gate.has_data:
                    self.enqueue_locked(gate)

    @property
    def channel_count(self) -> int:
        """The number of channels of all gates."""
        return len(self._owners)

    @property
    def finished(self) -> bool:
        """True once every channel of every gate has ended."""
        return all(gate.finished for gate in self.gates)

    def enqueue_locked(self, gate: InputGate) -> Wake:
        """Put a gate with data into the queue, once, and wake the reader."""
        if gate.queued:
            return None
        gate.queued = True
        self._queue.append(gate)
        return self.wake_reader_locked()

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return one buffer of the first gate in the queue, or None, and a wake-up to perform after the lock."""
        queue, wake = self._queue, None
        while queue:
            gate = queue.popleft()
            try:
                taken, woken = gate.poll_locked()
            except HeadgateError as error:
                self.fail_locked(error)
                if wake is None:
                    raise
                return None, wake  # the next call raises the failure, after the wake-ups
            if gate.failure is not None:
                self.fail_locked(gate.failure)
            gate.queued = gate.has_data
            if gate.queued:
                queue.append(gate)
            wake = together(wake, woken)
            if taken is not None:
                taken.channel += self._offsets[gate]
                return taken, wake
        return None, wake

    def statistics(self) -> tuple[GateStatistics, ...]:
        """Return a snapshot of each gate."""
        return tuple(gate.statistics() for gate in self.gates)

    def _has_data_locked(self) -> bool:
        return bool(self._queue)

    def _announce_all_locked(self) -> Wake:
        return together(*[gate.announce_all_locked() for gate in self.gates])

    def _end_locked(self, number: int) -> Wake:
        gate = self._owners[number]
        return gate.end_locked(number - self._offsets[gate])

    def _release_locked(self) -> Wake:
        self._queue.clear()
        return together(*[gate.release_channels_locked() for gate in self.gates])

    def _retry_at_locked(self) -> int | None:
        times = [gate.retry_at_locked() for gate in self.gates]
        return min((time for time in times if time is not None), default=None)

    def _retry_locked(self, now_ns: int) -> Wake:
        return together(*[gate.retry_locked(now_ns) for gate in self.gates])
