"""Producing tasks that write through the production `RecordWriter`.

A writer blocks if there is no buffer, and a simulated task must not block. So the task calls `tick`, the call of the
flusher, which never blocks: the task emits records while all of them are written, and waits for the pool when one is
not.
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
    from headgate.testing.plan import SimPlan
    from headgate.testing.worker import SimWorker

__all__ = ["WriterProducer", "producer_task"]


class WriterProducer(ProducerTask):
    """A producer that writes through a `RecordWriter`."""

    def __init__(self, number: int, worker: SimWorker, plan: SimPlan, progress: Callable[[], object]) -> None:
        super().__init__(number, worker, plan, progress)
        self._chosen = 0
        selector: Custom[bytes] = Custom(lambda _value, _channels: self._chosen, name="chosen")
        self.writer: RecordWriter[bytes] = worker.writer(self.partition, selector, BytesSerializer())
        self._notices: dict[int, _Notice] = {}

    def step(self) -> None:
        """Emit a few records while none has to wait for a buffer, then call `tick`."""
        chance, writer, plan = self._chance, self.writer, self.plan
        for _ in range(chance.choice((1, 3, 8))):
            drained = self._drained()
            if not drained and (not self._left or any(lane.spanning.unfinished for lane in writer._queues)):
                break
            if drained and plan.events and chance.random() < plan.events:
                writer.emit_event(self._mark())
            found = self._next_record()
            if found is None:
                writer.finish()
                self.finish()
                return
            self._chosen, value = found
            # One short of a full batch: the writer writes a full one at once, and could block.
            writer._full = len(writer._queues[self._chosen].values) + 2
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
        """Call `tick`, as the flusher does; the next call continues with the records that were not written."""
        self.writer.tick()
        if self._notices:
            self.wake()  # the record that waited may be written now

    def _drained(self) -> bool:
        return not any(lane.values or lane.spanning.unfinished for lane in self.writer._queues)

    def _listen(self) -> None:
        """Request a wake-up from the pool for the channel whose record is not written completely."""
        channel = next(one.channel for one in self.writer._queues if one.values or one.spanning.unfinished)
        pool, wake = self.partition.pool, None
        with self.partition.lock:
            segment = pool.try_request_locked(channel)
            if segment is not None:  # recycled meanwhile
                wake = together(pool.recycle_locked(segment, channel), self.wake)
            elif channel not in self._notices:
                self._notices[channel] = notice = _Notice(self, channel)
                pool.listen_locked(notice, channel)
        if wake is not None:
            wake()
            return
        self.waits_for = f"a buffer for subpartition {channel} of partition {self.partition.id}"

    def forget(self, channel: int) -> None:
        """Called when the pool has sent the wake-up for a channel."""
        self._notices.pop(channel, None)

    def _end_buffers(self) -> None:
        self.writer.close()


class _Notice:
    """A `BufferListener` that only wakes the task; the writer then requests the buffer."""

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


def producer_task(number: int, worker: SimWorker, plan: SimPlan, progress: Callable[[], object]) -> ProducerTask:
    """Return a producer of the kind that the plan names."""
    kind = WriterProducer if plan.producers[number].through_writer else DirectProducer
    return kind(number, worker, plan, progress)
