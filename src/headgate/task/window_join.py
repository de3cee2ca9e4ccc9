"""Two streams joined in windows: every pair of one value of each that has the same key and window.

As Flink's `join(...).where(...).equal_to(...).window(...)`: an inner join, whose results have the event time of the
window's last millisecond. What a window keeps is removed as soon as it has fired; late records are dropped and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.task.basic import method_of
from headgate.task.window_contents import Contents
from headgate.task.window_operator import WindowedOperator
from headgate.task.window_results import Results, copier

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.task.operator import Operator, Times, Values
    from headgate.task.windows import Window, WindowAssigner

__all__ = ["WindowJoin"]

_Both = tuple[list[Any], list[Any]]


class WindowJoin(WindowedOperator):
    """Calls a function with every pair of the same key and window: `f(a, b)`, or a `Function` with a method `join`.

    >>> from headgate.task.windows import TumblingEventTimeWindows
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
        """One key after the other."""
        from headgate.task.batch_keyed import Grouped  # noqa: PLC0415 - STREAMING does without

        return Grouped(self, *self._keys)

    def prepare(self) -> tuple[Contents, Results]:
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


class _BothSides(Contents):
    """The values of each side; `side` is whose turn it is."""

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


class _Pairs(Results):
    """Every pair of a key's values."""

    def __init__(self, own: Callable[[Any], Any] | None, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(own)
        self._function = function

    def fire(self, key: Any, window: Window, kept: _Both, time_ms: int | None, *, shared: bool) -> None:  # noqa: ARG002
        function, own = self._function, self.own
        results = [function(a, b) for a in kept[0] for b in kept[1]]
        if own is not None and (shared or len(results) > 1):  # values that are in several pairs
            results = [own(one) for one in results]
        self.values.extend(results)
        self.times.extend([time_ms] * len(results))
