"""One operator by itself: values in, and what it gives out, with time in the test's hand."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headgate.task.operator import MAX_WATERMARK_MS, Place

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from headgate.task.operator import Operator, Times, Values
    from headgate.task.spill import SpillSpace

__all__ = ["OperatorHarness"]


class OperatorHarness:
    """Runs an operator without a job around it.

    >>> from headgate.task.basic import Map
    >>> with OperatorHarness(Map(str.upper)) as harness:
    ...     harness.process(["to", "be"])
    ...     harness.watermark(7)
    >>> harness.values, harness.watermarks
    (['TO', 'BE'], [7])

    With `batch` it runs as in BATCH mode, where it may `spill`:

    >>> from headgate.task.keyed import KeyedCount
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
        operator.out = self
        operator.place = Place(
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
        """Everything it has given out."""
        return [value for values, _ in self.batches for value in values]

    @property
    def timed(self) -> list[tuple[Any, int | None]]:
        """Everything it has given out, with event times."""
        return [
            (value, None if times is None else times[index])
            for values, times in self.batches
            for index, value in enumerate(values)
        ]

    # What the operator calls.

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

    def _wake(self) -> None:
        self.wakes += 1

    # What a test calls.

    def process(self, values: Values, times: Times = None) -> None:
        """Give it a batch."""
        self.operator.process(list(values), None if times is None else list(times))

    def process_second(self, values: Values, times: Times = None) -> None:
        """Give its second input a batch."""
        self.operator.process_second(list(values), None if times is None else list(times))

    def watermark(self, timestamp_ms: int) -> None:
        """Let the watermark rise."""
        self.operator.watermark(timestamp_ms)

    def advance(self, milliseconds: int) -> None:
        """Let processing time pass, with all timers on the way."""
        until_ms = self.now_ms + milliseconds
        while (at_ms := self.operator.next_timer_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.operator.on_timers(self.now_ms)
        self.now_ms = until_ms

    def end(self) -> None:
        """All input has ended."""
        self.operator.watermark(MAX_WATERMARK_MS)
        self.operator.finish()

    def __enter__(self) -> Self:
        self.operator.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.operator.close()
