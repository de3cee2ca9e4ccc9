"""map, flat_map and filter after `key_by`, of one stream and of two: functions with state of each key.

The stream API uses these operators for a `Function`, because only `open` can request state. Called on the task's
thread.

After `open` it is known if the function has state. If it has, every call first sets the key that the state objects
refer to, by a call of the key function. If it has not, the operator works like the one without keys: no call and no
test is added per record. In BATCH the same decision selects between one key after the other, which keeps the state of
one key in memory, and the input's order (`batch.keyed.GroupedIfStateful`).

Invariant: the results of one call are exhausted before the next call (`operators.calls`), so a generator uses the key
of its own value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.functions.state import KeyedState
from headgate.task.batch.key_by_key import SECOND, Marks, stretches
from headgate.task.operators.basic import Filter, FlatMap, FunctionOperator, Map
from headgate.task.operators.process import CoFlatMap, CoMap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headgate.task.batch.key_by_key import Entries
    from headgate.task.operator import Operator

__all__ = ["KeyedCoFlatMap", "KeyedCoMap", "KeyedFilter", "KeyedFlatMap", "KeyedFunction", "KeyedMap"]


class KeyedFunction(FunctionOperator):
    """The base of this module's operators: the state, and the methods of `KeyByKey`."""

    marks = Marks.NONE
    several = False
    stateful = False
    """True if the function has requested state; set by `open`."""

    def __init__(self, function: Any, *keys: Callable[[Any], Hashable]) -> None:
        super().__init__(function)
        self._keys = keys
        self._state = KeyedState()

    def keyed_state(self) -> KeyedState:
        """Return the state that the function may use."""
        return self._state

    def open(self) -> None:
        """Open the function, and make its calls set the key if it has requested state."""
        super().open()
        self.stateful = self._state.settle()
        if self.stateful:
            self.set_keys()

    def set_keys(self) -> None:
        """Replace the calls of the function by calls that set the key first."""
        raise NotImplementedError

    def in_batch(self) -> Operator:
        """Return the operator that processes one key after the other if the function has state."""
        from headgate.task.batch.keyed import GroupedIfStateful  # noqa: PLC0415 - only BATCH needs it

        return GroupedIfStateful(self, *self._keys)

    # The methods of `KeyByKey`.

    def begin_key(self, key: Any) -> None:
        """See `KeyByKey`; each call sets the key."""

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:  # noqa: ARG002 - there are no timers
        """See `KeyByKey`."""
        for tag, alike in stretches(entries, -1):
            process = self.process_second if tag & SECOND else self.process
            process(alike.values, alike.given_times())

    def end_key(self, watermarks: Sequence[int]) -> None:  # noqa: ARG002 - there are no timers
        """See `KeyByKey`."""
        self._state.clear()


class _OneInput(KeyedFunction):
    """A function of one input."""

    _call: Callable[[Any], Any]

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function, key)

    def set_keys(self) -> None:
        """See `KeyedFunction`."""
        self._call = self._state.keyed(self._call, self._keys[0])


class KeyedMap(_OneInput, Map):
    """Like `Map`, with state.

    >>> from headgate.functions.basic import MapFunction
    >>> from headgate.testing.harness import OperatorHarness
    >>> class Number(MapFunction):
    ...     def open(self, context):
    ...         self.seen = context.get_state("seen", 0)
    ...     def map(self, word):
    ...         self.seen.update(self.seen.value() + 1)
    ...         return word, self.seen.value()
    >>> with OperatorHarness(KeyedMap(str.lower, Number())) as harness:
    ...     harness.process(["To", "be", "to"])
    >>> harness.values
    [('To', 1), ('be', 1), ('to', 2)]
    """


class KeyedFlatMap(_OneInput, FlatMap):
    """Like `FlatMap`, with state."""


class KeyedFilter(_OneInput, Filter):
    """Like `Filter`, with state."""


class _TwoInputs(KeyedFunction):
    """A function for each of two inputs, which share the state of a key."""

    _first: tuple[Callable[[Any], Any], Any]
    _second: tuple[Callable[[Any], Any], Any]

    def __init__(self, key1: Callable[[Any], Hashable], key2: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function, key1, key2)

    def set_keys(self) -> None:
        """See `KeyedFunction`."""
        (first, *rest1), (second, *rest2) = self._first, self._second
        self._first = self._state.keyed(first, self._keys[0]), *rest1
        self._second = self._state.keyed(second, self._keys[1]), *rest2


class KeyedCoMap(_TwoInputs, CoMap):
    """Like `CoMap`, with a key of each input, and state that both share."""


class KeyedCoFlatMap(_TwoInputs, CoFlatMap):
    """Like `CoFlatMap`, with a key of each input, and state that both share."""
