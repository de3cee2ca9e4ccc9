"""The cases `slow-neighbour` and `response` of the suite `wire`: the effects of a slow consumer.

`slow-neighbour` (behaviour B4): two tasks of one process write to two tasks of another, over one connection, as fast as
they can. In the first and the last phase only the fast channel carries buffers; in between, the other consumer takes
one buffer every few milliseconds. Barriers pass through both channels all the time. For comparison, the neighbours are
two threads that only wake as often: this loss is due to threads, not to a channel.

`response`: one task writes full buffers as fast as it can. Its consumer reads at full speed, then at 10 % of it, then
at full speed again.

Both processes keep to one schedule by the machine's monotonic clock, and note a stamp for each buffer.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from headgate.bench.ceiling import ceiling_of
from headgate.bench.charts import ChartPanel, Line, LineKind, Span
from headgate.bench.harness import Case, Contest, percentile
from headgate.bench.processes import START_S
from headgate.bench.workers import consuming, producing, run_workers
from headgate.config import FlowControl, NetworkSettings, Settings
from headgate.config.units import MIB
from headgate.record import CheckpointBarrier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from headgate.bench.processes import Parent, ProcessPair
    from headgate.bench.workers import WorkerEnd
    from headgate.buffer import Buffer
    from headgate.input import InputGate
    from headgate.output import ResultPartition

__all__ = ["NeighbourOutcome", "NeighbourPhases", "ResponseOutcome", "Stamps", "neighbours", "response"]

_LEAD_NS: Final = 30_000_000  # before the schedule starts: it has to reach the other process
_CHART_BIN_S: Final = 0.05
_BIN_S: Final = 0.01  # of `follows_after_s`
_WINDOW: Final = 5  # bins that are averaged
_TOLERANCE: Final = 0.25


def _sleep_until(start_ns: int) -> None:
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)


# Stamps ----------------------------------------------------------------------------------------------------------


class Stamps:
    """When each buffer passed one end of a channel: ascending, in seconds from the start of the schedule."""

    __slots__ = ("seconds",)

    def __init__(self, stamps_ns: array[int], start_ns: int) -> None:
        self.seconds: NDArray[np.float64] = (np.asarray(stamps_ns, dtype=np.int64) - start_ns) / 1e9

    def rate(self, start_s: float, end_s: float) -> float:
        """Return the buffers per second between two times."""
        first, last = np.searchsorted(self.seconds, (start_s, end_s))
        return float(last - first) / (end_s - start_s)

    def rates(self, start_s: float, end_s: float, bin_s: float = _BIN_S) -> tuple[list[float], list[float]]:
        """Return the middles of all whole bins between two times, and the buffers per second in each."""
        edges = start_s + np.arange(int((end_s - start_s) / bin_s + 1e-6) + 1) * bin_s
        counts, _ = np.histogram(self.seconds, edges)
        return (edges[:-1] + bin_s / 2).tolist(), (counts / bin_s).tolist()

    def follows_after_s(self, target: float, start_s: float, end_s: float) -> float:
        """Return the time from `start_s` until this rate has followed another end, which changed to `target`.

        Rates are counted in bins of 10 ms. The first bin counts whose mean with the four bins after it is within 25 %
        of the target, or beyond it: the change may overshoot. The rate of the 100 ms before `start_s` tells which side
        is beyond. Without such a bin, the result is all of the time.
        """
        falls = self.rate(start_s - 10 * _BIN_S, start_s) > target
        _, rates = self.rates(start_s, end_s)
        for first in range(len(rates) - _WINDOW + 1):
            mean = sum(rates[first : first + _WINDOW]) / _WINDOW
            if mean <= target * (1 + _TOLERANCE) if falls else mean >= target * (1 - _TOLERANCE):
                return round(first * _BIN_S, 9)
        return end_s - start_s

    def in_flight(self, consumed: Stamps, times_s: Sequence[float] | None = None) -> NDArray[np.int64]:
        """Return the buffers produced and not consumed at each time; without times, after each was produced."""
        if times_s is None:
            out = np.arange(1, len(self.seconds) + 1)
            return out - np.searchsorted(consumed.seconds, self.seconds, side="right")
        return np.searchsorted(self.seconds, times_s, "right") - np.searchsorted(consumed.seconds, times_s, "right")


# slow-neighbour --------------------------------------------------------------------------------------------------

_CHANNELS: Final = ("fast", "slow")
_WAKE_ONLY: Final = "beside threads that only wake"
_PAUSE_S: Final = 0.005  # of the slow consumer for each buffer
_BARRIER_NS: Final = 20_000_000
_UNSETTLED: Final = 0.25  # the share of a phase that does not count: a connection's buffers fill or drain first


class NeighbourPhases(NamedTuple):
    """The length of the phases, in seconds: the fast channel alone, beside the slow one, alone."""

    alone_s: float
    slow_s: float

    @property
    def slow_until_s(self) -> float:
        """The end of the phase with the slow channel; it begins at `alone_s`."""
        return self.alone_s + self.slow_s

    @property
    def end_s(self) -> float:
        """The end of the last phase."""
        return 2 * self.alone_s + self.slow_s


@dataclass(frozen=True, slots=True)
class NeighbourOutcome:
    """The result of one run."""

    phases: NeighbourPhases
    size: int  # bytes of a buffer
    fast: Stamps
    slow: Stamps
    barriers: Sequence[Sequence[tuple[float, float]]]  # of each channel: when sent, in s; how long it took, in ms

    def alone(self) -> float:
        """Return the MB/s of the fast channel in the first and the last phase."""
        phases, skip_s = self.phases, _UNSETTLED * self.phases.alone_s
        before = self._rate(self.fast, skip_s, phases.alone_s)
        return (before + self._rate(self.fast, phases.slow_until_s + skip_s, phases.end_s)) / 2

    def beside(self) -> float:
        """Return the MB/s of the fast channel beside the slow one."""
        return self._while_slow(self.fast)

    def neighbour(self) -> float:
        """Return the MB/s of the slow channel."""
        return self._while_slow(self.slow)

    def _while_slow(self, stamps: Stamps) -> float:
        phases = self.phases
        return self._rate(stamps, phases.alone_s + _UNSETTLED * phases.slow_s, phases.slow_until_s)

    def _rate(self, stamps: Stamps, start_s: float, end_s: float) -> float:
        # A stall may last all of a short phase. It counts as one buffer, because a ratio to zero does not exist.
        return self.size * max(stamps.rate(start_s, end_s), 1 / (end_s - start_s)) / 1e6

    def barrier_ms(self, channel: int, q: float) -> float:
        """Return a percentile over the barriers sent in the first half of the slow phase: most pass while it lasts."""
        sent = [one for one in self.barriers[channel] if one[0] >= self.phases.alone_s]
        half_s = self.phases.alone_s + self.phases.slow_s / 2
        # A task that was blocked for all of that time has sent its next barrier after it.
        return percentile([ms for sent_s, ms in sent if sent_s < half_s] or [sent[0][1]], q)


def neighbours(pair: ProcessPair, phases: NeighbourPhases) -> Contest[NeighbourOutcome]:
    """Return the contest of `slow-neighbour`."""

    def fast(case: str, run: str, goal: float | None = None) -> Case[NeighbourOutcome]:
        return Case(
            case,
            "MB/s",
            run,
            NeighbourOutcome.beside,
            against="itself alone",
            baseline=(run,),
            baseline_figure=NeighbourOutcome.alone,
            paired=True,
            goal=goal,
        )

    def cases() -> Iterator[Case[NeighbourOutcome]]:
        for run in FlowControl:
            name, credit = f"slow-neighbour, {run.value}", run is FlowControl.CREDIT
            yield fast(f"{name}, fast channel", run.value, goal=0.9 if credit else None)
            yield Case(
                f"{name}, fast channel beside the slow one",
                "MB/s",
                run.value,
                NeighbourOutcome.beside,
                against="the slow channel",
                baseline=(run.value,),
                baseline_figure=NeighbourOutcome.neighbour,
                goal=None if credit else 2.0,
                at_most=True,
            )
            for channel, which in enumerate(_CHANNELS):
                for q, what in ((50, "p50"), (100, "max")):
                    figure = partial(NeighbourOutcome.barrier_ms, channel=channel, q=q)
                    yield Case(f"{name}, barrier, {which} channel, {what}", "ms", run.value, figure)
        yield fast(f"slow-neighbour, {_WAKE_ONLY}, fast channel", _WAKE_ONLY)

    runs = {mode.value: partial(_run_neighbours, pair, mode, phases) for mode in FlowControl}
    runs[_WAKE_ONLY] = partial(_run_neighbours, pair, FlowControl.CREDIT, phases, wake_only=True)
    return Contest(name="slow-neighbour", rounds=3, runs=runs, cases=list(cases()), panels=_neighbour_panels)


def _run_neighbours(
    pair: ProcessPair, mode: FlowControl, phases: NeighbourPhases, *, wake_only: bool = False
) -> NeighbourOutcome:
    settings = Settings(network=NetworkSettings(flow_control=mode))
    (start_ns, written), read = run_workers(
        pair,
        partial(_produce_two, phases=phases, wake_only=wake_only),
        partial(_consume_two, phases=phases, wake_only=wake_only),
        settings=settings,
        channels=2,
        limit_s=10 * phases.end_s,
    )
    fast, slow = (Stamps(stamps_ns, start_ns) for stamps_ns, _ in read)
    barriers = [
        [((sent_ns - start_ns) / 1e9, (came_ns[number] - sent_ns) / 1e6) for number, sent_ns in enumerate(sent)]
        for sent, (_, came_ns) in zip(written, read, strict=True)
    ]
    return NeighbourOutcome(phases, settings.memory.segment_size, fast, slow, barriers)


def _slow_phase_ns(start_ns: int, phases: NeighbourPhases) -> tuple[int, int]:
    return start_ns + round(phases.alone_s * 1e9), start_ns + round(phases.slow_until_s * 1e9)


def _produce_two(
    parent: Parent, end: WorkerEnd, *, phases: NeighbourPhases, wake_only: bool
) -> tuple[int, list[list[int]]]:
    """Write from two threads; return the start of the schedule, and when each channel's barriers were sent."""
    with producing(parent, end, partitions=2) as (_, (fast, slow)), ThreadPoolExecutor(2) as threads:
        start_ns = time.monotonic_ns() + _LEAD_NS
        parent.send(start_ns)
        end_ns = start_ns + round(phases.end_s * 1e9)
        slow_phase = _slow_phase_ns(start_ns, phases)
        tasks = [
            threads.submit(_write, fast, start_ns, end_ns),
            threads.submit(_wake_then_write if wake_only else _write, slow, *slow_phase),
        ]
        return start_ns, [task.result() for task in tasks]


def _write(partition: ResultPartition, start_ns: int, end_ns: int) -> list[int]:
    """Write full buffers and a barrier every 20 ms; return when the barriers were sent."""
    size, barriers_ns, next_barrier_ns = partition.pool.segment_size, [], start_ns
    _sleep_until(start_ns)
    buffer: Buffer | None = None
    now_ns = start_ns
    while now_ns < end_ns:
        now_ns = time.monotonic_ns()
        if now_ns >= next_barrier_ns:  # also in the last pass: a task that was blocked all the time sends one
            if buffer is not None:
                partition.end_buffer(0, buffer)
                buffer = None
            barriers_ns.append(time.monotonic_ns())
            partition.add_event(CheckpointBarrier(checkpoint=len(barriers_ns) - 1, timestamp_ms=0))
            next_barrier_ns = now_ns + _BARRIER_NS
        buffer = partition.next_buffer(0, buffer, mid_record=False)
        assert buffer is not None, "next_buffer blocks until there is one"
        buffer.publish(size)
    assert buffer is not None, "there was time for one"
    partition.end_buffer(0, buffer)
    partition.finish()
    return barriers_ns


def _wake_then_write(partition: ResultPartition, start_ns: int, end_ns: int) -> list[int]:
    _only_wake(start_ns, end_ns)
    return _write(partition, end_ns, end_ns + 1)


def _only_wake(start_ns: int, end_ns: int) -> None:
    _sleep_until(start_ns)
    while time.monotonic_ns() < end_ns:
        time.sleep(_PAUSE_S)


def _consume_two(
    parent: Parent, end: WorkerEnd, *, phases: NeighbourPhases, wake_only: bool
) -> list[tuple[array[int], dict[int, int]]]:
    """Read with two threads; return each one's stamps of buffers, and of barriers by number."""
    with consuming(parent, end, gates=2) as (_, (fast, slow)), ThreadPoolExecutor(2) as threads:
        slow_phase = _slow_phase_ns(parent.receive(START_S), phases)
        tasks = [threads.submit(_read, fast, 0)]
        if wake_only:
            threads.submit(_only_wake, *slow_phase)
        tasks.append(threads.submit(_read, slow, 0 if wake_only else slow_phase[1]))
        return [task.result() for task in tasks]


def _read(gate: InputGate, slow_until_ns: int) -> tuple[array[int], dict[int, int]]:
    stamps_ns, barriers_ns = array("q"), {}
    now_ns, sleep = time.monotonic_ns, time.sleep
    taken = gate.read()
    while taken is not None:
        came_ns = now_ns()
        event = taken.event
        if event is None:
            stamps_ns.append(came_ns)
            if came_ns < slow_until_ns:
                sleep(_PAUSE_S)
        elif isinstance(event, CheckpointBarrier):
            barriers_ns[event.checkpoint] = came_ns
        taken = gate.read(done=taken)
    return stamps_ns, barriers_ns


def _neighbour_panels(found: Mapping[str, Sequence[NeighbourOutcome]]) -> list[ChartPanel]:
    """Return the charts of the last run of each mode."""
    last = {mode.value: found[mode.value][-1] for mode in FlowControl if mode.value in found}
    if not last:
        return []
    phases = next(iter(last.values())).phases
    spans = [Span(phases.alone_s, phases.slow_until_s, "slow neighbour", shaded=True)]
    rates, barriers = [], []
    for mode, outcome in last.items():
        bin_s = min(_CHART_BIN_S, phases.alone_s / 4)
        x, y = outcome.fast.rates(0, phases.end_s, bin_s)
        # Zero has no place on a logarithmic scale: half a buffer is drawn instead.
        rates.append(Line(mode, x, [max(rate, 0.5 / bin_s) * outcome.size / 1e6 for rate in y]))
        for name, own in zip(_CHANNELS, outcome.barriers, strict=True):
            points = [s for s, _ in own], [ms for _, ms in own]
            barriers.append(Line(f"{mode}, {name} channel", *points, LineKind.POINTS))
    titles = (
        "A fast channel beside a slow one on the same connection",
        "Barriers through both channels, by the time they were sent",
    )
    return [
        ChartPanel(title=titles[0], y_label="fast channel, MB/s", lines=rates, spans=spans, log_y=True),
        ChartPanel(title=titles[1], y_label="time to pass, ms", lines=barriers, spans=spans, log_y=True),
    ]


# response --------------------------------------------------------------------------------------------------------

_SLOW_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class ResponseOutcome:
    """The result of one run: a fast, a slow and a fast phase, all of one length."""

    phase_s: float
    size: int  # bytes of a buffer
    ceiling_bytes: int
    produced: Stamps
    consumed: Stamps

    def follows_ms(self, phase: int) -> float:
        """Return how long after the start of a phase the producer's rate had followed the consumer's.

        The consumer's rate is that of the phase's second half.
        """
        start_s, end_s = phase * self.phase_s, (phase + 1) * self.phase_s
        target = self.consumed.rate((start_s + end_s) / 2, end_s)
        return 1000 * self.produced.follows_after_s(target, start_s, end_s)

    def most_mib(self) -> float:
        """Return the most MiB that were in flight."""
        return self.size * int(self.produced.in_flight(self.consumed).max(initial=0)) / MIB

    def ceiling_mib(self) -> float:
        """Return the most MiB that the settings allow."""
        return self.ceiling_bytes / MIB


def response(pair: ProcessPair, phase_s: float) -> Contest[ResponseOutcome]:
    """Return the contest of `response`."""

    def cases() -> Iterator[Case[ResponseOutcome]]:
        for run in (mode.value for mode in FlowControl):
            for phase, what in ((1, "drop"), (2, "return")):
                figure = partial(ResponseOutcome.follows_ms, phase=phase)
                yield Case(f"response, {run}, to the {what}", "ms", run, figure)
            yield Case(
                f"response, {run}, most in flight",
                "MiB",
                run,
                ResponseOutcome.most_mib,
                against="its ceiling",
                baseline=(run,),
                baseline_figure=ResponseOutcome.ceiling_mib,
                goal=1.0,
                at_most=True,
            )

    runs = {mode.value: partial(_run_response, pair, mode, phase_s) for mode in FlowControl}
    return Contest(name="response", runs=runs, cases=list(cases()), panels=_response_panels)


def _run_response(pair: ProcessPair, mode: FlowControl, phase_s: float) -> ResponseOutcome:
    settings = Settings(network=NetworkSettings(flow_control=mode))
    (start_ns, produced_ns), consumed_ns = run_workers(
        pair,
        partial(_produce_for, seconds=3 * phase_s),
        partial(_consume_by_phase, phase_s=phase_s),
        settings=settings,
        limit_s=30 * phase_s,
    )
    stamps = Stamps(produced_ns, start_ns), Stamps(consumed_ns, start_ns)
    return ResponseOutcome(phase_s, settings.memory.segment_size, ceiling_of(settings).bytes, *stamps)


def _produce_for(parent: Parent, end: WorkerEnd, *, seconds: float) -> tuple[int, array[int]]:
    """Write full buffers for a time; return its start, and when each buffer was written."""
    stamps_ns, now_ns = array("q"), time.monotonic_ns
    with producing(parent, end) as (_, (partition,)):
        size = end.settings.memory.segment_size
        start_ns = now_ns() + _LEAD_NS
        parent.send(start_ns)
        _sleep_until(start_ns)
        end_ns = start_ns + round(seconds * 1e9)
        buffer = None
        while True:
            buffer = partition.next_buffer(0, buffer, mid_record=False)
            assert buffer is not None, "next_buffer blocks until there is one"
            # Before `publish`: after it, the consumer may have read the buffer.
            stamps_ns.append(written_ns := now_ns())
            buffer.publish(size)
            if written_ns >= end_ns:
                break
        partition.end_buffer(0, buffer)
        partition.finish()
    return start_ns, stamps_ns


def _consume_by_phase(parent: Parent, end: WorkerEnd, *, phase_s: float) -> array[int]:
    """Read everything, slowly in the second phase; return when each buffer was done."""
    stamps_ns, now_ns = array("q"), time.monotonic_ns
    with consuming(parent, end) as (_, (gate,)):
        start_ns = parent.receive(START_S)
        half_ns, slow_ns, full_ns = (start_ns + round(phases * phase_s * 1e9) for phases in (0.5, 1.0, 2.0))
        pause_ns, due_ns = 0, 0
        taken = gate.read()
        while taken is not None:
            if taken.event is None:
                came_ns = now_ns()
                if slow_ns <= came_ns < full_ns:
                    if not pause_ns:
                        fast = len(stamps_ns) - bisect_left(stamps_ns, half_ns)
                        pause_ns, due_ns = round((slow_ns - half_ns) / max(1, fast) / _SLOW_SHARE), slow_ns
                    due_ns = min(due_ns + pause_ns, full_ns)
                    time.sleep(max(0, due_ns - came_ns) / 1e9)
                    came_ns = now_ns()
                # Before it is recycled: after that, the producer may have filled it again.
                stamps_ns.append(came_ns)
            taken = gate.read(done=taken)
    return stamps_ns


def _response_panels(found: Mapping[str, Sequence[ResponseOutcome]]) -> list[ChartPanel]:
    """Return the charts of the last run of each mode."""
    panels = []
    for mode, outcomes in found.items():
        last = outcomes[-1]
        end_s, size = 3 * last.phase_s, last.size
        spans = [Span(last.phase_s, 2 * last.phase_s, "consumer at 10 %", shaded=True)]
        rates = []
        for name, stamps in (("produced", last.produced), ("consumed", last.consumed)):
            x, y = stamps.rates(0, end_s, min(_CHART_BIN_S, last.phase_s / 4))
            rates.append(Line(name, x, [rate * size / 1e6 for rate in y]))
        times, _ = last.produced.rates(0, end_s)
        flying = [int(buffers) * size / MIB for buffers in last.produced.in_flight(last.consumed, times)]
        ceiling = Line("ceiling", [0, end_s], [last.ceiling_mib()] * 2, LineKind.LIMIT)
        title = f"A consumer that drops to 10 % and returns, {mode}"
        panels += [
            ChartPanel(title=title, y_label="MB/s", lines=rates, spans=spans),
            ChartPanel(
                title=f"Written and not yet read, {mode}",
                y_label="MiB",
                lines=[Line("in flight", times, flying), ceiling],
                spans=spans,
            ),
        ]
    return panels
