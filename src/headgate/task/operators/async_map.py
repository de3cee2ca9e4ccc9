"""MapAsync: a coroutine for each value, many at the same time, for requests to databases and services.

Called on the task's thread; the coroutines run on one event loop, in a thread of the operator
(`operators.async_loop`). Results return through a queue. The first result that arrives while the task is idle wakes it;
the task then takes all results in the queue.

Invariants: at most `capacity` values are in the operator; `process` blocks when it is full, which is back pressure. A
watermark, status or event never overtakes a value, and a value never overtakes one of these, ordered or not. A value
that fails ends the task.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from typing import TYPE_CHECKING, Any

from headgate.errors import Cancelled
from headgate.functions.basic import Function, RuntimeContext, method_of
from headgate.meters import Activity
from headgate.record.copying import copied
from headgate.task.operators.basic import FunctionOperator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.record.element import Event
    from headgate.task.operator import Output, Times, Values
    from headgate.task.operators.async_loop import CoroutineLoop

__all__ = ["Call", "MapAsync"]

_MAX_PENDING_EVENTS = 1000  # `capacity` does not count events, so they need a bound of their own
_CLOSE_WITHIN_S = 3.0  # then the thread of a coroutine that ignores its cancellation is abandoned


class Call:
    """One value in the operator, and its result or error."""

    __slots__ = ("done", "error", "result", "segment", "time", "value")

    def __init__(self, value: Any, time: int | None) -> None:
        self.value = value
        self.time = time
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False  # set by the task
        self.segment: _Segment | None = None


class _Mark:
    """Consecutive watermarks, statuses and events, which must not overtake values."""

    __slots__ = ("_active", "_before", "_watermark_ms")

    def __init__(self, watermark_ms: int | None = None, active: bool | None = None, event: Event | None = None) -> None:
        self._before: list[tuple[_Mark, Event]] = []  # events, each with the mark to emit before it
        self._watermark_ms = watermark_ms
        self._active = active
        if event is not None:
            self._before.append((_Mark(), event))

    @property
    def events(self) -> int:
        """The number of events."""
        return len(self._before)

    def add(self, later: _Mark) -> None:
        """Append the next mark, with no value between them: between two events only the last watermark is kept."""
        for before, event in later._before:
            self._replace(before)
            self._before.append((_Mark(self._watermark_ms, self._active), event))
            self._watermark_ms = self._active = None
        self._replace(later)

    def _replace(self, later: _Mark) -> None:
        if later._watermark_ms is not None:
            self._watermark_ms = later._watermark_ms
        if later._active is not None:
            self._active = later._active

    def emit(self, out: Output) -> None:
        """Emit everything in order; a watermark is emitted while the stream is active."""
        for before, event in self._before:
            before.emit(out)
            out.emit_event(event)
        if self._active is True:
            out.emit_status(active=True)
        if self._watermark_ms is not None:
            out.emit_watermark(self._watermark_ms)
        if self._active is False:
            out.emit_status(active=False)


class _InOrder:
    """Calls leave in the order of their values."""

    def __init__(self) -> None:
        self._queue: deque[Call | _Mark] = deque()

    def add(self, calls: Sequence[Call]) -> None:
        self._queue.extend(calls)

    def add_mark(self, mark: _Mark) -> None:
        if self._queue and isinstance(last := self._queue[-1], _Mark):
            last.add(mark)
        else:
            self._queue.append(mark)

    def set_done(self, call: Call) -> None:
        call.done = True

    def take(self) -> Iterator[Call | _Mark]:
        waiting = self._queue
        while waiting and (isinstance(first := waiting[0], _Mark) or first.done):
            yield waiting.popleft()


class _Segment:
    """The calls between two marks: the number of unfinished ones, the finished ones, and the mark after them."""

    __slots__ = ("done", "mark", "open")

    def __init__(self) -> None:
        self.open = 0
        self.done: list[Call] = []
        self.mark: _Mark | None = None


class _AsDone:
    """Calls leave when they are done, but never pass a mark.

    Only the calls of the first segment leave. After all of them its mark leaves, and the next segment becomes the
    first: Flink's UnorderedStreamElementQueue.
    """

    def __init__(self) -> None:
        # Invariant: all but the last have a mark, all but the first have a call. So there is at most one more segment
        # than calls.
        self._segments = deque([_Segment()])

    def add(self, calls: Sequence[Call]) -> None:
        if self._segments[-1].mark is not None:
            self._segments.append(_Segment())
        last = self._segments[-1]
        last.open += len(calls)
        for call in calls:
            call.segment = last

    def add_mark(self, mark: _Mark) -> None:
        last = self._segments[-1]
        if last.mark is None:
            last.mark = mark
        else:
            last.mark.add(mark)

    def set_done(self, call: Call) -> None:
        assert call.segment is not None, "a call was added before it was done"
        call.segment.open -= 1
        call.segment.done.append(call)

    def take(self) -> Iterator[Call | _Mark]:
        segments = self._segments
        while True:
            first = segments[0]
            done, first.done = first.done, []
            yield from done
            if first.open or first.mark is None:
                return
            mark, first.mark = first.mark, None
            if len(segments) > 1:
                segments.popleft()
            yield mark


def _itself(result: Any) -> Any:
    return result


class MapAsync(FunctionOperator):
    """One value out for each value in, by a coroutine function or a `MapFunction` whose `map` is one.

    `ordered`: results are emitted in the order of their values; otherwise when they are done, but never across a
    watermark or status. A coroutine that takes longer than `timeout_s` fails. A function's `open` and `close` run on
    the event loop, and may be coroutines, too.

    >>> from headgate.testing.harness import OperatorHarness
    >>> async def look_up(word):
    ...     return word, len(word)
    >>> with OperatorHarness(MapAsync(look_up, capacity=10, ordered=True)) as harness:
    ...     harness.process(["to", "be"]); harness.end()
    >>> harness.values
    [('to', 2), ('be', 2)]
    """

    def __init__(
        self,
        function: Any,
        capacity: int = 100,
        ordered: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(function)
        if capacity < 1:
            raise ValueError(f"capacity is the number of values at the same time: 1 or more, not {capacity}")
        if timeout_s is not None and timeout_s <= 0:
            raise ValueError(f"timeout_s is more than 0, not {timeout_s}; None is no limit")
        self._capacity = capacity
        self._timeout_s = timeout_s
        self._pending: _InOrder | _AsDone = _InOrder() if ordered else _AsDone()
        self._results: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # None: cancelled
        self._notified = False  # the task was woken, or takes results by itself: no further wake-up is needed
        self._cancelled = False
        self._values_inside = 0  # values that have not left
        self._events_inside = 0  # events that have not left
        self._loop: CoroutineLoop | None = None

    def open(self) -> None:
        """Start the event loop, and open the function there."""
        from headgate.task.operators.async_loop import CoroutineLoop  # noqa: PLC0415 - it imports asyncio

        place = self.place
        loop = CoroutineLoop(
            method_of(self.function, "map"),
            deliver=self._deliver,
            timeout_s=self._timeout_s,
            name=f"headgate-async-{place.operator}-{place.subtask}",
            own=_itself if place.object_reuse else copied,
        )
        with self.user_code():
            loop.open(self._open_function)
        self._loop = loop

    @property
    def coroutines(self) -> CoroutineLoop | None:
        """The loop that runs the coroutines, between `open` and `close`. Read by any thread."""
        return self._loop

    def _open_function(self) -> Any:
        if isinstance(self.function, Function):
            return self.function.open(RuntimeContext(self.place))
        return None

    def _close_function(self) -> Any:
        if isinstance(self.function, Function):
            return self.function.close()
        return None

    def process(self, values: Values, times: Times) -> None:
        """Start a coroutine for each value; block while `capacity` values are in the operator."""
        assert self._loop is not None, "process before open"
        begin, end = 0, len(values)
        while begin < end:
            free = self._capacity - self._values_inside
            if not free:
                self._take_results(wait=True)
                continue
            part = slice(begin, begin + free)
            if times is None:
                calls = [Call(value, None) for value in values[part]]
            else:
                calls = [Call(value, time) for value, time in zip(values[part], times[part], strict=True)]
            self._pending.add(calls)
            self._values_inside += len(calls)
            self._loop.submit(calls)
            begin += len(calls)
        self._take_results()

    def watermark(self, timestamp_ms: int) -> None:
        """Forward the watermark after all values before it."""
        self._pending.add_mark(_Mark(timestamp_ms))
        self._take_results()

    def status(self, *, active: bool) -> None:
        """Forward the status after all values before it."""
        self._pending.add_mark(_Mark(active=active))
        self._take_results()

    def event(self, event: Event) -> None:
        """Forward the event after all values before it; block while more than 1,000 events are in the operator."""
        self._pending.add_mark(_Mark(event=event))
        self._events_inside += 1
        self._take_results()
        while self._events_inside > _MAX_PENDING_EVENTS:
            self._take_results(wait=True)

    def on_wake(self) -> None:
        """Emit the finished results."""
        self._take_results()

    def flush(self) -> None:
        """Emit the finished results."""
        self._take_results()

    def finish(self) -> None:
        """Block until all results are emitted."""
        while self._values_inside:
            self._take_results(wait=True)
        self._take_results()

    def cancel(self) -> None:
        """Make a task that waits for results raise Cancelled. Called from any thread."""
        self._cancelled = True
        self._results.put(None)

    def close(self) -> None:
        """Cancel the coroutines, close the function, and end the event loop's thread."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._notified = True  # the task ends: no wake-up from now on
        with self.user_code():
            ended = loop.close(self._close_function, timeout_s=_CLOSE_WITHIN_S)
        if not ended:
            self.place.logger.warning(
                "%s, subtask %d: coroutines blocked or would not be cancelled; their thread is left behind",
                self.place.operator,
                self.place.subtask,
            )

    def _deliver(self, call: Call) -> None:
        """Pass a finished call to the task. Called on the loop's thread."""
        # The task clears `_notified` before it reads the queue: so it either finds this call, or is woken for it.
        self._results.put(call)
        if not self._notified:
            self._notified = True
            self.place.wake()

    def _take_results(self, *, wait: bool = False) -> None:
        """Take finished calls from the queue, block for the first one if `wait`, and emit the calls that may leave."""
        results, pending = self._results, self._pending
        found: list[Call | None] = []
        if wait and results.empty():
            self._notified = True  # `get` returns by itself: no wake-up is needed
            timer = self.place.timer
            timer.enter(Activity.WAITING)
            try:
                found.append(results.get())
            finally:
                timer.leave()
        self._notified = False
        try:
            while True:
                found.append(results.get_nowait())
        except queue.Empty:
            pass
        if self._cancelled:
            raise Cancelled("the job was cancelled")
        for call in found:
            assert call is not None, "None without a cancellation"
            if call.error is not None:
                with self.user_code():
                    raise call.error
            pending.set_done(call)
        self._emit_ready()

    def _emit_ready(self) -> None:
        values: Values = []
        times: list[int | None] = []
        for ready in self._pending.take():
            if isinstance(ready, _Mark):
                self._emit(values, times)
                values, times = [], []
                self._events_inside -= ready.events
                ready.emit(self.out)
            else:
                self._values_inside -= 1
                values.append(ready.result)
                times.append(ready.time)
        self._emit(values, times)

    def _emit(self, values: Values, times: list[int | None]) -> None:
        """Emit a batch; in several parts if only some of its values have times."""
        if not values:
            return
        known: Any = times
        missing = times.count(None)
        if not missing or missing == len(times):
            self.out.emit(values, None if missing else known)
            return
        for timeless, run in itertools.groupby(zip(values, times, strict=True), lambda pair: pair[1] is None):
            some, known = map(list, zip(*run, strict=True))
            self.out.emit(some, None if timeless else known)
