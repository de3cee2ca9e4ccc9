"""WindowJoin: pairs of values of two streams with the same key and window.

Like Flink's `join(...).where(...).equal_to(...).window(...)`: an inner join, whose results have the event time of the
window's last millisecond. A window is removed as soon as it has fired; late records are dropped and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.functions.basic import method_of
from headgate.record.copying import owned
from headgate.task.windows.contents import WindowContents
from headgate.task.windows.operator import WindowedOperator
from headgate.task.windows.results import WindowResults, copier

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.functions.windows import Window, WindowAssigner
    from headgate.task.operator import Operator, Times, Values

__all__ = ["WindowJoin"]

_Both = tuple[list[Any], list[Any]]


class WindowJoin(WindowedOperator):
    """Calls a function with every pair of the same key and window: `f(a, b)`, or a `Function` with a method `join`.

    >>> from headgate.functions.windows import TumblingEventTimeWindows
    >>> from headgate.testing.harness import OperatorHarness
    >>> first = (lambda pair: pair[0])
    >>> join = WindowJoin(first, first, TumblingEventTimeWindows.of(10), lambda a, b: (*a, b[1]))
    >>> with OperatorHarness(join) as harness:
    ...     harness.process([("ann", "bid"), ("bob", "bid")], [1, 2])
    ...     harness.process_second([("ann", "sale"), ("bob", "sale")], [9, 11])
    ...     harness.end()
    >>> harness.timed
    [(('ann', 'bid', 'sale'), 9)]
    """

    def __init__(
        self,
        key1: Callable[[Any], Any],
        key2: Callable[[Any], Any],
        assigner: WindowAssigner,
        function: Any,
    ) -> None:
        super().__init__(assigner)
        self._keys = key1, key2
        self._functions = [function]

    def in_batch(self) -> Operator:
        """Return the operator that processes one key after the other."""
        from headgate.task.batch.keyed import Grouped  # noqa: PLC0415 - only BATCH needs it

        return Grouped(self, *self._keys)

    def prepare(self) -> tuple[WindowContents, WindowResults]:
        """See `WindowedOperator`."""
        self._both = _BothSides()
        return self._both, _Pairs(copier(self.place), method_of(self._functions[0], "join"))

    def process(self, values: Values, times: Times) -> None:
        """Add a batch of the first stream."""
        self._both.key_of, self._both.side = self._keys[0], 0
        super().process(values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """Add a batch of the second stream."""
        self._both.key_of, self._both.side = self._keys[1], 1
        super().process(values, times)


class _BothSides(WindowContents):
    """The values of both streams; `side` is the stream of the values that are added."""

    key_of: Callable[[Any], Any]
    side: int

    def first(self, value: Any) -> _Both:
        return self.more(([], []), value)

    def more(self, kept: _Both, value: Any) -> _Both:
        kept[self.side].append(value)
        return kept

    def merge(self, kept: _Both, other: _Both) -> _Both:
        kept[0].extend(other[0])
        kept[1].extend(other[1])
        return kept

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        get, side = window.get, self.side
        for key, value in zip(map(self.key_of, values), values, strict=False):
            kept = get(key)
            if kept is None:
                kept = window[key] = ([], [])
            kept[side].append(value)


class _Pairs(WindowResults):
    """The function's results for every pair of a key's values."""

    def __init__(self, own: Callable[[Any], Any] | None, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(own)
        self._function = function

    def fire(self, key: Any, window: Window, kept: _Both, time_ms: int | None, *, shared: bool) -> None:  # noqa: ARG002
        function = self._function
        pairs = (function(a, b) for a in kept[0] for b in kept[1])
        results = list(pairs) if self.own is None else owned(pairs)
        self.values += results
        self.times.extend([time_ms] * len(results))
