"""The operators of one subtask, put together: what each emits goes to the next by a call, or to an exchange.

Built by the worker, used on the task's thread only. Nothing between two operators of a chain is serialized or queued.

Invariants: operators are opened from the last to the first, so that none emits into one that is not open, and closed
once each, whatever happened; where one output goes to several, each gets a batch of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headgate.errors import HeadgateError, SelectorError, SerializationError, UnstableKey
from headgate.record.element import StreamStatus, Watermark
from headgate.task.copying import copied_batch
from headgate.task.operator import MAX_WATERMARK_MS, Operator, Times, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.record.element import Element, Event, LatencyMarker

__all__ = ["Chain", "Link", "Writer"]

_USERS = (SelectorError, SerializationError, UnstableKey)  # what an exchange refuses is the user's to mend


def _is_users(error: BaseException) -> bool:
    """Whether an error of an exchange comes from the user's code, or is the user's to mend."""
    return isinstance(error, _USERS) or not isinstance(error, HeadgateError)


class Writer(Protocol):
    """The way out of a chain: a `RecordWriter`."""

    def emit_batch(self, values: Values, timestamps_ms: list[int] | None = None) -> None:
        """Write records."""
        ...

    def emit_element(self, element: Element[object]) -> None:
        """Write what travels between records."""
        ...

    def emit_event(self, event: Event) -> None:
        """Write what travels beside them."""
        ...

    def flush(self) -> None:
        """Let the readers have everything."""
        ...

    def finish(self) -> None:
        """Write the end."""
        ...


class Link:
    """Where the output of one operator goes: an `Output`.

    >>> from headgate.task.basic import PassOn
    >>> Link(PassOn(), object_reuse=False).records_out
    0
    """

    __slots__ = ("_main", "_operators", "_reuse", "_sides", "_writers", "operator", "records_out", "watermark_ms")

    def __init__(self, operator: Operator, *, object_reuse: bool) -> None:
        self.operator = operator
        self.records_out = 0
        self.watermark_ms: int | None = None
        self._reuse = object_reuse
        self._main: list[Callable[[Values, Times], object]] = []
        self._sides: dict[str, list[Callable[[Values, Times], object]]] = {}
        self._operators: list[Operator] = []
        self._writers: list[Writer] = []

    def lead_to(self, operator: Operator, tag: str | None) -> None:
        """An operator of the chain reads the main output, or a side output."""
        self._targets(tag).append(operator.process)
        self._operators.append(operator)

    def leave_by(self, writer: Writer, tag: str | None) -> None:
        """An exchange carries the main output, or a side output."""
        self._targets(tag).append(self._guarded(writer))
        self._writers.append(writer)

    def _guarded(self, writer: Writer) -> Callable[[Values, Times], object]:
        """Selectors and serializers call the user's code, too: what that raises names this operator."""
        emit, operator = writer.emit_batch, self.operator

        def leave(values: Values, times: Times) -> None:
            try:
                emit(values, times)
            except BaseException as error:
                if not _is_users(error):
                    raise
                raise operator.blamed(error) from error

        return leave

    def _targets(self, tag: str | None) -> list[Callable[[Values, Times], object]]:
        return self._main if tag is None else self._sides.setdefault(tag, [])

    # What the operator calls.

    def emit(self, values: Values, times: Times = None) -> None:
        """Hand on a batch."""
        if values:
            self.records_out += len(values)
            self._hand_on(self._main, values, times)

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """Hand on a batch as a side output; where nobody reads it, it is dropped."""
        targets = self._sides.get(tag)
        if values and targets:
            self._hand_on(targets, values, times)

    def _hand_on(self, targets: list[Callable[[Values, Times], object]], values: Values, times: Times) -> None:
        copies = not self._reuse
        if len(targets) == 1:
            targets[0](copied_batch(values) if copies and self.operator.keeps else values, times)
            return
        for target in targets[1:]:
            mine = copied_batch(values) if copies else values
            target(list(values) if mine is values else mine, times if times is None else list(times))
        if targets:
            targets[0](copied_batch(values) if copies and self.operator.keeps else values, times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Hand on a watermark, to all outputs."""
        self.watermark_ms = timestamp_ms
        for operator in self._operators:
            operator.watermark(timestamp_ms)
        for writer in self._writers:
            writer.emit_element(Watermark(timestamp_ms))

    def emit_status(self, *, active: bool) -> None:
        """Hand on a status, to all outputs."""
        for operator in self._operators:
            operator.status(active=active)
        for writer in self._writers:
            writer.emit_element(StreamStatus(active=active))

    def mark(self, marker: LatencyMarker) -> None:
        """Write a latency marker to every exchange, behind what was emitted; operators do not see it."""
        for writer in self._writers:
            try:
                writer.emit_element(marker)
            except BaseException as error:  # of records that wait in the writer
                if not _is_users(error):
                    raise
                raise self.operator.blamed(error) from error


class Chain:
    """All operators of one subtask, the head first.

    `reads` says for each which operator it reads from, and which side output of that; the head reads nothing here.

    >>> from headgate.task.basic import Map, PassOn
    >>> chain = Chain([PassOn(), Map(len)], [None, (0, None)], object_reuse=False)
    >>> chain.head is chain.operators[0]
    True
    """

    def __init__(
        self, operators: Sequence[Operator], reads: Sequence[tuple[int, str | None] | None], *, object_reuse: bool
    ) -> None:
        self.operators = list(operators)
        self.links = [Link(operator, object_reuse=object_reuse) for operator in operators]
        for operator, link, read in zip(operators, self.links, reads, strict=True):
            operator.out = link
            if read is not None:
                self.links[read[0]].lead_to(operator, read[1])
        self.head = self.operators[0]
        self._opened: list[Operator] = []
        self._timed = [one for one in operators if type(one).next_timer_ms is not Operator.next_timer_ms]
        self._flushed = [one for one in operators if type(one).flush is not Operator.flush]

    def open(self) -> None:
        """Open all."""
        for operator in reversed(self.operators):
            self._opened.append(operator)  # also one whose opening fails half-way
            operator.open()

    def flush(self) -> None:
        """There is no input at hand: let operators give out what waits for more."""
        for operator in self._flushed:
            operator.flush()

    def wake(self) -> None:
        """Somebody has called for the loop."""
        for operator in self.operators:
            operator.on_wake()

    def next_timer_ms(self) -> int | None:
        """When the first timer of processing time is due."""
        times = [operator.next_timer_ms() for operator in self._timed] if self._timed else []
        return min((time for time in times if time is not None), default=None)

    def run_timers(self, now_ms: int) -> None:
        """Let timers run that are due."""
        for operator in self._timed:
            at_ms = operator.next_timer_ms()
            if at_ms is not None and at_ms <= now_ms:
                operator.on_timers(now_ms)

    def mark(self, marker: LatencyMarker) -> None:
        """Let a latency marker leave by every exchange, past all operators."""
        for link in self.links:
            link.mark(marker)

    def finish(self, *, watermark: bool) -> None:
        """All input has ended; unless it came with the input, the last watermark goes through first."""
        if watermark:
            self.head.watermark(MAX_WATERMARK_MS)
        for operator in self.operators:
            operator.finish()

    def close(self) -> None:
        """Close what was opened; the first error is raised when all are closed."""
        first: BaseException | None = None
        while self._opened:
            try:
                self._opened.pop().close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed, too
                first = first or error
        if first is not None:
            raise first

    def name_of(self, error: BaseException) -> BaseException:
        """An error of an exchange at a moment when no operator emits, as one that names the last operator."""
        if not isinstance(error, _USERS):
            return error
        return self.operators[-1].blamed(error)
