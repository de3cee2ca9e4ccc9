"""Routing by a selector: every selection of one of a record's names receives the record. Called on the task's thread.

A selection is a side output of this operator; its main output is empty. Invariant: a value that is emitted to several
selections is copied for all but the first, before any of them can change it, also with `execution.object_reuse`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.functions.basic import method_of
from headgate.record.copying import copied
from headgate.task.operators.basic import FunctionOperator

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from headgate.task.operator import Times, Values

__all__ = ["Split"]

_MAX_CACHED_ROUTES: Final = 1000  # a bound, because names may depend on the data


class Split(FunctionOperator):
    """Emits values to side outputs by the names that a selector returns; `selections` are names by side output.

    >>> from headgate.testing.harness import OperatorHarness
    >>> def parity(n):
    ...     return ["even", "all"] if n % 2 == 0 else ["odd", "all"]
    >>> selections = {"first": frozenset({"even"}), "second": frozenset({"odd", "all"})}
    >>> with OperatorHarness(Split(parity, selections)) as harness:
    ...     harness.process([1, 2])
    >>> harness.sides
    {'first': [2], 'second': [1, 2]}
    """

    def __init__(self, selector: Any, selections: Mapping[str, frozenset[str]]) -> None:
        super().__init__(selector)
        self._selections = selections
        self._routes: dict[Hashable, tuple[int, ...]] = {}  # indices of selections, by the selector's result

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._call = method_of(self.function, "select")
        self._tags = list(self._selections)

    def process(self, values: Values, times: Times) -> None:
        """Emit to each selection the values that have one of its names."""
        parts: list[Values] = [[] for _ in self._tags]
        part_times: list[list[int]] = [[] for _ in self._tags]
        call, routes = self._call, self._routes
        with self.user_code():
            for index, value in enumerate(values):
                names = call(value)  # read before the next call, which may return the same list with other names
                which = names if type(names) is str else () if names is None else tuple(names)
                route = routes.get(which)
                if route is None:
                    route = self._route(which)
                for copies, part in enumerate(route):
                    parts[part].append(copied(value) if copies else value)
                    if times is not None:
                        part_times[part].append(times[index])
        for tag, part_values, part_time in zip(self._tags, parts, part_times, strict=True):
            self.out.emit_to(tag, part_values, None if times is None else part_time)

    def _route(self, which: str | tuple[Any, ...]) -> tuple[int, ...]:
        """Return the indices of the selections that have one of these names."""
        names: Iterable[Any] = (which,) if isinstance(which, str) else which
        wrong = [one for one in names if not isinstance(one, str)]
        if wrong:
            raise TypeError(f"the selector returned {wrong[0]!r:.100} as a name: names are strings")
        if len(self._routes) >= _MAX_CACHED_ROUTES:
            self._routes.clear()
        route = tuple(index for index, tag in enumerate(self._tags) if not self._selections[tag].isdisjoint(names))
        self._routes[which] = route
        return route
