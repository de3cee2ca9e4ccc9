"""The loop of a task's thread: read input, pass it to the chain, block while there is none.

`InputLoop` reads a gate, `SourceLoop` a source. Both run on the task's only thread; other threads call `interrupt`,
`cancel` and `latencies`. A loop ends when its input has ended; the task then finishes the chain.

Invariants: the chain receives the least watermark of all channels, which never decreases. Before the loop blocks,
operators and writers are flushed. Processing-time timers run between batches and never inside one. A source sends
latency markers before a batch and while it waits, so that they queue as its records do, and none after its end.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from headgate.config import FlushMode
from headgate.errors import Cancelled, SerializationError
from headgate.functions.source import Wait
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.input.align import EventMerge, WatermarkMerge
from headgate.meters import Activity
from headgate.record.copying import copied_batch
from headgate.record.element import Batch, EndOfPartition, Event, LatencyMarker, Record, StreamStatus, Watermark
from headgate.task.runtime.chain import record_count
from headgate.task.runtime.latency import Latencies, LatencyStatistics, MarkerSender
from headgate.task.runtime.portions import Portions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate.functions.source import Source
    from headgate.input import RecordReader
    from headgate.meters import TaskTimer
    from headgate.output import RecordWriter
    from headgate.record.element import Element
    from headgate.sync import Sync, WakeSignal
    from headgate.task.operator import Operator
    from headgate.task.place import OperatorPlace
    from headgate.task.runtime.chain import Chain

    Now = Callable[[], int]

__all__ = ["InputLoop", "SourceLoop", "TaskLoop"]

_MAX_SLEEP_S = 3600.0


class TaskLoop(Protocol):
    """The loop that a task runs."""

    @property
    def records_in(self) -> int:
        """The number of records read."""
        ...

    def latencies(self) -> list[LatencyStatistics]:
        """Return the latencies of markers up to this task. Called from any thread."""
        ...

    def run(self) -> None:
        """Run until the input has ended."""
        ...

    def interrupt(self) -> None:
        """Make the loop call `on_wake` of the operators. Called from any thread."""
        ...

    def cancel(self) -> None:
        """Make the loop raise Cancelled as soon as possible. Called from any thread."""
        ...

    def abandon(self) -> None:
        """Make the loop of a forked child raise Cancelled before it reads again. Acquires no lock."""
        ...


class _BaseLoop:
    """The base of both loops: timers, wake-ups, and the flush before the loop blocks."""

    def __init__(self, chain: Chain, writers: Sequence[RecordWriter[Any]], wall_ms: Now, wall_ns: Now) -> None:
        self._chain = chain
        self._wall_ms = wall_ms
        self._latencies = Latencies(wall_ns)
        self._flushed = [one for one in writers if one.buffer_timeout.mode is FlushMode.AUTO]
        self._task_events = chain.head.place.task_events
        self._interrupted = False  # `on_wake` is due
        self._cancelled = False

    def abandon(self) -> None:
        """See `TaskLoop`."""
        self._cancelled = True

    def latencies(self) -> list[LatencyStatistics]:
        """See `TaskLoop`; a source receives no markers."""
        return self._latencies.statistics()

    def _before_wait(self) -> None:
        self._chain.flush()
        for writer in self._flushed:
            writer.flush()

    def _run_due(self) -> None:
        """Run the timers, wake-ups and task events that are due."""
        if self._interrupted:
            self._interrupted = False
            self._chain.wake()
        if self._task_events.due:
            self._task_events.run_due()
        at_ms = self._chain.next_timer_ms()
        if at_ms is not None and (now_ms := self._wall_ms()) >= at_ms:
            self._chain.run_timers(now_ms)

    def _between_portions(self) -> None:
        self._raise_if_cancelled()
        self._run_due()

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def _until_timer_s(self) -> float | None:
        at_ms = self._chain.next_timer_ms()
        return None if at_ms is None else max(0.0, (at_ms - self._wall_ms()) / 1000)


class InputLoop(_BaseLoop):
    """Reads the channels of a task's gate; `inputs` is the operator's input (0 or 1) of each channel.

    `portions` divides slow batches; None: batches are not divided.
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
        self._events = EventMerge(len(inputs))
        self._portions = portions or Portions.whole()
        self._idle = False

    @property
    def records_in(self) -> int:
        """See `TaskLoop`."""
        return self._reader.records_in.value

    def run(self) -> None:
        """See `TaskLoop`."""
        reader, head = self._reader, self._chain.head
        process = [head.process, head.process_second]
        while True:
            self._raise_if_cancelled()
            try:
                element = reader.read(self._until_timer_s(), before_wait=self._before_wait)
            except SerializationError as error:
                raise head.user_code_error(error) from error
            if type(element) is Batch:
                self._portions.process(element, process[self._inputs[reader.channel]], self._between_portions)
            elif element is not None:
                self._on_element(element)
            elif reader.finished:
                return
            self._run_due()

    def _on_element(self, element: Element[Any] | Event) -> None:
        channel, head = self._reader.channel, self._chain.head
        match element:
            case Record(value, timestamp_ms):
                process = head.process if self._inputs[channel] == 0 else head.process_second
                process([value], None if timestamp_ms is None else [timestamp_ms])
            case Watermark(timestamp_ms) if timestamp_ms == MAX_WATERMARK_MS:
                self._on_watermark(self._merge.end(channel))  # no watermark follows: do not wait for this channel
            case Watermark(timestamp_ms):
                self._on_watermark(self._merge.rise(channel, timestamp_ms))
            case StreamStatus(active):
                self._on_watermark(self._merge.set_active(channel, active=active))
            case EndOfPartition():
                self._on_watermark(self._merge.end(channel))
                self._process_events(self._events.end(channel))
                which = self._inputs[channel]
                self._open[which] -= 1
                if not self._open[which]:
                    head.end_input(which)
            case LatencyMarker():
                if self._latencies.add(element):
                    self._chain.mark(element)
            case Event():
                self._process_events(self._events.arrived(channel, element))

    def _process_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._chain.head.event(event)

    def _on_watermark(self, timestamp_ms: int | None) -> None:
        """Pass a changed status of all channels, and their new watermark unless it is None, to the head."""
        head, was_idle, self._idle = self._chain.head, self._idle, self._merge.idle
        if was_idle and not self._idle:
            head.status(active=True)
        if timestamp_ms is not None and timestamp_ms != MAX_WATERMARK_MS:  # `Chain.finish` processes the last one
            head.watermark(timestamp_ms)
        if self._idle and not was_idle:
            head.status(active=False)

    def interrupt(self) -> None:
        """See `TaskLoop`."""
        self._interrupted = True
        self._reader.gate.interrupt()

    def cancel(self) -> None:
        """See `TaskLoop`."""
        self._cancelled = True  # needed, because the reader does not call the gate before its buffer is read
        self._reader.gate.release()


@contextmanager
def _closing_all(splits: list[Iterator[Any]], head: Operator) -> Iterator[None]:
    """Close the iterators of all splits at the end of the block; the first error is raised."""
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


def _batch_copier(source: Source[Any], *, object_reuse: bool) -> Callable[[list[Any]], list[Any]]:
    """Return the function that copies a source's batch if the source could change it later (K1)."""
    if source.fresh:
        return _itself
    return list if object_reuse else _copied


def _itself(batch: list[Any]) -> list[Any]:
    return batch


def _copied(batch: list[Any]) -> list[Any]:
    return copied_batch(list(batch))  # the source may fill the same list again


class SourceLoop(_BaseLoop):
    """Reads the splits of a source: one after the other if they are bounded, otherwise a batch of each in turn.

    Sends a latency marker of `vertex` and `subtask` every `marker_interval_ns`; 0: none.

    >>> from headgate.connectors.generators import CollectionSource
    >>> from headgate.meters import TaskTimer
    >>> from headgate.sync import ThreadSync
    >>> from headgate.task.operators.basic import Map
    >>> from headgate.task.runtime.chain import Chain
    >>> from headgate.testing.harness import OperatorHarness
    >>> harness = OperatorHarness(Map(str.upper))
    >>> chain, source = Chain([harness.operator], [None]), CollectionSource(["to", "be"])
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
        place: OperatorPlace,
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
        self._markers = MarkerSender(chain.mark, marker_interval_ns, vertex, subtask, now_ns=now_ns, wall_ns=wall_ns)
        self._source = source
        self._own_batch: Callable[[list[Any]], list[Any]] = _batch_copier(source, object_reuse=place.object_reuse)
        self._splits = list(splits)
        self._place = place
        self._sync = sync
        self._timer = timer
        self._portions = Portions(now_ns, timer)
        self._sleeper: WakeSignal | None = None
        self.records_in = 0

    def run(self) -> None:
        """See `TaskLoop`."""
        opened: list[Iterator[list[Any] | Wait | Event]] = []
        with _closing_all(opened, self._chain.head):
            for split in self._splits:
                with self._chain.head.user_code():
                    opened.append(iter(self._source.read(split, 0, self._place)))
                if self._source.bounded:
                    self._drain(opened[-1:])
            if not self._source.bounded:
                self._drain(opened)

    def _drain(self, splits: Sequence[Iterator[list[Any] | Wait | Event]]) -> None:
        """Read splits until their end, a batch of each in turn; skip a split until its `Wait` is over."""
        head, now_ns, markers = self._chain.head, self._now_ns, self._markers
        due_ns = dict.fromkeys(splits, 0)
        while due_ns:
            for one, at_ns in list(due_ns.items()):
                if at_ns and now_ns() < at_ns:
                    continue
                with head.user_code():
                    batch = next(one, None)
                self._raise_if_cancelled()
                if batch is None:
                    del due_ns[one]
                elif isinstance(batch, Wait):
                    due_ns[one] = now_ns() + int(batch.seconds * 1e9)
                elif isinstance(batch, Event):
                    due_ns[one] = 0
                    self._emit_event(batch)
                else:
                    due_ns[one] = 0
                    if now_ns() >= markers.at_ns:
                        markers.send()
                    self._portions.process(Batch(self._own_batch(batch)), self._process, self._between_portions)
                self._run_due()
            if due_ns and (at_ns := min(due_ns.values())):
                self._wait_until(at_ns)

    def _emit_event(self, event: Event) -> None:
        head = self._chain.head
        if isinstance(event, EndOfPartition):
            with head.user_code():
                raise TypeError("a source ends when its reading does: it does not yield the end of a partition")
        head.event(event)

    def _process(self, values: list[Any], times: list[int] | None) -> None:
        if values:
            self.records_in += record_count(values)
        self._chain.head.process(values, times)

    def _wait_until(self, at_ns: int) -> None:
        """Block until a time; meanwhile send markers, and run timers and wake-ups."""
        self._markers.send_if_due()
        self._before_wait()
        while not self._cancelled and self._now_ns() < at_ns:
            if self._markers.send_if_due():
                self._before_wait()  # flushes the marker: no record follows it
            self._sleep(min(at_ns, self._markers.at_ns))
            self._run_due()
        self._raise_if_cancelled()

    def _sleep(self, until_ns: int) -> None:
        left_s, timer_s = max(0.0, min((until_ns - self._now_ns()) / 1e9, _MAX_SLEEP_S)), self._until_timer_s()
        waiter = self._sync.new_signal()
        with self._sync.lock:
            if self._cancelled or self._interrupted:
                return
            self._sleeper = waiter
        self._timer.enter(Activity.IDLE)
        try:
            waiter.wait(left_s if timer_s is None else min(left_s, timer_s))
        finally:
            self._timer.leave()
            with self._sync.lock:
                self._sleeper = None

    def interrupt(self) -> None:
        """See `TaskLoop`."""
        self._interrupted = True
        self._wake()

    def cancel(self) -> None:
        """See `TaskLoop`."""
        self._cancelled = True
        self._wake()

    def _wake(self) -> None:
        with self._sync.lock:
            sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            sleeper.wake()
