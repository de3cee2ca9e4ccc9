"""A harness that runs one operator without a job: a test passes values in, and advances the time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headgate.functions.times import MAX_WATERMARK_MS
from headgate.task.place import OperatorPlace

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from headgate.record.element import Event
    from headgate.task.batch.spill import SpillSpace
    from headgate.task.operator import Operator, Times, Values

__all__ = ["OperatorHarness"]


class OperatorHarness:
    """Runs one operator without a job, and collects what it emits.

    >>> from headgate.task.operators.basic import Map
    >>> with OperatorHarness(Map(str.upper)) as harness:
    ...     harness.process(["to", "be"])
    ...     harness.watermark(7)
    >>> harness.values, harness.watermarks
    (['TO', 'BE'], [7])

    With `batch` it runs as in BATCH mode, where it may `spill`:

    >>> from headgate.task.operators.keyed import KeyedCount
    >>> with OperatorHarness(KeyedCount(str.lower), batch=True) as harness:
    ...     harness.process(["To", "be", "to"])
    ...     harness.end()
    >>> harness.values
    [('to', 2), ('be', 1)]
    """

    def __init__(
        self,
        operator: Operator,
        *,
        subtask: int = 0,
        parallelism: int = 1,
        now_ms: int = 0,
        batch: bool = False,
        spill: SpillSpace | None = None,
    ) -> None:
        if batch:
            operator = operator.in_batch()
        self.operator = operator
        self.now_ms = now_ms
        self.wakes = 0
        self.counters: dict[str, int] = {}
        self.batches: list[tuple[Values, Times]] = []
        self.watermarks: list[int] = []
        self.statuses: list[bool] = []
        self.sides: dict[str, list[Any]] = {}
        self.events: list[tuple[int, Event]] = []
        """The emitted events, each with the number of values emitted before it."""
        operator.out = self
        operator.place = OperatorPlace(
            operator=type(operator).__name__,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=128,
            wall_ms=lambda: self.now_ms,
            logger=logging.getLogger("headgate.user"),
            wake=self._wake,
            counters=self.counters,
            spill=spill,
        )

    @property
    def values(self) -> list[Any]:
        """All emitted values."""
        return [value for values, _ in self.batches for value in values]

    @property
    def timed(self) -> list[tuple[Any, int | None]]:
        """All emitted values, with event times."""
        return [
            (value, None if times is None else times[index])
            for values, times in self.batches
            for index, value in enumerate(values)
        ]

    # Called by the operator.

    def emit(self, values: Values, times: Times = None) -> None:
        """See `Output`."""
        assert times is None or len(times) == len(values), "one timestamp for each value"
        if values:
            self.batches.append((values, times))

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """See `Output`."""
        assert times is None or len(times) == len(values), "one timestamp for each value"
        self.sides.setdefault(tag, []).extend(values)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """See `Output`."""
        self.watermarks.append(timestamp_ms)

    def emit_status(self, *, active: bool) -> None:
        """See `Output`."""
        self.statuses.append(active)

    def emit_event(self, event: Event) -> None:
        """See `Output`."""
        self.events.append((len(self.values), event))

    def _wake(self) -> None:
        self.wakes += 1

    # Called by the test.

    def process(self, values: Values, times: Times = None) -> None:
        """Pass a batch to the operator."""
        self.operator.process(list(values), None if times is None else list(times))

    def process_second(self, values: Values, times: Times = None) -> None:
        """Pass a batch to the second input of the operator."""
        self.operator.process_second(list(values), None if times is None else list(times))

    def watermark(self, timestamp_ms: int) -> None:
        """Advance the watermark."""
        self.operator.watermark(timestamp_ms)

    def event(self, event: Event) -> None:
        """Pass an event to the operator."""
        self.operator.event(event)

    def advance(self, milliseconds: int) -> None:
        """Advance the processing time, and run all timers that are due on the way."""
        until_ms = self.now_ms + milliseconds
        while (at_ms := self.operator.next_timer_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.operator.on_timers(self.now_ms)
        self.now_ms = until_ms

    def end(self) -> None:
        """End all inputs: advance the watermark to its maximum, and finish the operator."""
        self.operator.watermark(MAX_WATERMARK_MS)
        self.operator.finish()

    def __enter__(self) -> Self:
        self.operator.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.operator.close()
