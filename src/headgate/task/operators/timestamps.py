"""The operator that assigns event times and emits watermarks by a `WatermarkStrategy`.

Called on the task's thread. Watermarks of upstream strategies are not forwarded, except for the last, which ends a
bounded input.

Invariant: watermarks are computed value by value, so that the boundaries of batches do not decide which value is late.
A generator's watermark is emitted right after its value. A built-in strategy would emit one after nearly every value,
and downstream batches would have one value each. It omits the watermarks that no window depends on: a value above the
watermark belongs to windows that have not fired, with or without that watermark. So it emits one watermark after the
batch, and one before each value that the watermark makes late.
"""

from __future__ import annotations

import inspect
import operator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headgate.errors import UserCodeError
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.functions.watermarks import TimestampAssigner, WatermarkGenerator
from headgate.task.operator import Operator, Times, Values

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.functions.watermarks import WatermarkStrategy

__all__ = ["AssignTimestamps"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_INT = frozenset({int})
_PREFIX = 16
_STEP_MS = 200  # between two watermarks that follow the clock: Flink's interval of periodic watermarks


class AssignTimestamps(Operator):
    """Assigns timestamps to values and emits watermarks.

    >>> from headgate.functions.watermarks import WatermarkStrategy
    >>> from headgate.testing.harness import OperatorHarness
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamp_assigner(len)
    >>> with OperatorHarness(AssignTimestamps(strategy)) as harness:
    ...     harness.process(["x" * 30, "x" * 20])
    >>> [time for _, time in harness.timed], harness.watermarks
    ([30, 20], [19])
    """

    def __init__(self, strategy: WatermarkStrategy[Any]) -> None:
        self._bound_ms = strategy.bound_ms
        self._make_generator = strategy.generator
        self._idleness_ms = strategy.idleness_ms
        self._follow_clock = strategy.follow_clock
        assigner = strategy.assigner
        self._assign: Callable[..., Any] | None
        self._assign = assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner
        self._with_previous = self._assign is not None and _takes_two(self._assign)
        self._needs_no_times = strategy.bound_ms is None and strategy.generator is None and self._assign is None
        self._watermark_ms = MIN_WATERMARK_MS
        self._active = True
        self._seen_ms = 0  # processing time of the last record
        self._seen_watermark_ms = MIN_WATERMARK_MS  # the watermark at that time
        self._step_at_ms: int | None = None  # processing time of an idle stream's next watermark

    def open(self) -> None:
        """Create the generator, and start to measure idleness."""
        if self._make_generator is not None:
            with self.user_code():
                generator = self._make_generator()
                if not isinstance(generator, WatermarkGenerator):
                    raise TypeError(
                        f"for_generator: {self._make_generator!r} made {generator!r} ({type(generator).__name__}),"
                        " not a WatermarkGenerator"
                    )
            self._on_event = generator.on_event
        self._seen_ms = self.place.wall_ms()

    def process(self, values: Values, times: Times) -> None:
        """Emit the values with their times, and the watermarks between them."""
        if not values:
            return
        if times is None and self._needs_no_times:
            self._set_active()
            self.out.emit(values)
            self._restart_idleness()
            return
        assigned = self._assigned_times(values, times)
        lowest, highest = min(assigned), max(assigned)
        if not (lowest >= MIN_WATERMARK_MS and highest <= MAX_WATERMARK_MS):
            raise self._error(f"timestamps from {lowest} to {highest} do not fit in 64 bits of milliseconds")
        if self._make_generator is not None:
            watermarks = self._generated_watermarks(values, assigned)
        elif self._bound_ms is not None and highest - self._bound_ms - 1 > self._watermark_ms:
            watermarks = self._bounded_watermarks(assigned, lowest, highest, self._bound_ms + 1)
        else:
            watermarks = []
        self._set_active()
        begin, end = 0, len(values)
        for count, watermark_ms in watermarks:
            if count - begin < end:
                self.out.emit(values[begin:count], assigned[begin:count])
            else:  # nearly always
                self.out.emit(values, assigned)
            self._watermark_ms = watermark_ms
            self.out.emit_watermark(watermark_ms)
            begin = count
        if begin == 0:
            self.out.emit(values, assigned)
        elif begin < end:
            self.out.emit(values[begin:], assigned[begin:])
        self._restart_idleness()

    def _restart_idleness(self) -> None:
        """Measure idleness from now on, after the values were emitted: time in back pressure is not idleness."""
        if self._idleness_ms is not None:
            self._seen_ms = self.place.wall_ms()

    def _bounded_watermarks(
        self, assigned: list[int], lowest: int, highest: int, behind_ms: int
    ) -> list[tuple[int, int]]:
        """Return the watermarks within a batch that increases it, each with the number of values before it."""
        if lowest > highest - behind_ms or _in_order(assigned):  # nearly always
            return [(len(assigned), highest - behind_ms)]
        watermarks: list[tuple[int, int]] = []
        watermark_ms = emitted_ms = self._watermark_ms
        for before, time in enumerate(assigned):
            if time <= watermark_ms:
                if watermark_ms > emitted_ms:
                    emitted_ms = watermark_ms
                    watermarks.append((before, watermark_ms))
            elif time - behind_ms > watermark_ms:
                watermark_ms = time - behind_ms
        if watermark_ms > emitted_ms:
            watermarks.append((len(assigned), watermark_ms))
        return watermarks

    def _generated_watermarks(self, values: Values, assigned: list[int]) -> list[tuple[int, int]]:
        """Return the generator's watermarks within a batch, each with the number of values before it."""
        with self.user_code():
            results = self.call_each(self._on_event, values, assigned)
        watermarks: list[tuple[int, int]] = []
        last_ms = self._watermark_ms
        for count, one in enumerate(results, 1):
            if one is not None:
                watermark_ms = self._ms(one, "on_event", "watermark")
                if watermark_ms > last_ms:
                    if watermark_ms >= MAX_WATERMARK_MS:
                        raise self._error(f"the watermark {watermark_ms} does not fit in 64 bits of milliseconds")
                    watermarks.append((count, watermark_ms))
                    last_ms = watermark_ms
        return watermarks

    def _assigned_times(self, values: Values, times: Times) -> list[int]:
        if self._assign is None:
            if times is None:
                raise self._error("records have no timestamps yet: use with_timestamp_assigner")
            return times
        with self.user_code():
            if self._with_previous:
                assigned = self.call_each(self._assign, values, [None] * len(values) if times is None else times)
            else:
                assigned = self.call_each(self._assign, values)
        if not _INT.issuperset(map(type, assigned)):
            assigned = [
                time if type(time) is int else self._ms(time, "the timestamp assigner", "timestamp")
                for time in assigned
            ]
        return assigned

    def _ms(self, time: object, function: str, what: str) -> int:
        """Return the result of a user's function in milliseconds."""
        if isinstance(time, datetime):
            aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
            return int((aware - _EPOCH) // _MS)
        if not isinstance(time, bool):
            try:
                return operator.index(time)  # type: ignore[arg-type]
            except TypeError:
                pass
        raise self._error(
            f"{function} returned {time!r} ({type(time).__name__}):"
            f" a {what} is an int of milliseconds since 1970, or a datetime"
        )

    def _error(self, text: str) -> UserCodeError:
        return UserCodeError(text, operator=self.place.operator, subtask=self.place.subtask)

    def watermark(self, timestamp_ms: int) -> None:
        """Forward only the last watermark: this operator computes all others."""
        if timestamp_ms >= MAX_WATERMARK_MS:
            self._set_active()
            self._idleness_ms = None
            self.out.emit_watermark(MAX_WATERMARK_MS)

    def status(self, *, active: bool) -> None:
        """Ignore the status of the upstream: only the presence of records decides here."""

    def _set_active(self) -> None:
        if not self._active:
            self._active = True
            self._step_at_ms = None
            self.out.emit_status(active=True)

    def next_timer_ms(self) -> int | None:
        """Return the time at which an active subtask becomes idle, or an idle one advances its watermark."""
        if self._active:
            return None if self._idleness_ms is None else self._seen_ms + self._idleness_ms
        return self._step_at_ms

    def on_timers(self, now_ms: int) -> None:
        """Become idle after `idleness_ms` without a record; advance an idle stream's watermark with the clock."""
        due = self.next_timer_ms()
        if due is None or now_ms < due:
            return
        if self._active:
            self._active = False
            self._seen_watermark_ms = self._watermark_ms
            self.out.emit_status(active=False)
        if self._follow_clock and self._seen_watermark_ms > MIN_WATERMARK_MS:
            self._step_at_ms = now_ms + _STEP_MS
            # MAX_WATERMARK_MS ends a stream, so the clock never reaches it.
            watermark_ms = min(self._seen_watermark_ms + now_ms - self._seen_ms, MAX_WATERMARK_MS - 1)
            if watermark_ms > self._watermark_ms:
                self._watermark_ms = watermark_ms
                self.out.emit_watermark(watermark_ms)


def _in_order(times: list[int]) -> bool:
    """Return True if no time is below the one before it.

    Sorting a list in order is the fastest check: one loop in C. Sorting any other list is slow, but then the first few
    values are mostly out of order already.

    >>> _in_order([1, 2, 2, 3]), _in_order([1, 3, 2])
    (True, False)
    """
    return times[:_PREFIX] == sorted(times[:_PREFIX]) and times == sorted(times)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return True if a function requires two arguments.

    >>> _takes_two(lambda value: 0), _takes_two(lambda value, previous: 0), _takes_two(lambda value, field=1: 0)
    (False, True, False)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
               for one in parameters) == 2  # fmt: skip
