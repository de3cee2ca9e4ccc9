"""Producing tasks that write through the production `RecordWriter`.

A writer sleeps where there is no buffer, and a simulated task must not. So it is driven by its flusher's `tick`, the
one way to write that never waits: the task emits as long as nothing is left over, and listens to the pool when
something is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.buffer import Answer
from headgate.errors import HeadgateError
from headgate.output import Custom
from headgate.record import BytesSerializer
from headgate.sync import together
from headgate.testing.producers import DirectProducer, ProducerTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import Segment
    from headgate.output import RecordWriter
    from headgate.sync import Wake
    from headgate.testing.plan import Plan
    from headgate.testing.worker import SimWorker

__all__ = ["WriterProducer", "producer_task"]


class WriterProducer(ProducerTask):
    """Writes through a `RecordWriter`.

    >>> WriterProducer.flush_now.__doc__
    "The flusher's turn; what it could not write goes first the next time."
    """

    def __init__(self, number: int, worker: SimWorker, plan: Plan, progress: Callable[[], object]) -> None:
        super().__init__(number, worker, plan, progress)
        self._chosen = 0
        selector: Custom[bytes] = Custom(lambda _value, _channels: self._chosen, name="chosen")
        self.writer: RecordWriter[bytes] = worker.writer(self.partition, selector, BytesSerializer())
        self._notices: dict[int, _Notice] = {}

    def step(self) -> None:
        """Emit a few records as long as none would have to wait, then let them be written."""
        chance, writer, plan = self._chance, self.writer, self.plan
        for _ in range(chance.choice((1, 3, 8))):
            drained = self._drained()
            if not drained and (not self._left or any(lane.spanning.unfinished for lane in writer._lanes)):
                break
            if drained and plan.events and chance.random() < plan.events:
                writer.emit_event(self._mark())
            found = self._next_record()
            if found is None:
                writer.finish()
                self.finish()
                return
            self._chosen, value = found
            # One short of a batch: a full one would be written at once, and might wait.
            writer._full = len(writer._lanes[self._chosen].values) + 2
            writer.emit(value)
            self._wrote()
        writer.tick()
        if isinstance(error := writer._error, HeadgateError):
            raise error
        if self._drained():
            self._think()
        else:
            self._listen()

    def flush_now(self) -> None:
        """The flusher's turn; what it could not write goes first the next time."""
        self.writer.tick()
        if self._notices:
            self.wake()  # what it waits to write may be written now

    def _drained(self) -> bool:
        return not any(lane.values or lane.spanning.unfinished for lane in self.writer._lanes)

    def _listen(self) -> None:
        """Be called again when the pool has something for the lane that waits."""
        channel = next(one.channel for one in self.writer._lanes if one.values or one.spanning.unfinished)
        pool, wake = self.partition.pool, None
        with self.partition.lock:
            segment = pool.try_request_locked(channel)
            if segment is not None:  # one has come back meanwhile
                wake = together(pool.recycle_locked(segment, channel), self.wake)
            elif channel not in self._notices:
                self._notices[channel] = notice = _Notice(self, channel)
                pool.listen_locked(notice, channel)
        if wake is not None:
            wake()
            return
        self.waits_for = f"a buffer for subpartition {channel} of partition {self.partition.id}"

    def forget(self, channel: int) -> None:
        """A notice was given."""
        self._notices.pop(channel, None)

    def _end_buffers(self) -> None:
        self.writer.close()


class _Notice:
    """A `BufferListener` that takes nothing: the writer asks the pool again by itself."""

    __slots__ = ("_channel", "_task")

    def __init__(self, task: WriterProducer, channel: int) -> None:
        self._task = task
        self._channel = channel

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:  # noqa: ARG002 - a BufferListener
        self._task.forget(self._channel)
        return Answer.NOT_USED, self._task.wake

    def cancel_locked(self) -> Wake:
        self._task.forget(self._channel)
        return self._task.wake


def producer_task(number: int, worker: SimWorker, plan: Plan, progress: Callable[[], object]) -> ProducerTask:
    """The kind of producer that the plan says.

    >>> from headgate.testing import Simulation
    >>> simulation = Simulation(seed=3, faults=[]); simulation.run()
    >>> all(isinstance(one, WriterProducer) is one.mine.through_writer for one in simulation.job.producers.values())
    True
    """
    kind = WriterProducer if plan.producers[number].through_writer else DirectProducer
    return kind(number, worker, plan, progress)
