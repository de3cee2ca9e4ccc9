"""Chain: the operators of one subtask. An operator passes its output to the next by a call, or to an exchange.

Built by the worker, used on the task's thread only. Nothing between two operators of a chain is serialized or queued.

Invariants: operators are opened from the last to the first, so that no operator emits to one that is not open. Each is
closed once, also after a failure. If one output has several receivers, each receives a batch of its own.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headgate.errors import HeadgateError, SelectorError, SerializationError, UnstableKey
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.record.copying import copied_batch
from headgate.record.element import StreamStatus, Watermark
from headgate.record.registry import is_record_batch
from headgate.task.operator import Operator, Times, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headgate.record.element import Element, Event, LatencyMarker

__all__ = ["Chain", "Link", "OperatorCounts", "Writer", "record_count"]

_MAX_COUNTED_TAGS: Final = 1000  # a bound, because the names of side outputs may depend on the data
_USER_ERRORS = (SelectorError, SerializationError, UnstableKey)  # raised by an exchange for a mistake in user code


def _is_user_error(error: BaseException) -> bool:
    """Return True if an error of an exchange was raised in, or caused by, the user's code."""
    return isinstance(error, _USER_ERRORS) or not isinstance(error, HeadgateError)


class Writer(Protocol):
    """The exchange at the end of a chain: a `RecordWriter`."""

    def emit_batch(self, values: Values, timestamps_ms: list[int] | None = None) -> None:
        """Write records."""
        ...

    def emit_element(self, element: Element[object]) -> None:
        """Write an element in order with the records."""
        ...

    def emit_event(self, event: Event) -> None:
        """Write an event in order with the records."""
        ...

    def flush(self) -> None:
        """Make everything written available to the readers."""
        ...

    def finish(self) -> None:
        """Write the end of the partition."""
        ...


class Link:
    """The receivers of one operator's output: an `Output`."""

    __slots__ = (
        "_main",
        "_operators",
        "_row_type",
        "_sides",
        "_writers",
        "operator",
        "records_out",
        "side_records",
        "watermark_ms",
    )

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.records_out = 0  # of the main output
        self.side_records: dict[str, int] = {}  # of side outputs, by tag, read or not
        self.watermark_ms: int | None = None
        self._row_type: type | None = None  # of the last first value that was not an Arrow batch
        self._main: list[Callable[[Values, Times], object]] = []
        self._sides: dict[str, list[Callable[[Values, Times], object]]] = {}
        self._operators: list[Operator] = []
        self._writers: list[Writer] = []

    def add_operator(self, operator: Operator, tag: str | None) -> None:
        """Pass the main output (None), or a side output, to an operator of the chain."""
        if tag is not None:
            self.side_records[tag] = 0  # counted also if there are more tags than `_MAX_COUNTED_TAGS`
        self._targets(tag).append(operator.process)
        self._operators.append(operator)

    def add_writer(self, writer: Writer, tag: str | None) -> None:
        """Pass the main output (None), or a side output, to an exchange."""
        if tag is not None:
            self.side_records[tag] = 0
        self._targets(tag).append(self._emit_to_writer(writer))
        self._writers.append(writer)

    def _emit_to_writer(self, writer: Writer) -> Callable[[Values, Times], object]:
        """Return the writer's `emit_batch`, with user errors of selectors and serializers that name this operator."""
        emit, operator = writer.emit_batch, self.operator

        def emit_batch(values: Values, times: Times) -> None:
            try:
                emit(values, times)
            except BaseException as error:
                if not _is_user_error(error):
                    raise
                raise operator.user_code_error(error) from error

        return emit_batch

    def _targets(self, tag: str | None) -> list[Callable[[Values, Times], object]]:
        return self._main if tag is None else self._sides.setdefault(tag, [])

    # The methods of `Output`.

    def emit(self, values: Values, times: Times = None) -> None:
        """Pass a batch to the receivers of the main output."""
        if values:
            # A call of `record_count` would cost 1 % of the time of a batch of 500 in trivial functions.
            self.records_out += len(values) if type(values[0]) is self._row_type else self._count(values)
            self._pass_on(self._main, values, times)

    def _count(self, values: Values) -> int:
        """Return the number of records, and store the type of values that are one record each."""
        kind = type(values[0])
        if not is_record_batch(kind):
            self._row_type = kind
        return record_count(values)

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """Count a batch and pass it to the receivers of a side output; without receivers it is dropped."""
        if not values:
            return
        counted = self.side_records
        if tag in counted or len(counted) < _MAX_COUNTED_TAGS:
            counted[tag] = counted.get(tag, 0) + record_count(values)
        targets = self._sides.get(tag)
        if targets:
            self._pass_on(targets, values, times)

    def _pass_on(self, targets: list[Callable[[Values, Times], object]], values: Values, times: Times) -> None:
        for target in targets[1:]:  # each receiver may change its batch, also with object_reuse
            copy = copied_batch(values)
            target(list(values) if copy is values else copy, times if times is None else list(times))
        if targets:
            targets[0](values, times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Pass a watermark to all outputs."""
        self.watermark_ms = timestamp_ms
        for operator in self._operators:
            operator.watermark(timestamp_ms)
        for writer in self._writers:
            writer.emit_element(Watermark(timestamp_ms))

    def emit_status(self, *, active: bool) -> None:
        """Pass a status to all outputs."""
        for operator in self._operators:
            operator.status(active=active)
        for writer in self._writers:
            writer.emit_element(StreamStatus(active=active))

    def emit_event(self, event: Event) -> None:
        """Pass an event to all outputs: the operators of the chain, and every channel of every exchange."""
        for operator in self._operators:
            operator.event(event)
        for writer in self._writers:
            with self._naming_operator():
                writer.emit_event(event)

    def mark(self, marker: LatencyMarker) -> None:
        """Write a latency marker to every exchange, in order with the records; operators do not receive it."""
        for writer in self._writers:
            with self._naming_operator():
                writer.emit_element(marker)

    @contextmanager
    def _naming_operator(self) -> Iterator[None]:
        """Turn user errors of records that a writer had collected into errors of this operator."""
        try:
            yield
        except BaseException as error:
            if not _is_user_error(error):
                raise
            raise self.operator.user_code_error(error) from error


class OperatorCounts(NamedTuple):
    """The numbers of records that one operator of a chain has received and emitted."""

    records_in: int
    records_out: int  # of the main output
    side_outputs: dict[str, int]  # by tag


class Chain:
    """All operators of one subtask, the head first.

    `reads` contains, for each operator, the index of the operator it reads from and the side output; None for the head.

    >>> from headgate.task.operators.basic import Map, PassOn
    >>> chain = Chain([PassOn(), Map(len)], [None, (0, None)])
    >>> chain.head is chain.operators[0]
    True
    """

    def __init__(self, operators: Sequence[Operator], reads: Sequence[tuple[int, str | None] | None]) -> None:
        self.operators = list(operators)
        self.links = [Link(operator) for operator in operators]
        for operator, link, read in zip(operators, self.links, reads, strict=True):
            operator.out = link
            if read is not None:
                self.links[read[0]].add_operator(operator, read[1])
        self.head = self.operators[0]
        self._reads = list(reads)
        self._opened: list[Operator] = []
        self._timed = [one for one in operators if type(one).next_timer_ms is not Operator.next_timer_ms]
        self._flushed = [one for one in operators if type(one).flush is not Operator.flush]

    def open(self) -> None:
        """Open all operators, the last one first."""
        for operator in reversed(self.operators):
            self._opened.append(operator)  # before `open`: an operator that fails to open is closed, too
            operator.open()

    def flush(self) -> None:
        """Flush all operators: the task has no input at hand."""
        for operator in self._flushed:
            operator.flush()

    def wake(self) -> None:
        """Call `on_wake` of all operators."""
        for operator in self.operators:
            operator.on_wake()

    def next_timer_ms(self) -> int | None:
        """Return the time of the first processing-time timer, or None."""
        times = [operator.next_timer_ms() for operator in self._timed] if self._timed else []
        return min((time for time in times if time is not None), default=None)

    def run_timers(self, now_ms: int) -> None:
        """Run the timers that are due."""
        for operator in self._timed:
            at_ms = operator.next_timer_ms()
            if at_ms is not None and at_ms <= now_ms:
                operator.on_timers(now_ms)

    def mark(self, marker: LatencyMarker) -> None:
        """Write a latency marker to every exchange, past all operators."""
        for link in self.links:
            link.mark(marker)

    def counts(self, records_in: int) -> list[OperatorCounts]:
        """Return the counts of each operator, if the head has received `records_in`. Called from any thread.

        An operator receives all records of the one output that it reads, so only outputs are counted.
        """
        found: list[OperatorCounts] = []
        for link, read in zip(self.links, self._reads, strict=True):
            sides = link.side_records.copy()  # atomic: the task adds to it
            if read is None:
                received = records_in
            else:
                upstream, tag = found[read[0]], read[1]
                received = upstream.records_out if tag is None else upstream.side_outputs[tag]
            found.append(OperatorCounts(received, link.records_out, sides))
        return found

    def finish(self, *, watermark: bool) -> None:
        """Finish all operators after the end of the input; `watermark`: process the last watermark before."""
        if watermark:
            self.head.watermark(MAX_WATERMARK_MS)
        for operator in self.operators:
            operator.finish()

    def close(self) -> None:
        """Close all opened operators, then raise the first error."""
        first: BaseException | None = None
        while self._opened:
            try:
                self._opened.pop().close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed, too
                first = first or error
        if first is not None:
            raise first

    def with_operator(self, error: BaseException) -> BaseException:
        """Return a user error that an exchange raised while no operator emitted, as one of the last operator."""
        if not isinstance(error, _USER_ERRORS):
            return error
        return self.operators[-1].user_code_error(error)


def record_count(values: Values) -> int:
    """Return the number of records of a non-empty batch: its values, or the rows of its Arrow record batches.

    >>> import pyarrow as pa
    >>> record_count(["to", "be"]), record_count([pa.record_batch({"word": ["to", "be", "or"]})])
    (2, 3)
    """
    kind = type(values[0])
    if kind.__name__ == "RecordBatch" and is_record_batch(kind):
        return sum([batch.num_rows for batch in values])
    return len(values)
