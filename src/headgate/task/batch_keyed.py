"""Keyed operators in BATCH mode: one key after the other, each with all of its values. Called on the task's thread.

`Grouped` stands before an operator with keys. It takes all input, by key (`task.grouping`), and then lets the operator
see one key at a time: its values in the order in which they came, with the watermarks that came between them, so that
timers fire and records are late as in STREAMING; when the key is over, everything that waits for it fires, and it is
forgotten. So state, timers and windows of one key are in memory at a time.

Invariants: an operator gives out for each key what it gives out in STREAMING for the same input in the same order;
behind it there is no watermark but the last, after all values, so nothing is late there; timers of processing time fire
at the end of their key if they are due by then, and never otherwise.
"""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import Cancelled, SerializationError, UnstableKey
from headgate.task.grouping import Grouping
from headgate.task.key_by_key import MARK, SECOND, UNTIMED, Entries, Marks
from headgate.task.operator import MAX_WATERMARK_MS, Operator
from headgate.task.sizes import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from headgate.task.key_by_key import KeyByKey
    from headgate.task.operator import Output, Times, Values

__all__ = ["Gathered", "Grouped", "grouping_of", "named_here"]

_MANY: Final = 1024  # values: what is done for so many at once costs little for each
_BATCH_BYTES: Final = 256 * 1024


class Gathered:
    """An `Output` that gathers small batches to larger ones, and lets no watermark and no status pass.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> harness = OperatorHarness(PassOn())
    >>> gathered = Gathered(harness)
    >>> for time, word in enumerate(["to", "be", "or"]):
    ...     gathered.emit([word], [time]); gathered.emit_watermark(time)
    >>> gathered.flush(); harness.batches, harness.watermarks
    ([(['to'], [0]), (['be', 'or'], [1, 2])], [])
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._kept: dict[str | None, tuple[Values, Times]] = {}  # by side output; None: the main one
        self._most = 1  # values; as many as fill a batch, once it is known how large they are

    def emit(self, values: Values, times: Times = None) -> None:
        """See `Output`."""
        self._put(None, values, times)

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """See `Output`."""
        self._put(tag, values, times)

    def _put(self, tag: str | None, values: Values, times: Times) -> None:
        if not values:
            return
        kept, kept_times = self._kept.get(tag, (None, None))
        if kept is not None and (times is None) == (kept_times is None):
            kept += values
            if kept_times is not None and times is not None:
                kept_times += times
        else:  # it is the first, or its like was not gathered
            self._hand_on(tag)
            self._kept[tag] = kept, _ = values, times
        if len(kept) >= self._most:
            each = memory_of(kept) // len(kept) + 1
            self._hand_on(tag)
            self._most = max(1, min(_MANY, _BATCH_BYTES // each))

    def _hand_on(self, tag: str | None) -> None:
        if tag not in self._kept:
            return
        values, times = self._kept.pop(tag)
        if tag is None:
            self._out.emit(values, times)
        else:
            self._out.emit_to(tag, values, times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Nobody behind is told."""

    def emit_status(self, *, active: bool) -> None:
        """Nobody behind is told."""

    def flush(self) -> None:
        """Hand on what is left."""
        for tag in list(self._kept):
            self._hand_on(tag)


class Grouped(Operator):
    """Lets an operator see one key after the other; `keys` are the key functions of its inputs.

    >>> from headgate.task.keyed import KeyedProcess
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
        self._played = False
        self._cancelled = False

    def open(self) -> None:
        """Open the operator, and have no values."""
        self._gathered = Gathered(self.out)
        self._operator.out, self._operator.place = self._gathered, self.place
        self._grouping = grouping_of(self, check=self._refuse_if_cancelled)
        self._operator.open()

    def process(self, values: Values, times: Times) -> None:
        """Put a batch of the first input to its keys."""
        self._add(values, times, 0)

    def process_second(self, values: Values, times: Times) -> None:
        """Put a batch of the second input to its keys."""
        self._add(values, times, SECOND)

    def _add(self, values: Values, times: Times, side: int) -> None:
        with self.user_code():
            keys = self.answers(self._keys[side], values)
        tag = side | UNTIMED if times is None else side
        tags = self._marked(tag, times) if self._watermarks and values else tag
        with named_here(self):
            self._grouping.add(keys, values, times, tags)

    def _marked(self, tag: int, times: Times) -> int | list[int]:
        """The tags of values, with what their operator wants to know about watermarks."""
        marked = len(self._watermarks) << MARK | tag
        if self._operator.marks is Marks.ALL:
            return marked
        # Whoever is after the watermark finds all windows open that it belongs to, also one that it only touches.
        behind = self._watermarks[-1] + 1
        if times is None or min(times) > behind:
            return tag
        return [marked if time <= behind else tag for time in times]

    def watermark(self, timestamp_ms: int) -> None:
        """Note it; the last one sets everything going."""
        if timestamp_ms < MAX_WATERMARK_MS:
            if self._operator.marks is not Marks.NONE:
                self._watermarks.append(timestamp_ms)
            return
        self._play()
        self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """There is nothing to hand on before the end."""

    def finish(self) -> None:
        """See `watermark`, if none came."""
        self._play()

    def _play(self) -> None:
        if self._played:
            return
        self._played = True
        operator, watermarks = self._operator, self._watermarks
        with named_here(self):
            for key, several in self._together() if operator.several else self._grouping.groups():
                self._refuse_if_cancelled()
                operator.begin_key(key)
                for entries in several:
                    self._refuse_if_cancelled()
                    operator.play(entries, watermarks)
                operator.end_key(watermarks)
            self._gathered.flush()

    def _together(self) -> Iterator[tuple[Any, Iterable[Entries]]]:
        """The groups, of which small ones that time does not matter to are put together."""
        some = Entries([], [], [])
        for key, several in self._grouping.groups():
            parts = iter(several)
            own: Entries | None = next(parts)
            while own is not None and len(own.values) < _MANY and not max(own.tags) >> MARK:
                more = next(parts, None)
                if more is None:
                    for kept, new in zip(some, own, strict=True):
                        kept.extend(new)
                    own = None
                else:
                    own = Entries(own.values + more.values, own.times + more.times, own.tags + more.tags)
            if own is not None:
                yield key, chain([own], parts)
            elif len(some.values) >= _MANY:
                yield key, [some]
                some = Entries([], [], [])
        if some.values:
            yield None, [some]

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def cancel(self) -> None:
        """See `Operator`."""
        self._cancelled = True
        self._operator.cancel()

    def close(self) -> None:
        """Close the operator, and let go of all files."""
        try:
            self._operator.close()
        finally:
            self._grouping.close()


def grouping_of(operator: Operator, share: float = 1.0, *, check: Callable[[], object]) -> Grouping:
    """The grouping of an operator, which may take this share of its memory; counts what it spills.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> grouping_of(OperatorHarness(PassOn()).operator, check=int).memory_bytes
    0
    """
    counters, space = operator.place.counters, operator.place.spill

    def spilled(n: int) -> None:
        counters["spilled_bytes"] = counters.get("spilled_bytes", 0) + n

    memory = None if space is None else int(space.memory_bytes * share)
    return Grouping(space, memory, spilled=spilled, check=check)


@contextmanager
def named_here(operator: Operator) -> Iterator[None]:
    """Values and keys that cannot be written to disk are the user's to mend: the error names the operator.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> with named_here(OperatorHarness(PassOn()).operator):
    ...     raise UnstableKey("a list can change")
    Traceback (most recent call last):
    headgate.errors.UserCodeError: ...a list can change...
    """
    try:
        yield
    except (SerializationError, UnstableKey) as error:
        raise operator.blamed(error) from error
