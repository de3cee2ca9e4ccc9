"""How late small records come to a process that is busy, beside a bare socket under the same load.

Contests of the wire suite, one for each rate. The producer is a task with a paced source: it emits what is due, says so
that it has no more at hand (which is when `execution.buffer_timeout = auto` flushes), and sleeps. The consumer reads
beside a thread that is busy in pure Python half of the time. Each record carries the time it was emitted, as the bare
socket's messages do (`_ping`): all that leave together carry one time.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.bench._children import START_S
from headgate.bench._figures import Case, Contest
from headgate.bench._ping import bare_ping, bursts, busy_thread, percentile
from headgate.bench._wire_ends import consuming, producing
from headgate.config import BufferTimeout, ExecutionSettings, FlushMode, Settings
from headgate.errors import InvariantViolated
from headgate.output import Forward
from headgate.record import Batch, Record
from headgate.record.fixed import StructSerializer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.bench._children import Parent
    from headgate.bench._wire_ends import Ends, Place

__all__ = ["latency"]

_RATES_HZ: Final = (1_000, 50_000)
_TIMEOUTS: Final = ("auto", "0", "1 ms", "10 ms", "100 ms")
_BUSY: Final = 0.5
_RECORD: Final = "<q92x"  # when it was sent, and padding to 100 bytes
_BARE: Final = "bare socket"
_WORK_S: Final = 60e-6  # before and after each send and receipt: about what ours has for 25 records
_WORKING: Final = "bare socket with as much Python"
_QUIET_S: Final = 0.05  # between the last record and the end, which would compete with its receipt


class Delays(NamedTuple):
    """What one run found, in milliseconds."""

    p50_ms: float
    p99_ms: float


def latency(ends: Ends, seconds: float) -> Iterator[Contest[Delays]]:
    """All contests of the case, `seconds` of sending a run."""
    for rate_hz in _RATES_HZ:
        yield Contest(
            name=f"latency, {rate_hz:,}/s",
            runs={
                _BARE: partial(_bare, rate_hz, seconds),
                _WORKING: partial(_bare, rate_hz, seconds, _WORK_S),
                **{_name(timeout): partial(_ours, ends, rate_hz, seconds, timeout) for timeout in _TIMEOUTS},
            },
            cases=list(_cases(rate_hz)),
        )


def _cases(rate_hz: int) -> Iterator[Case[Delays]]:
    for run in (_BARE, _WORKING, *map(_name, _TIMEOUTS)):
        name, auto = f"latency, {rate_hz:,}/s, {run}", run == _name("auto")
        yield Case(case=f"{name}, p50", unit="ms", run=run, figure=_p50)
        yield Case(
            case=f"{name}, p99",
            unit="ms",
            run=run,
            figure=_p99,
            against="p50 of a bare socket" if auto else None,
            baseline=(_BARE,) if auto else (),
            baseline_figure=_p50,
            goal=10.0 if auto else None,
            at_most=True,
        )


def _name(timeout: str) -> str:
    return f"buffer_timeout {timeout}"


def _p50(delays: Delays) -> float:
    return delays.p50_ms


def _p99(delays: Delays) -> float:
    return delays.p99_ms


def _summary(delays_ms: list[float]) -> Delays:
    return Delays(percentile(delays_ms, 50), percentile(delays_ms, 99))


def _bare(rate_hz: float, seconds: float, work_s: float = 0.0) -> Delays:
    interval_s = Settings().execution.switch_interval.seconds  # what a worker sets
    return _summary(bare_ping(rate_hz, seconds, _BUSY, switch_interval_s=interval_s, work_s=work_s))


def _ours(ends: Ends, rate_hz: float, seconds: float, timeout: str) -> Delays:
    settings = Settings(execution=ExecutionSettings(buffer_timeout=BufferTimeout.parse(timeout)))
    count = max(1, round(rate_hz * seconds))
    _, (received, delays) = ends.run(
        partial(_produce, rate_hz=rate_hz, count=count), _consume, settings=settings, limit_s=10 * seconds
    )
    if received != count:
        raise InvariantViolated(f"{received} of {count} records arrived")
    return delays


def _produce(parent: Parent, place: Place, *, rate_hz: float, count: int) -> None:
    with producing(parent, place) as (worker, (partition,)):
        writer = worker.writer(partition, Forward(), StructSerializer[int](_RECORD))
        timeout, emit = writer.buffer_timeout, writer.emit
        auto = timeout.mode is FlushMode.AUTO
        parent.receive(START_S)  # the consumer's load has started
        for sent_ns, number in bursts(rate_hz, count):
            for _ in range(number):
                emit(sent_ns)
            if auto:
                writer.flush()  # as a task does before it waits for input
        # What a timer flushes is not to be flushed by the end.
        time.sleep(_QUIET_S + (2 * timeout.interval_ns / 1e9 if timeout.mode is FlushMode.INTERVAL else 0))
        writer.finish()
        writer.close()


def _consume(parent: Parent, place: Place) -> tuple[int, Delays]:
    """How many records came, and how late."""
    delays_ms: list[float] = []
    with consuming(parent, place) as (worker, (gate,)), busy_thread(_BUSY, slices=place.slices()):
        parent.send("busy")
        reader = worker.reader(gate, StructSerializer[int](_RECORD))
        for element in reader:
            received_ns = time.monotonic_ns()
            if isinstance(element, Batch):
                delays_ms += [(received_ns - sent_ns) / 1e6 for sent_ns in element.values]
            elif isinstance(element, Record):
                delays_ms.append((received_ns - element.value) / 1e6)
        reader.close()
    return len(delays_ms), _summary(delays_ms)
