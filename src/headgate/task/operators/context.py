"""The base of operators with process functions: the contexts of their functions, and the buffer of their results.

Used by `operators.keyed` and `operators.process`, on the task's thread. A function may be a generator, which reads its
context while it runs: it is exhausted before the next value.

Invariants: nothing is emitted while user code runs. Each mutable result is copied when it is yielded, because the
function may change it before the batch is done (unless `execution.object_reuse` is on). Timers fire in the order of
their times, all that are due before the watermark is emitted.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headgate.functions.basic import Function, OutputTag
from headgate.functions.process import EventFunction, KeyedProcessFunction, ProcessFunction
from headgate.functions.state import KeyedState
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.record.copying import ATOMIC, copied
from headgate.record.element import UserEvent, user_event
from headgate.task.batch.key_by_key import MARK, SECOND, UNTIMED, Marks, stretches
from headgate.task.operators.basic import FunctionOperator
from headgate.task.state.timers import KeyedTimers, NoTimers, TimerQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from headgate.functions.process import TimerService
    from headgate.record.element import Event
    from headgate.task.batch.key_by_key import Entries
    from headgate.task.operator import Output, Times, Values
    from headgate.task.task_events import TaskEvents

__all__ = ["ElementContext", "KeyedContext", "KeyedProcessOperator", "ProcessOperator", "ResultBuffer", "TimerContext"]

_EMIT_AT = 1024  # results of timers, because the last watermark may fire any number of timers


class ElementContext(ProcessFunction.Context):
    """The context of a value in a stream without keys; `results` is set during a call of the function."""

    def __init__(self, timers: TimerService, task_events: TaskEvents) -> None:
        self.time: int | None = None
        self.results: ResultBuffer | None = None
        self._timers = timers
        self._task_events = task_events

    def timestamp(self) -> int | None:
        """See `ProcessFunction.Context`."""
        return self.time

    def timer_service(self) -> TimerService:
        """See `ProcessFunction.Context`."""
        return self._timers

    def emit_event(self, name: str, payload: bytes = b"") -> None:
        """See `ProcessFunction.Context`."""
        if self.results is None:
            raise RuntimeError("emit_event: the call that this context was made for is over")
        self.results.add_event(user_event(name, payload))

    def send_task_event(self, name: str, payload: bytes = b"") -> None:
        """See `ProcessFunction.Context`."""
        self._task_events.send(name, payload)


class KeyedContext(ElementContext, KeyedProcessFunction.Context):
    """The context of a value in a stream with keys."""

    def __init__(self, timers: TimerService, task_events: TaskEvents, state: KeyedState) -> None:
        super().__init__(timers, task_events)
        self._state = state

    def get_current_key(self) -> Any:
        """See `KeyedProcessFunction.Context`."""
        return self._state.key


class TimerContext(KeyedContext, KeyedProcessFunction.OnTimerContext):
    """The context of a timer."""

    domain = "event"

    def time_domain(self) -> str:
        """See `KeyedProcessFunction.OnTimerContext`."""
        return self.domain


class ResultBuffer:
    """The results that functions yield for a batch: main and side outputs, with times.

    >>> results = ResultBuffer(timed=True, copies=True)
    >>> results.add(["or", (OutputTag("late"), "not")], 5)
    >>> results.values, results.times, results.sides
    (['or'], [5], {'late': (['not'], [5])})
    """

    __slots__ = ("_copies", "_events", "_timed", "sides", "times", "values")

    def __init__(self, *, timed: bool, copies: bool) -> None:
        self._timed = timed
        self._copies = copies
        self.values: Values = []
        self.times: list[int] = []
        self.sides: dict[str, tuple[Values, list[int]]] = {}
        self._events: list[tuple[int, dict[str, int], Event]] = []  # with the counts of values before it, by output

    def add_event(self, event: Event) -> None:
        """Add an event after the results added so far."""
        self._events.append((len(self.values), {tag: len(side) for tag, (side, _) in self.sides.items()}, event))

    def add(self, items: Iterable[Any], time: int | None) -> None:
        """Add all results that a function yields for a value of a time."""
        append, atomic, copies = self.values.append, ATOMIC, self._copies
        for item in items:
            kind = type(item)
            if kind in atomic:
                append(item)
            elif kind is tuple and len(item) == 2:
                one, other = item
                if type(one) is OutputTag:
                    self._add_to(one.name, other, time)
                elif not copies or (type(one) in atomic and type(other) in atomic):
                    append(item)  # `copied` would return it too, but most results are pairs: no call for them
                else:
                    append(copied(item))
            else:
                append(copied(item) if copies else item)
        if self._timed:
            self.times.extend(repeat(time, len(self.values) - len(self.times)))  # type: ignore[arg-type]

    def _add_to(self, tag: str, item: Any, time: int | None) -> None:
        values, times = self.sides.setdefault(tag, ([], []))
        values.append(copied(item) if self._copies else item)
        if self._timed:
            times.append(time)  # type: ignore[arg-type]

    def emit(self, out: Output) -> None:
        """Emit all results, the side outputs first, and clear the buffer."""
        sides, values, times = self.sides, self.values, self.times
        if self._events:
            sides, values, times = self._emit_with_events(out)
        self.sides, self.values, self.times = {}, [], []
        for tag, (side, side_times) in sides.items():
            out.emit_to(tag, side, side_times if self._timed else None)
        if values:
            out.emit(values, times if self._timed else None)

    def _emit_with_events(self, out: Output) -> tuple[dict[str, tuple[Values, list[int]]], Values, list[int]]:
        """Emit everything up to the last event; return the results after it."""
        events, self._events = self._events, []
        timed, done, done_at = self._timed, 0, dict.fromkeys(self.sides, 0)
        for count, counts, event in events:
            for tag, (side, side_times) in self.sides.items():
                part = slice(done_at[tag], counts.get(tag, 0))
                if side[part]:
                    out.emit_to(tag, side[part], side_times[part] if timed else None)
                    done_at[tag] = part.stop
            if count > done:
                out.emit(self.values[done:count], self.times[done:count] if timed else None)
                done = count
            out.emit_event(event)
        sides = {tag: (side[done_at[tag] :], times[done_at[tag] :]) for tag, (side, times) in self.sides.items()}
        return sides, self.values[done:], self.times[done:]


class ProcessOperator(FunctionOperator):
    """The base of operators whose function receives values with a context, without keys."""

    context: ElementContext

    def open(self) -> None:
        """Make the context, and open the function."""
        self._timers: KeyedTimers | NoTimers = self.make_timers()
        self.context = ElementContext(self._timers, self.place.task_events)
        self._event_context = ElementContext(self._timers, self.place.task_events)
        function = self.function
        receives = isinstance(function, EventFunction) and type(function).on_event is not EventFunction.on_event
        self._on_event: Callable[[Any, Any], Any] | None = function.on_event if receives else None
        super().open()

    def make_timers(self) -> KeyedTimers | NoTimers:
        """Return the function's timer service."""
        return NoTimers(self.place.wall_ms, "timers belong to keys: use key_by before the operator that wants them")

    def run(self, call: Callable[[Any, Any], Any], values: Values, times: Times) -> None:
        """Call a function for each value of a batch, and emit its results."""
        results = ResultBuffer(timed=times is not None, copies=not self.place.object_reuse)
        context, add = self.context, results.add
        context.results = results
        with self.user_code():
            for value, time in zip(values, repeat(None) if times is None else times):  # noqa: B905 - repeat has no end
                context.time = time
                found = call(value, context)
                if found is not None:
                    add(found, time)
        context.results = None
        results.emit(self.out)

    def event(self, event: Event) -> None:
        """Pass a user's event to the function, emit its results without event times, and forward the event."""
        if self._on_event is not None and isinstance(event, UserEvent):
            results, context = ResultBuffer(timed=False, copies=not self.place.object_reuse), self._event_context
            context.results = results
            with self.user_code():
                found = self._on_event(event, context)
                if found is not None:
                    results.add(found, None)
            context.results = None
            results.emit(self.out)
        self.out.emit_event(event)

    def watermark(self, timestamp_ms: int) -> None:
        """Set the watermark of the function's context, and forward it."""
        self._timers.watermark_ms = timestamp_ms
        self.out.emit_watermark(timestamp_ms)


class KeyedProcessOperator(ProcessOperator):
    """The base of operators whose function receives values with a context, and has state and timers of their keys."""

    marks = Marks.ALL  # timers fire between two values
    several = False
    calls: tuple[Callable[[Any, Any], Any], ...]  # by input

    def open(self) -> None:
        """Make state, timers and contexts, and open the function."""
        self._state = KeyedState()
        self._on_timer: Callable[[int, Any], Any] | None = None
        if isinstance(self.function, Function):
            self._on_timer = getattr(self.function, "on_timer", None)
        super().open()
        self.context = KeyedContext(self._timers, self.place.task_events, self._state)
        self._timer_context = TimerContext(self._timers, self.place.task_events, self._state)

    def keyed_state(self) -> KeyedState:
        """Return the state that the function may use."""
        return self._state

    def make_timers(self) -> KeyedTimers | NoTimers:
        """Return the function's timer service."""
        if self._on_timer is None:
            return NoTimers(
                self.place.wall_ms, "this function has no on_timer: derive a class from KeyedProcessFunction"
            )
        return KeyedTimers(self._state, self.place.wall_ms)

    def run_keyed(
        self, call: Callable[[Any, Any], Any], key: Callable[[Any], Hashable], values: Values, times: Times
    ) -> None:
        """Set the key and call a function for each value of a batch, and emit its results."""
        results = ResultBuffer(timed=times is not None, copies=not self.place.object_reuse)
        context, state, add = self.context, self._state, results.add
        context.results = results
        with self.user_code():
            for value, time in zip(values, repeat(None) if times is None else times):  # noqa: B905 - repeat has no end
                state.key = key(value)
                context.time = time
                found = call(value, context)
                if found is not None:
                    add(found, time)
        context.results = None
        results.emit(self.out)

    def watermark(self, timestamp_ms: int) -> None:
        """Fire the timers that are due, and forward the watermark."""
        timers = self._timers
        timers.watermark_ms = timestamp_ms
        if isinstance(timers, KeyedTimers) and timers.event:
            self._fire(timers.event, timestamp_ms, "event")
        self.out.emit_watermark(timestamp_ms)

    def event(self, event: Event) -> None:
        """See `ProcessOperator`: an event has no key."""
        self._state.leave_key()
        super().event(event)

    def next_timer_ms(self) -> int | None:
        """Return the time of the first processing-time timer."""
        timers = self._timers
        return timers.processing.next_ms() if isinstance(timers, KeyedTimers) else None

    def on_timers(self, now_ms: int) -> None:
        """Fire the timers that are due; their results have no event time."""
        timers = self._timers
        if isinstance(timers, KeyedTimers):
            self._fire(timers.processing, now_ms, "processing")

    def finish(self) -> None:
        """Delete the remaining processing-time timers."""
        if isinstance(self._timers, KeyedTimers):
            self._timers.processing.clear()

    def _fire(self, queue: TimerQueue, until_ms: int, domain: str) -> None:
        results = ResultBuffer(timed=domain == "event", copies=not self.place.object_reuse)
        context, state, on_timer = self._timer_context, self._state, self._on_timer
        assert on_timer is not None, "only a function with on_timer can register timers"
        context.domain, context.results = domain, results
        while (due := queue.pop(until_ms)) is not None:
            context.time, keys = due
            with self.user_code():
                for key in keys:
                    state.key = key
                    found = on_timer(context.time, context)
                    if found is not None:
                        results.add(found, context.time)
            if len(results.values) >= _EMIT_AT:
                results.emit(self.out)
        context.results = None
        results.emit(self.out)

    # The methods of `KeyByKey`.

    def begin_key(self, key: Any) -> None:
        """See `KeyByKey`."""
        self._state.key = key
        self._timers.watermark_ms = MIN_WATERMARK_MS
        self._passed = 0  # the number of watermarks applied

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """Call the function for each value; before it, fire the timers that were due when the value arrived."""
        for untimed, alike in stretches(entries, UNTIMED):
            results = ResultBuffer(timed=not untimed, copies=not self.place.object_reuse)
            done = 0
            while (done := self._call_until_due(alike, done, watermarks, results)) < len(alike.values):
                results.emit(self.out)
                self._advance(watermarks, alike.tags[done] >> MARK)
            self.context.results = None
            results.emit(self.out)

    def _call_until_due(self, entries: Entries, begin: int, watermarks: Sequence[int], results: ResultBuffer) -> int:
        """Call the function for values from `begin` on until a timer is due; return the index of the first one left."""
        context, calls, timers, add = self.context, self.calls, self._timers, results.add
        context.results = results
        event = timers.event if isinstance(timers, KeyedTimers) else None
        values, times, tags = entries
        with self.user_code():
            for index in range(begin, len(values)):
                tag, time = tags[index], times[index]
                if tag >> MARK != self._passed:
                    watermark_ms = watermarks[(tag >> MARK) - 1]
                    if event and (due := event.next_ms()) is not None and due <= watermark_ms:
                        return index
                    self._passed, timers.watermark_ms = tag >> MARK, watermark_ms
                context.time = None if tag & UNTIMED else time
                found = calls[tag & SECOND](values[index], context)
                if found is not None:
                    add(found, time)
        return len(values)

    def _advance(self, watermarks: Sequence[int], count: int) -> None:
        """Apply the first `count` watermarks; each timer fires with the first one that is not before it."""
        timers = self._timers
        if isinstance(timers, KeyedTimers):
            while (due := timers.event.next_ms()) is not None:
                index = max(bisect_left(watermarks, due), self._passed)
                if index >= count:
                    break
                self._passed, timers.watermark_ms = index + 1, watermarks[index]
                self._fire(timers.event, watermarks[index], "event")
        if count > self._passed:
            self._passed, timers.watermark_ms = count, watermarks[count - 1]

    def end_key(self, watermarks: Sequence[int]) -> None:
        """Fire all event-time timers and the processing-time timers that are due, and clear the state of the key."""
        timers = self._timers
        self._advance(watermarks, len(watermarks))
        if isinstance(timers, KeyedTimers):
            if timers.processing:
                self._fire(timers.processing, self.place.wall_ms(), "processing")
            timers.watermark_ms = MAX_WATERMARK_MS
            if timers.event:
                self._fire(timers.event, MAX_WATERMARK_MS, "event")
            timers.processing.clear()
            timers.event.clear()
        self._state.clear()
