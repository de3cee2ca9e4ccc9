"""What a task's thread does all its life: take input, push it through the chain, wait, end.

`InputLoop` reads a gate, `SourceLoop` a source. Both run on the task's only thread; `interrupt` and `cancel` come from
others, and anybody asks for `latencies`. A loop ends when its input has ended; the task then finishes the chain.

Invariants: the chain sees the least watermark of all channels, and it never falls; before the loop sleeps, operators
and writers have given out what they hold; timers of processing time run between batches and never inside one; a source
sends latency markers before a batch and while it waits, so that they queue as its records do, and none after its end.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from headgate.config import FlushMode
from headgate.errors import Cancelled, SerializationError
from headgate.input.align import WatermarkMerge
from headgate.meters import TaskState
from headgate.record.element import Batch, EndOfPartition, LatencyMarker, Record, StreamStatus, Watermark
from headgate.task.latency import Latencies, LatencyStatistics, Markers
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.portions import Portions
from headgate.task.source import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate.input import RecordReader
    from headgate.meters import TaskTimer
    from headgate.output import RecordWriter
    from headgate.record.element import Element, Event
    from headgate.sync import Sync, Waiter
    from headgate.task.chain import Chain
    from headgate.task.operator import Operator, Place
    from headgate.task.source import Source

    Now = Callable[[], int]

__all__ = ["InputLoop", "Loop", "SourceLoop"]

_LONGEST_NAP_S = 3600.0


class Loop(Protocol):
    """What a task runs."""

    @property
    def records_in(self) -> int:
        """How many records it has taken."""
        ...

    def latencies(self) -> list[LatencyStatistics]:
        """How long latency markers took to this task; from any thread."""
        ...

    def run(self) -> None:
        """Until the input has ended."""
        ...

    def interrupt(self) -> None:
        """Let the loop come by; from any thread."""
        ...

    def cancel(self) -> None:
        """Let the loop end with Cancelled as soon as it can; from any thread."""
        ...


class _Waking:
    """What both loops share: timers, wake-ups, and what happens before they sleep."""

    def __init__(self, chain: Chain, writers: Sequence[RecordWriter[Any]], wall_ms: Now, wall_ns: Now) -> None:
        self._chain = chain
        self._wall_ms = wall_ms
        self._latencies = Latencies(wall_ns)
        self._flushed = [one for one in writers if one.buffer_timeout.mode is FlushMode.AUTO]
        self._called = False  # somebody wants `on_wake`
        self._cancelled = False

    def latencies(self) -> list[LatencyStatistics]:
        """See `Loop`: nothing comes to a source."""
        return self._latencies.statistics()

    def _before_wait(self) -> None:
        self._chain.flush()
        for writer in self._flushed:
            writer.flush()

    def _run_due(self) -> None:
        """Run timers and wake-ups that are due."""
        if self._called:
            self._called = False
            self._chain.wake()
        at_ms = self._chain.next_timer_ms()
        if at_ms is not None and (now_ms := self._wall_ms()) >= at_ms:
            self._chain.run_timers(now_ms)

    def _between(self) -> None:
        """Between two portions of a batch."""
        self._refuse_if_cancelled()
        self._run_due()

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def _until_timer_s(self) -> float | None:
        at_ms = self._chain.next_timer_ms()
        return None if at_ms is None else max(0.0, (at_ms - self._wall_ms()) / 1000)


class InputLoop(_Waking):
    """Reads the channels of a task's gate; `inputs` says for each whether it belongs to input 0 or 1.

    Batches are handed on as `portions` says, whole if it says nothing.

    >>> from headgate.record import StrSerializer
    >>> from headgate.task.basic import Map
    >>> from headgate.task.chain import Chain
    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     reader = worker.reader(worker.gate("words", channels=1), StrSerializer())
    ...     chain = Chain([OperatorHarness(Map(str.upper)).operator], [None], object_reuse=False)
    ...     InputLoop(reader, [0], chain, [], lambda: 0).records_in
    0
    """

    def __init__(
        self,
        reader: RecordReader[Any],
        inputs: Sequence[int],
        chain: Chain,
        writers: Sequence[RecordWriter[Any]],
        wall_ms: Now,
        *,
        portions: Portions | None = None,
        wall_ns: Now = time.time_ns,
    ) -> None:
        super().__init__(chain, writers, wall_ms, wall_ns)
        self._reader = reader
        self._inputs = list(inputs)
        self._open = [inputs.count(0), inputs.count(1)]
        self._merge = WatermarkMerge(len(inputs))
        self._portions = portions or Portions.whole()
        self._idle = False

    @property
    def records_in(self) -> int:
        """See `Loop`."""
        return self._reader.records_in.value

    def run(self) -> None:
        """See `Loop`."""
        reader, head = self._reader, self._chain.head
        process = [head.process, head.process_second]
        while True:
            self._refuse_if_cancelled()
            try:
                element = reader.read(self._until_timer_s(), before_wait=self._before_wait)
            except SerializationError as error:
                raise head.blamed(error) from error
            if type(element) is Batch:
                self._portions.hand(element, process[self._inputs[reader.channel]], self._between)
            elif element is not None:
                self._on_other(element)
            elif reader.finished:
                return
            self._run_due()

    def _on_other(self, element: Element[Any] | Event) -> None:
        channel, head = self._reader.channel, self._chain.head
        match element:
            case Record(value, timestamp_ms):
                process = head.process if self._inputs[channel] == 0 else head.process_second
                process([value], None if timestamp_ms is None else [timestamp_ms])
            case Watermark(timestamp_ms) if timestamp_ms == MAX_WATERMARK_MS:
                self._rise(self._merge.end(channel))  # it has said its last, and holds nobody back
            case Watermark(timestamp_ms):
                self._rise(self._merge.rise(channel, timestamp_ms))
            case StreamStatus(active):
                self._rise(self._merge.set_active(channel, active=active))
            case EndOfPartition():
                self._rise(self._merge.end(channel))
                which = self._inputs[channel]
                self._open[which] -= 1
                if not self._open[which]:
                    head.end_input(which)
            case LatencyMarker():
                if self._latencies.arrived(element):
                    self._chain.mark(element)
            case _:
                pass  # events that no operator has asked for

    def _rise(self, timestamp_ms: int | None) -> None:
        """Something has changed about the watermark, which may have risen to this."""
        head, was_idle, self._idle = self._chain.head, self._idle, self._merge.idle
        if was_idle and not self._idle:
            head.status(active=True)
        if timestamp_ms is not None and timestamp_ms != MAX_WATERMARK_MS:  # that one comes with the end
            head.watermark(timestamp_ms)
        if self._idle and not was_idle:
            head.status(active=False)

    def interrupt(self) -> None:
        """See `Loop`."""
        self._called = True
        self._reader.gate.interrupt()

    def cancel(self) -> None:
        """See `Loop`."""
        self._cancelled = True  # the gate is not asked as long as there is more in a buffer
        self._reader.gate.release()


@contextmanager
def _closing_all(splits: list[Iterator[Any]], head: Operator) -> Iterator[None]:
    """Close readings when they are over; the first error is the one that is raised."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            _close_all(splits, head)
        raise
    _close_all(splits, head)


def _close_all(splits: list[Iterator[Any]], head: Operator) -> None:
    with head.user_code():
        for one in splits:
            close = getattr(one, "close", None)
            if close is not None:
                close()


class SourceLoop(_Waking):
    """Reads the splits of a source: one after the other where they end, in turns where they do not.

    Every `marker_interval_ns` it sends a latency marker that names `vertex` and `subtask`; 0: none.

    >>> from headgate.api.sources import CollectionSource
    >>> from headgate.meters import TaskTimer
    >>> from headgate.sync import ThreadSync
    >>> from headgate.task.basic import Map
    >>> from headgate.task.chain import Chain
    >>> from headgate.testing.harness import OperatorHarness
    >>> harness = OperatorHarness(Map(str.upper))
    >>> chain, source = Chain([harness.operator], [None], object_reuse=False), CollectionSource(["to", "be"])
    >>> chain.open()
    >>> timing = {"sync": ThreadSync(), "timer": TaskTimer(lambda: 0), "now_ns": lambda: 0}
    >>> loop = SourceLoop(source, source.splits(1), harness.operator.place, chain, [], **timing)
    >>> loop.run(); loop.records_in
    2
    """

    def __init__(
        self,
        source: Source[Any],
        splits: Sequence[Any],
        place: Place,
        chain: Chain,
        writers: Sequence[RecordWriter[Any]],
        *,
        sync: Sync,
        timer: TaskTimer,
        now_ns: Now,
        marker_interval_ns: int = 0,
        vertex: int = 0,
        subtask: int = 0,
        wall_ns: Now = time.time_ns,
    ) -> None:
        super().__init__(chain, writers, place.wall_ms, wall_ns)
        self._now_ns = now_ns
        self._markers = Markers(chain.mark, marker_interval_ns, vertex, subtask, now_ns=now_ns, wall_ns=wall_ns)
        self._source = source
        self._splits = list(splits)
        self._place = place
        self._sync = sync
        self._timer = timer
        self._portions = Portions(now_ns, timer)
        self._sleeper: Waiter | None = None
        self.records_in = 0

    def run(self) -> None:
        """See `Loop`."""
        opened: list[Iterator[list[Any] | Wait]] = []
        with _closing_all(opened, self._chain.head):
            for split in self._splits:
                with self._chain.head.user_code():
                    opened.append(iter(self._source.read(split, 0, self._place)))
                if self._source.bounded:
                    self._drain(opened[-1:])
            if not self._source.bounded:
                self._drain(opened)

    def _drain(self, splits: Sequence[Iterator[list[Any] | Wait]]) -> None:
        """Read all of these until their end, a batch of each in turn, none before the end of its `Wait`."""
        head, now_ns, markers = self._chain.head, self._now_ns, self._markers
        due_ns = dict.fromkeys(splits, 0)
        while due_ns:
            for one, at_ns in list(due_ns.items()):
                if at_ns and now_ns() < at_ns:
                    continue
                with head.user_code():
                    batch = next(one, None)
                self._refuse_if_cancelled()
                if batch is None:
                    del due_ns[one]
                elif isinstance(batch, Wait):
                    due_ns[one] = now_ns() + int(batch.seconds * 1e9)
                else:
                    due_ns[one] = 0
                    if now_ns() >= markers.at_ns:
                        markers.send()
                    self._portions.hand(Batch(batch), self._take, self._between)
                self._run_due()
            if due_ns and (at_ns := min(due_ns.values())):
                self._nap_until(at_ns)

    def _take(self, values: list[Any], times: list[int] | None) -> None:
        self.records_in += len(values)
        self._chain.head.process(values, times)

    def _nap_until(self, at_ns: int) -> None:
        """Sleep until then; markers, timers, wake-ups and a cancelled job come in between."""
        self._markers.send_if_due()
        self._before_wait()
        while not self._cancelled and self._now_ns() < at_ns:
            if self._markers.send_if_due():
                self._before_wait()  # nothing else is going to take it along
            self._sleep(min(at_ns, self._markers.at_ns))
            self._run_due()
        self._refuse_if_cancelled()

    def _sleep(self, until_ns: int) -> None:
        left_s, timer_s = max(0.0, min((until_ns - self._now_ns()) / 1e9, _LONGEST_NAP_S)), self._until_timer_s()
        waiter = self._sync.waiter()
        with self._sync.lock:
            if self._cancelled or self._called:
                return
            self._sleeper = waiter
        self._timer.enter(TaskState.IDLE)
        try:
            waiter.wait(left_s if timer_s is None else min(left_s, timer_s))
        finally:
            self._timer.leave()
            with self._sync.lock:
                self._sleeper = None

    def interrupt(self) -> None:
        """See `Loop`."""
        self._called = True
        self._wake()

    def cancel(self) -> None:
        """See `Loop`."""
        self._cancelled = True
        self._wake()

    def _wake(self) -> None:
        with self._sync.lock:
            sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            sleeper.wake()
