"""What operators around process functions share: the contexts of their functions, and gathering what they yield.

Used by `task.keyed` and `task.process`, on the task's thread. A function's results may come from a generator, which
looks at its context while it runs: each is taken to its end before the next value is at hand.

Invariants: nothing is emitted while user code runs; each result that can be changed is copied when it is yielded, for
the function may go on to change it before the batch is done (unless `execution.object_reuse` is on); timers fire in the
order of their times, all that are due before the watermark goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headgate.task.basic import FunctionOperator
from headgate.task.copying import ATOMIC, copied
from headgate.task.functions import Function, KeyedProcessFunction, OutputTag, ProcessFunction
from headgate.task.key_by_key import MARK, SECOND, UNTIMED, Marks, stretches
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.state import KeyedState
from headgate.task.timers import MIN_WATERMARK_MS, NoTimers, TimerQueue, Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from headgate.task.functions import TimerService
    from headgate.task.key_by_key import Entries
    from headgate.task.operator import Output, Times, Values

__all__ = ["ElementContext", "KeyedContext", "KeyedProcessOperator", "ProcessOperator", "Results", "TimerContext"]

_EMIT_AT = 1024  # results of timers: the last watermark may fire any number of them


class ElementContext(ProcessFunction.Context):
    """The context of a value in a stream without keys.

    >>> context = ElementContext(NoTimers(lambda: 7, "use key_by")); context.time = 5
    >>> context.timestamp(), context.timer_service().current_processing_time()
    (5, 7)
    """

    def __init__(self, timers: TimerService) -> None:
        self.time: int | None = None
        self._timers = timers

    def timestamp(self) -> int | None:
        """See `ProcessFunction.Context`."""
        return self.time

    def timer_service(self) -> TimerService:
        """See `ProcessFunction.Context`."""
        return self._timers


class KeyedContext(ElementContext, KeyedProcessFunction.Context):
    """The context of a value in a stream with keys.

    >>> state = KeyedState(); context = KeyedContext(Timers(state, lambda: 7), state); state.key = "to"
    >>> context.get_current_key()
    'to'
    """

    def __init__(self, timers: TimerService, state: KeyedState) -> None:
        super().__init__(timers)
        self._state = state

    def get_current_key(self) -> Any:
        """See `KeyedProcessFunction.Context`."""
        return self._state.key


class TimerContext(KeyedContext, KeyedProcessFunction.OnTimerContext):
    """The context of a timer.

    >>> state = KeyedState(); context = TimerContext(Timers(state, lambda: 7), state); context.domain = "processing"
    >>> context.time_domain()
    'processing'
    """

    domain = "event"

    def time_domain(self) -> str:
        """See `KeyedProcessFunction.OnTimerContext`."""
        return self.domain


class Results:
    """What functions yield for a batch: main and side outputs, with times.

    >>> results = Results(timed=True, copies=True)
    >>> results.add(["or", (OutputTag("late"), "not")], 5)
    >>> results.values, results.times, results.sides
    (['or'], [5], {'late': (['not'], [5])})
    """

    __slots__ = ("_copies", "_timed", "sides", "times", "values")

    def __init__(self, *, timed: bool, copies: bool) -> None:
        self._timed = timed
        self._copies = copies
        self.values: Values = []
        self.times: list[int] = []
        self.sides: dict[str, tuple[Values, list[int]]] = {}

    def add(self, items: Iterable[Any], time: int | None) -> None:
        """Take all that a function has yielded for a value of a time."""
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
                    append(item)  # `copied` says the same, but most results are pairs
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
        """Hand on all of it, the side outputs first; nothing is left."""
        sides, values, times = self.sides, self.values, self.times
        self.sides, self.values, self.times = {}, [], []
        for tag, (side, side_times) in sides.items():
            out.emit_to(tag, side, side_times if self._timed else None)
        if values:
            out.emit(values, times if self._timed else None)


class ProcessOperator(FunctionOperator):
    """An operator whose function sees values with a context, without keys.

    >>> ProcessOperator.__mro__[1] is FunctionOperator
    True
    """

    context: ElementContext

    def open(self) -> None:
        """Make the context, and open the function."""
        self._timers: Timers | NoTimers = self.make_timers()
        self.context = ElementContext(self._timers)
        super().open()

    def make_timers(self) -> Timers | NoTimers:
        """The timer service that the function gets."""
        return NoTimers(self.place.wall_ms, "timers belong to keys: use key_by before the operator that wants them")

    def run(self, call: Callable[[Any, Any], Any], values: Values, times: Times) -> None:
        """Call a function for each value of a batch, and emit what it yields."""
        results = Results(timed=times is not None, copies=not self.place.object_reuse)
        context, add = self.context, results.add
        with self.user_code():
            for value, time in zip(values, repeat(None) if times is None else times):  # noqa: B905 - repeat has no end
                context.time = time
                found = call(value, context)
                if found is not None:
                    add(found, time)
        results.emit(self.out)

    def watermark(self, timestamp_ms: int) -> None:
        """Note it for the function, and hand it on."""
        self._timers.watermark_ms = timestamp_ms
        self.out.emit_watermark(timestamp_ms)


class KeyedProcessOperator(ProcessOperator):
    """An operator whose function sees values with a context, and has state and timers of their keys.

    >>> issubclass(KeyedProcessOperator, ProcessOperator)
    True
    """

    marks = Marks.ALL  # timers fire between two values
    several = False
    calls: tuple[Callable[[Any, Any], Any], ...]  # of each input

    def open(self) -> None:
        """Make state, timers and contexts, and open the function."""
        self._state = KeyedState()
        self._on_timer: Callable[[int, Any], Any] | None = None
        if isinstance(self.function, Function):
            self._on_timer = getattr(self.function, "on_timer", None)
        super().open()
        self.context = KeyedContext(self._timers, self._state)
        self._timer_context = TimerContext(self._timers, self._state)

    def keyed_state(self) -> KeyedState:
        """The state that the function may ask for."""
        return self._state

    def make_timers(self) -> Timers | NoTimers:
        """The timer service that the function gets."""
        if self._on_timer is None:
            return NoTimers(
                self.place.wall_ms, "this function has no on_timer: derive a class from KeyedProcessFunction"
            )
        return Timers(self._state, self.place.wall_ms)

    def run_keyed(
        self, call: Callable[[Any, Any], Any], key: Callable[[Any], Hashable], values: Values, times: Times
    ) -> None:
        """Call a function for each value of a batch with its key at hand, and emit what it yields."""
        results = Results(timed=times is not None, copies=not self.place.object_reuse)
        context, state, add = self.context, self._state, results.add
        with self.user_code():
            for value, time in zip(values, repeat(None) if times is None else times):  # noqa: B905 - repeat has no end
                state.key = key(value)
                context.time = time
                found = call(value, context)
                if found is not None:
                    add(found, time)
        results.emit(self.out)

    def watermark(self, timestamp_ms: int) -> None:
        """Fire what is due, and hand it on."""
        timers = self._timers
        timers.watermark_ms = timestamp_ms
        if isinstance(timers, Timers) and timers.event:
            self._fire(timers.event, timestamp_ms, "event")
        self.out.emit_watermark(timestamp_ms)

    def next_timer_ms(self) -> int | None:
        """When the first timer of processing time is due."""
        timers = self._timers
        return timers.processing.next_ms() if isinstance(timers, Timers) else None

    def on_timers(self, now_ms: int) -> None:
        """Fire what is due; the results have no event time."""
        timers = self._timers
        if isinstance(timers, Timers):
            self._fire(timers.processing, now_ms, "processing")

    def finish(self) -> None:
        """Forget the timers of processing time that are left."""
        if isinstance(self._timers, Timers):
            self._timers.processing.clear()

    def _fire(self, queue: TimerQueue, until_ms: int, domain: str) -> None:
        results = Results(timed=domain == "event", copies=not self.place.object_reuse)
        context, state, on_timer = self._timer_context, self._state, self._on_timer
        assert on_timer is not None, "only a function with on_timer can register timers"
        context.domain = domain
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
        results.emit(self.out)

    # One key after the other: see `KeyByKey`.

    def begin_key(self, key: Any) -> None:
        """See `KeyByKey`."""
        self._state.key = key
        self._timers.watermark_ms = MIN_WATERMARK_MS
        self._passed = 0  # watermarks

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """Call the function for each value; before it, fire the timers that were due when it came."""
        for untimed, alike in stretches(entries, UNTIMED):
            results = Results(timed=not untimed, copies=not self.place.object_reuse)
            done = 0
            while (done := self._call_until_due(alike, done, watermarks, results)) < len(alike.values):
                results.emit(self.out)
                self._rise(watermarks, alike.tags[done] >> MARK)
            results.emit(self.out)

    def _call_until_due(self, entries: Entries, begin: int, watermarks: Sequence[int], results: Results) -> int:
        """Call the function for values until a timer is due; returns for how many that were."""
        context, calls, timers, add = self.context, self.calls, self._timers, results.add
        event = timers.event if isinstance(timers, Timers) else None
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

    def _rise(self, watermarks: Sequence[int], count: int) -> None:
        """Let so many watermarks have come; each timer fires with the first that is not before it."""
        timers = self._timers
        if isinstance(timers, Timers):
            while (due := timers.event.next_ms()) is not None:
                index = max(bisect_left(watermarks, due), self._passed)
                if index >= count:
                    break
                self._passed, timers.watermark_ms = index + 1, watermarks[index]
                self._fire(timers.event, watermarks[index], "event")
        if count > self._passed:
            self._passed, timers.watermark_ms = count, watermarks[count - 1]

    def end_key(self, watermarks: Sequence[int]) -> None:
        """Fire all timers of event time, those of processing time that are due by now, and forget the key."""
        timers = self._timers
        self._rise(watermarks, len(watermarks))
        if isinstance(timers, Timers):
            if timers.processing:
                self._fire(timers.processing, self.place.wall_ms(), "processing")
            timers.watermark_ms = MAX_WATERMARK_MS
            if timers.event:
                self._fire(timers.event, MAX_WATERMARK_MS, "event")
            timers.processing.clear()
            timers.event.clear()
        self._state.forget()
