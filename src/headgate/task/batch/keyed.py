"""Keyed operators in BATCH mode: one key after the other, each with all of its values. Called on the task's thread.

`Grouped` wraps an operator with keys. It collects all input by key (`batch.grouping`), and then passes one key at a
time to the operator: its values in the order of arrival, with the watermarks between them, so that timers fire and
records are late as in STREAMING. At the end of the key its timers and windows fire, and its state is cleared. So memory
holds the state, timers and windows of one key at a time.

Invariants: an operator emits the same results for each key as in STREAMING, for the same input in the same order.
Downstream there is only the last watermark, after all values, so no value is late there. Processing-time timers fire
at the end of their key if they are due by then, and never otherwise.
"""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import Cancelled, SerializationError, UnstableKey, UserCodeError
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.task.batch.grouping import Grouping
from headgate.task.batch.key_by_key import MARK, SECOND, UNTIMED, Entries, Marks
from headgate.task.batch.sizes import memory_of
from headgate.task.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from headgate.record.element import Event
    from headgate.task.batch.key_by_key import KeyByKey
    from headgate.task.operator import Output, Times, Values
    from headgate.task.operators.stateful import KeyedFunction

__all__ = ["BatchingOutput", "Grouped", "GroupedIfStateful", "HeldEvents", "grouping_of", "naming_operator"]

_BATCH_VALUES: Final = 1024  # enough to make the cost per batch small
_BATCH_BYTES: Final = 256 * 1024
_MAX_EVENTS: Final = 10_000  # held until the end of an input; each has at most 4 KiB


class BatchingOutput:
    """An `Output` that joins small batches to larger ones, and drops watermarks and statuses.

    >>> from headgate.task.operators.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> harness = OperatorHarness(PassOn())
    >>> out = BatchingOutput(harness)
    >>> for time, word in enumerate(["to", "be", "or"]):
    ...     out.emit([word], [time]); out.emit_watermark(time)
    >>> out.flush(); harness.batches, harness.watermarks
    ([(['to'], [0]), (['be', 'or'], [1, 2])], [])
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._kept: dict[str | None, tuple[Values, Times]] = {}  # by side output; None: the main one
        self._limit = 1  # values per batch; computed from the size of the first ones

    def emit(self, values: Values, times: Times = None) -> None:
        """See `Output`."""
        self._add(None, values, times)

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """See `Output`."""
        self._add(tag, values, times)

    def _add(self, tag: str | None, values: Values, times: Times) -> None:
        if not values:
            return
        kept, kept_times = self._kept.get(tag, (None, None))
        if kept is not None and (times is None) == (kept_times is None):
            kept += values
            if kept_times is not None and times is not None:
                kept_times += times
        else:  # the first batch, or one that differs in having times
            self._flush_output(tag)
            self._kept[tag] = kept, _ = values, times
        if len(kept) >= self._limit:
            each = memory_of(kept) // len(kept) + 1
            self._flush_output(tag)
            self._limit = max(1, min(_BATCH_VALUES, _BATCH_BYTES // each))

    def _flush_output(self, tag: str | None) -> None:
        if tag not in self._kept:
            return
        values, times = self._kept.pop(tag)
        if tag is None:
            self._out.emit(values, times)
        else:
            self._out.emit_to(tag, values, times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Drop the watermark."""

    def emit_status(self, *, active: bool) -> None:
        """Drop the status."""

    def emit_event(self, event: Event) -> None:
        """Emit all values before the event, then the event."""
        self.flush()
        self._out.emit_event(event)

    def flush(self) -> None:
        """Emit all values."""
        for tag in list(self._kept):
            self._flush_output(tag)


class HeldEvents:
    """Events held by an operator that emits all results at the end of its input.

    >>> from headgate.record.element import UserEvent
    >>> from headgate.task.operators.basic import PassOn
    >>> held = HeldEvents(PassOn())
    >>> held.add(UserEvent("reload")); held.release(print); held.release(print)
    UserEvent(name='reload', payload=b'')
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        """Hold an event.

        Raises:
            UserCodeError: 10,000 events are held already.
        """
        if len(self._events) >= _MAX_EVENTS:
            place = self._operator.place
            raise UserCodeError(
                f"more than {_MAX_EVENTS} events wait for the end of this operator's input, which is when it emits in"
                " BATCH: send fewer events, or choose STREAMING (execution.runtime_mode)",
                operator=place.operator,
                subtask=place.subtask,
            )
        self._events.append(event)

    def release(self, emit: Callable[[Event], object]) -> None:
        """Call `emit` with each event in order, and drop the events."""
        events, self._events = self._events, []
        for event in events:
            emit(event)


class Grouped(Operator):
    """Passes one key after the other to an operator; `keys` are the key functions of its inputs.

    >>> from headgate.task.operators.keyed import KeyedProcess
    >>> from headgate.testing.harness import OperatorHarness
    >>> count = KeyedProcess(str.lower, lambda word, ctx: [(ctx.get_current_key(), word)])
    >>> with OperatorHarness(count, batch=True) as harness:
    ...     harness.process(["To", "be", "to"])
    ...     harness.end()
    >>> harness.values
    [('to', 'To'), ('to', 'to'), ('be', 'be')]
    """

    def __init__(self, operator: KeyByKey, *keys: Callable[[Any], Hashable]) -> None:
        self._operator = operator
        self._keys = keys
        self._watermarks = array("q")
        self._events = HeldEvents(self)
        self._played = False
        self._cancelled = False

    def open(self) -> None:
        """Open the operator and create an empty grouping."""
        self._batching = BatchingOutput(self.out)
        self._operator.out, self._operator.place = self._batching, self.place
        self._grouping = grouping_of(self, check=self._raise_if_cancelled)
        self._operator.open()

    def process(self, values: Values, times: Times) -> None:
        """Add a batch of the first input to the grouping."""
        self._add(values, times, 0)

    def process_second(self, values: Values, times: Times) -> None:
        """Add a batch of the second input to the grouping."""
        self._add(values, times, SECOND)

    def _add(self, values: Values, times: Times, side: int) -> None:
        with self.user_code():
            keys = self.call_each(self._keys[side], values)
        tag = side | UNTIMED if times is None else side
        tags = self._marked(tag, times) if self._watermarks and values else tag
        with naming_operator(self):
            self._grouping.add(keys, values, times, tags)

    def _marked(self, tag: int, times: Times) -> int | list[int]:
        """Return the tags of values, with the number of watermarks where the operator needs it."""
        marked = len(self._watermarks) << MARK | tag
        if self._operator.marks is Marks.ALL:
            return marked
        # For a value after `late_until`, all its windows are open, also a session that it only touches.
        late_until = self._watermarks[-1] + 1
        if times is None or min(times) > late_until:
            return tag
        return [marked if time <= late_until else tag for time in times]

    def watermark(self, timestamp_ms: int) -> None:
        """Store the watermark; with the last one, process all keys and forward it."""
        if timestamp_ms < MAX_WATERMARK_MS:
            if self._operator.marks is not Marks.NONE:
                self._watermarks.append(timestamp_ms)
            return
        self._play()
        self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """Ignore the status: nothing is emitted before the end."""

    def event(self, event: Event) -> None:
        """Hold an event until all results are emitted, at the end: it must not overtake those of earlier values."""
        self._events.add(event)

    def finish(self) -> None:
        """Process all keys, if no last watermark arrived."""
        self._play()

    def _play(self) -> None:
        if self._played:
            return
        self._played = True
        operator, watermarks = self._operator, self._watermarks
        with naming_operator(self):
            for key, several in self._joined_groups() if operator.several else self._grouping.groups():
                self._raise_if_cancelled()
                operator.begin_key(key)
                for entries in several:
                    self._raise_if_cancelled()
                    operator.play(entries, watermarks)
                operator.end_key(watermarks)
            self._batching.flush()
            self._events.release(operator.event)

    def _joined_groups(self) -> Iterator[tuple[Any, Iterable[Entries]]]:
        """Yield the groups; small groups without marked values are joined."""
        some = Entries([], [], [])
        for key, several in self._grouping.groups():
            parts = iter(several)
            own: Entries | None = next(parts)
            while own is not None and len(own.values) < _BATCH_VALUES and not max(own.tags) >> MARK:
                more = next(parts, None)
                if more is None:
                    for kept, new in zip(some, own, strict=True):
                        kept.extend(new)
                    own = None
                else:
                    own = Entries(own.values + more.values, own.times + more.times, own.tags + more.tags)
            if own is not None:
                yield key, chain([own], parts)
            elif len(some.values) >= _BATCH_VALUES:
                yield key, [some]
                some = Entries([], [], [])
        if some.values:
            yield None, [some]

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def cancel(self) -> None:
        """See `Operator`."""
        self._cancelled = True
        self._operator.cancel()

    def close(self) -> None:
        """Close the operator and all files."""
        try:
            self._operator.close()
        finally:
            self._grouping.close()


class GroupedIfStateful(Operator):
    """Like `Grouped` if the operator's function has requested state; if not, values are processed on arrival.

    >>> from headgate.functions.basic import MapFunction
    >>> from headgate.task.operators.stateful import KeyedMap
    >>> from headgate.testing.harness import OperatorHarness
    >>> class Upper(MapFunction):
    ...     def map(self, word):
    ...         return word.upper()
    >>> with OperatorHarness(KeyedMap(len, Upper()), batch=True) as harness:
    ...     harness.process(["to", "not", "be"])
    ...     harness.end()
    >>> harness.values
    ['TO', 'NOT', 'BE']
    """

    def __init__(self, operator: KeyedFunction, *keys: Callable[[Any], Hashable]) -> None:
        self._operator = operator
        self._grouped = Grouped(operator, *keys)
        self._chosen: Operator = self._grouped

    def open(self) -> None:
        """Open the operator, then choose: its function requests state in `open` or not at all."""
        self._grouped.out, self._grouped.place = self.out, self.place
        self._grouped.open()
        if not self._operator.stateful:
            self._operator.out = self.out
            self._chosen = self._operator

    def process(self, values: Values, times: Times) -> None:
        """See `Operator`."""
        self._chosen.process(values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """See `Operator`."""
        self._chosen.process_second(values, times)

    def watermark(self, timestamp_ms: int) -> None:
        """See `Operator`."""
        self._chosen.watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """See `Operator`."""
        self._chosen.status(active=active)

    def event(self, event: Event) -> None:
        """See `Operator`."""
        self._chosen.event(event)

    def finish(self) -> None:
        """See `Operator`."""
        self._chosen.finish()

    def cancel(self) -> None:
        """See `Operator`."""
        self._grouped.cancel()

    def close(self) -> None:
        """See `Grouped`."""
        self._grouped.close()


def grouping_of(operator: Operator, share: float = 1.0, *, check: Callable[[], object]) -> Grouping:
    """Return a grouping with this share of the operator's memory, which counts the bytes that it spills."""
    counters, space = operator.place.counters, operator.place.spill

    def spilled(n: int) -> None:
        counters["spilled_bytes"] = counters.get("spilled_bytes", 0) + n

    memory = None if space is None else int(space.memory_bytes * share)
    return Grouping(space, memory, spilled=spilled, check=check)


@contextmanager
def naming_operator(operator: Operator) -> Iterator[None]:
    """Turn errors of values and keys that cannot be written to disk into a UserCodeError of the operator."""
    try:
        yield
    except (SerializationError, UnstableKey) as error:
        raise operator.user_code_error(error) from error
