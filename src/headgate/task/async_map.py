"""Coroutines for values: many wait at the same time, for databases and services elsewhere.

Called on the task's thread; the coroutines run on one event loop, in one thread of the operator's own
(`task.async_loop`). Results come back through a queue. A result that arrives while the task is idle wakes it once; it
then takes all there are.

Invariants: at most `capacity` values are in the operator, so `process` blocks when they are: that is back pressure;
a watermark or status never overtakes a value; a value that fails ends the task, and nothing waits for its result.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from typing import TYPE_CHECKING, Any

from headgate.errors import Cancelled
from headgate.task.basic import FunctionOperator, method_of
from headgate.task.functions import Function, RuntimeContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.task.async_loop import CoroutineLoop
    from headgate.task.operator import Output, Times, Values

__all__ = ["Call", "MapAsync"]

_CLOSE_WITHIN_S = 3.0  # a coroutine that will not be cancelled is left behind after this


class Call:
    """One value in the operator, and what becomes of it.

    >>> Call("to", 5).done
    False
    """

    __slots__ = ("done", "error", "result", "segment", "time", "value")

    def __init__(self, value: Any, time: int | None) -> None:
        self.value = value
        self.time = time
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False  # the task knows
        self.segment: _Segment | None = None


class _Mark:
    """What must not overtake values: a watermark, a status, or both."""

    __slots__ = ("_active", "_watermark_ms")

    def __init__(self, watermark_ms: int | None, active: bool | None) -> None:
        self._watermark_ms = watermark_ms
        self._active = active

    def add(self, later: _Mark) -> None:
        """Take in one that follows, without a value between them: only the last of each counts."""
        if later._watermark_ms is not None:
            self._watermark_ms = later._watermark_ms
        if later._active is not None:
            self._active = later._active

    def emit(self, out: Output) -> None:
        """Hand it on, so that the watermark comes while the stream is active."""
        if self._active is True:
            out.emit_status(active=True)
        if self._watermark_ms is not None:
            out.emit_watermark(self._watermark_ms)
        if self._active is False:
            out.emit_status(active=False)


class _InOrder:
    """Calls leave in the order they came."""

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
    """The calls between two marks: how many are not done, and the mark after them."""

    __slots__ = ("mark", "open")

    def __init__(self) -> None:
        self.open = 0
        self.mark: _Mark | None = None


class _AsDone:
    """Calls leave when they are done; a mark when all calls before it have left."""

    def __init__(self, capacity: int) -> None:
        self._segments = deque([_Segment()])  # Invariant: all but the last have a mark
        self._ready: deque[Call] = deque()
        self._sweep_at = 2 * capacity + 16

    def add(self, calls: Sequence[Call]) -> None:
        last = self._segments[-1]
        last.open += len(calls)
        for call in calls:
            call.segment = last

    def add_mark(self, mark: _Mark) -> None:
        segments = self._segments
        if len(segments) > 1 and not segments[-1].open and (before := segments[-2].mark) is not None:
            before.add(mark)
            return
        segments[-1].mark = mark
        segments.append(_Segment())
        if len(segments) > self._sweep_at:
            self._sweep()

    def set_done(self, call: Call) -> None:
        assert call.segment is not None, "a call was added before it was done"
        call.segment.open -= 1
        self._ready.append(call)

    def take(self) -> Iterator[Call | _Mark]:
        while self._ready:
            yield self._ready.popleft()
        segments = self._segments
        while (mark := segments[0].mark) is not None and not segments[0].open:
            segments.popleft()
            yield mark

    def _sweep(self) -> None:
        """Join segments without open calls to those before them: no more are left than calls are open, and two."""
        kept = deque([self._segments[0]])
        for segment in list(self._segments)[1:]:
            before = kept[-1].mark
            if segment.mark is not None and not segment.open and before is not None:
                before.add(segment.mark)
            else:
                kept.append(segment)
        self._segments = kept


class MapAsync(FunctionOperator):
    """One value out for each value in, by a coroutine function or a `MapFunction` whose `map` is one.

    `ordered`: results leave in the order of their values; otherwise as they are done, with their own event times. A
    coroutine that takes longer than `timeout_s` fails. A function's `open` and `close` run on the event loop, and may
    be coroutines, too.

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
        self._book: _InOrder | _AsDone = _InOrder() if ordered else _AsDone(capacity)
        self._results: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # None: cancelled
        self._told = False  # that there are results: not again before the task has come for them
        self._cancelled = False
        self._inside = 0  # values that have not left
        self._loop: CoroutineLoop | None = None

    def open(self) -> None:
        """Start the event loop, and open the function there."""
        from headgate.task.async_loop import CoroutineLoop  # noqa: PLC0415 - it imports asyncio

        place = self.place
        loop = CoroutineLoop(
            method_of(self.function, "map"),
            deliver=self._deliver,
            timeout_s=self._timeout_s,
            name=f"headgate-async-{place.operator}-{place.subtask}",
        )
        with self.user_code():
            loop.open(self._open_function)
        self._loop = loop

    @property
    def coroutines(self) -> CoroutineLoop | None:
        """What runs the coroutines, while it does; for any thread that looks."""
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
        """Start a coroutine for each, waiting for others where `capacity` are on their way."""
        assert self._loop is not None, "open comes first"
        begin, end = 0, len(values)
        while begin < end:
            free = self._capacity - self._inside
            if not free:
                self._take_results(wait=True)
                continue
            part = slice(begin, begin + free)
            if times is None:
                calls = [Call(value, None) for value in values[part]]
            else:
                calls = [Call(value, time) for value, time in zip(values[part], times[part], strict=True)]
            self._book.add(calls)
            self._inside += len(calls)
            self._loop.submit(calls)
            begin += len(calls)
        self._take_results()

    def watermark(self, timestamp_ms: int) -> None:
        """Hand it on when all values before it have left."""
        self._book.add_mark(_Mark(timestamp_ms, None))
        self._take_results()

    def status(self, *, active: bool) -> None:
        """Hand it on when all values before it have left."""
        self._book.add_mark(_Mark(None, active))
        self._take_results()

    def on_wake(self) -> None:
        """Give out what is done."""
        self._take_results()

    def flush(self) -> None:
        """Give out what is done."""
        self._take_results()

    def finish(self) -> None:
        """Wait for all that is on its way."""
        while self._inside:
            self._take_results(wait=True)
        self._take_results()

    def cancel(self) -> None:
        """Let a task that waits for results give up with Cancelled; from any thread."""
        self._cancelled = True
        self._results.put(None)

    def close(self) -> None:
        """Cancel what is on its way, close the function, and end the event loop's thread."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._told = True  # nobody is left to be woken
        with self.user_code():
            ended = loop.close(self._close_function, timeout_s=_CLOSE_WITHIN_S)
        if not ended:
            self.place.logger.warning(
                "%s, subtask %d: coroutines blocked or would not be cancelled; their thread is left behind",
                self.place.operator,
                self.place.subtask,
            )

    def _deliver(self, call: Call) -> None:
        """On the loop's thread: a call is done."""
        # The task clears `_told` before it looks: so it sees this call, or is woken for it.
        self._results.put(call)
        if not self._told:
            self._told = True
            self.place.wake()

    def _take_results(self, *, wait: bool = False) -> None:
        """Take in what is done, after waiting for something if told to, and give out what may leave."""
        results, book = self._results, self._book
        found: list[Call | None] = []
        if wait:
            self._told = True  # it need not be woken: it waits here
            found.append(results.get())
        self._told = False
        try:
            while True:
                found.append(results.get_nowait())
        except queue.Empty:
            pass
        if self._cancelled:
            raise Cancelled("the job was cancelled")
        for call in found:
            assert call is not None, "None comes with a cancellation"
            if call.error is not None:
                with self.user_code():
                    raise call.error
            book.set_done(call)
        self._give_out()

    def _give_out(self) -> None:
        values: Values = []
        times: list[int | None] = []
        for ready in self._book.take():
            if isinstance(ready, _Mark):
                self._emit(values, times)
                values, times = [], []
                ready.emit(self.out)
            else:
                self._inside -= 1
                values.append(ready.result)
                times.append(ready.time)
        self._emit(values, times)

    def _emit(self, values: Values, times: list[int | None]) -> None:
        """Emit a batch; in runs, should some of its values have times and others none."""
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
