"""One fast and one slow consumer on one connection, with flow control by credit and by TCP.

A contest of the wire suite (behaviour B4). Two tasks of one process write to two channels of two tasks in another, as
fast as they can. In the first and the last phase only the fast channel carries anything; in between the other's
consumer takes one buffer every few milliseconds. Barriers go through both channels all the time. For comparison, the
neighbours are two threads that only wake as often: what is lost then is lost to threads, not to a channel.

Both processes keep to one schedule by the machine's one monotonic clock; phases are left out at their beginnings when
rates are taken, for a connection's buffers must fill or drain first.
"""

from __future__ import annotations

import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.bench._children import START_S
from headgate.bench._figures import Case, Contest
from headgate.bench._ping import percentile
from headgate.bench._plot import Panel, Series
from headgate.bench._series import Stamps, rate_between, rates
from headgate.bench._wire_ends import consuming, producing
from headgate.config import FlowControl, NetworkSettings, Settings
from headgate.record import CheckpointBarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headgate.bench._children import Parent
    from headgate.bench._wire_ends import Ends, Place
    from headgate.buffer import Buffer
    from headgate.input import InputGate
    from headgate.output import ResultPartition

__all__ = ["Phases", "neighbours"]

_FAST, _SLOW = range(2)
_NAMES: Final = ("fast", "slow")
_IDLE: Final = "beside threads that only wake"
_ROUNDS: Final = 3
_PAUSE_S: Final = 0.005  # what the slow consumer takes for one buffer
_BARRIER_NS: Final = 20_000_000
_LEAD_NS: Final = 30_000_000  # from the schedule's making to its start: it has to reach the other process
_SETTLED: Final = 0.25  # the share of a phase that does not count
_CHART_BIN_S: Final = 0.05


class Phases(NamedTuple):
    """How long each phase takes, in seconds."""

    alone_s: float
    slow_s: float

    @property
    def slow_from_s(self) -> float:
        """When the neighbour begins, from the start."""
        return self.alone_s

    @property
    def slow_until_s(self) -> float:
        """When it ends."""
        return self.alone_s + self.slow_s

    @property
    def end_s(self) -> float:
        """When all ends."""
        return 2 * self.alone_s + self.slow_s


class _Read(NamedTuple):
    """What a reading task has to say: when it took each buffer, and each barrier, by its number."""

    stamps_ns: array[int]
    barriers_ns: dict[int, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run found. Rates in bytes/s; barriers as (when sent in s, how long it took in ms), both by channel."""

    phases: Phases
    size: int
    fast: Stamps
    slow: Stamps
    barriers: tuple[list[tuple[float, float]], list[tuple[float, float]]]

    def alone(self) -> float:
        """The fast channel's rate without a neighbour, before and after."""
        phases = self.phases
        skip_s = _SETTLED * phases.alone_s
        before = self._rate(self.fast, skip_s, phases.slow_from_s)
        after = self._rate(self.fast, phases.slow_until_s + skip_s, phases.end_s)
        return (before + after) / 2

    def beside(self) -> float:
        """Its rate beside the slow one."""
        return self._while_slow(self.fast)

    def neighbour(self) -> float:
        """The slow one's rate."""
        return self._while_slow(self.slow)

    def _while_slow(self, stamps: Stamps) -> float:
        phases = self.phases
        return self._rate(stamps, phases.slow_from_s + _SETTLED * phases.slow_s, phases.slow_until_s)

    def _rate(self, stamps: Stamps, start_s: float, end_s: float) -> float:
        # A stall may take all of a short time. It counts as one buffer then: nothing can be compared with nothing.
        return self.size * max(rate_between(stamps, start_s, end_s), 1 / (end_s - start_s))

    def barrier_ms(self, channel: int, q: float) -> float:
        """A percentile of the times of barriers sent in the first half of the slow phase: most pass while it lasts."""
        phases = self.phases
        half_s = phases.slow_from_s + phases.slow_s / 2
        sent = [one for one in self.barriers[channel] if one[0] >= phases.slow_from_s]
        # A task that was held back for all of that time has sent its next one after it.
        return percentile([ms for sent_s, ms in sent if sent_s < half_s] or [sent[0][1]], q)


def neighbours(ends: Ends, phases: Phases) -> Iterator[Contest[Outcome]]:
    """The contest of the case."""
    yield Contest(
        name="slow-neighbour",
        rounds=_ROUNDS,
        runs={
            **{mode.value: partial(_run, ends, mode, phases) for mode in FlowControl},
            _IDLE: partial(_run, ends, FlowControl.CREDIT, phases, idle=True),
        },
        cases=list(_cases()),
        panels=_panels,
    )


def _cases() -> Iterator[Case[Outcome]]:
    for mode in (FlowControl.CREDIT, FlowControl.TCP):
        name, credit = f"slow-neighbour, {mode.value}", mode is FlowControl.CREDIT
        yield _fast(f"{name}, fast channel", mode.value, goal=0.9 if credit else None)
        yield Case(
            case=f"{name}, fast channel beside the slow one",
            unit="MB/s",
            run=mode.value,
            figure=lambda found: found.beside() / 1e6,
            against="the slow channel",
            baseline=(mode.value,),
            baseline_figure=lambda found: found.neighbour() / 1e6,
            goal=None if credit else 2.0,
            at_most=True,
        )
        for channel, which in enumerate(_NAMES):
            for q, what in ((50, "p50"), (100, "max")):
                figure: Callable[[Outcome], float] = partial(Outcome.barrier_ms, channel=channel, q=q)
                yield Case(case=f"{name}, barrier, {which} channel, {what}", unit="ms", run=mode.value, figure=figure)
    yield _fast(f"slow-neighbour, {_IDLE}, fast channel", _IDLE, goal=None)


def _fast(case: str, run: str, *, goal: float | None) -> Case[Outcome]:
    return Case(
        case=case,
        unit="MB/s",
        run=run,
        figure=lambda found: found.beside() / 1e6,
        against="itself alone",
        baseline=(run,),
        baseline_figure=lambda found: found.alone() / 1e6,
        paired=True,
        goal=goal,
    )


def _run(ends: Ends, mode: FlowControl, phases: Phases, *, idle: bool = False) -> Outcome:
    settings = Settings(network=NetworkSettings(flow_control=mode))
    (start_ns, written), read = ends.run(
        partial(_produce, phases=phases, idle=idle),
        partial(_consume, phases=phases, idle=idle),
        settings=settings,
        channels=2,
        limit_s=10 * phases.end_s,
    )
    fast, slow = (Stamps(one.stamps_ns, start_ns) for one in read)
    barriers = [
        [
            ((sent_ns - start_ns) / 1e9, (came.barriers_ns[number] - sent_ns) / 1e6)
            for number, sent_ns in enumerate(sent)
        ]
        for sent, came in zip(written, read, strict=True)
    ]
    return Outcome(phases, settings.memory.segment_size, fast, slow, (barriers[_FAST], barriers[_SLOW]))


# In the two processes ------------------------------------------------------------------------------------


def _produce(parent: Parent, place: Place, *, phases: Phases, idle: bool) -> tuple[int, list[list[int]]]:
    """Write from two threads; when the first phase began, and when each channel's barriers were sent."""
    with producing(parent, place, partitions=2) as (_, (fast, slow)), _tasks(place) as threads:
        start_ns = time.monotonic_ns() + _LEAD_NS
        parent.send(start_ns)
        moment = partial(_after, start_ns)
        tasks = [
            threads.submit(_write, fast, moment(0.0), moment(phases.end_s)),
            threads.submit(
                _write_late if idle else _write, slow, moment(phases.slow_from_s), moment(phases.slow_until_s)
            ),
        ]
        return start_ns, [task.result() for task in tasks]


def _tasks(place: Place) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, initializer=place.slices().begin)


def _write(partition: ResultPartition, start_ns: int, end_ns: int) -> list[int]:
    """Write full buffers for a time, with barriers in between; when these were sent."""
    size, barriers_ns, next_barrier_ns = partition.pool.segment_size, [], start_ns
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    buffer: Buffer | None = None
    now_ns = start_ns
    while now_ns < end_ns:
        now_ns = time.monotonic_ns()
        if now_ns >= next_barrier_ns:  # also in the last turn: who was held back all the time has sent one
            if buffer is not None:
                partition.end_buffer(0, buffer)
                buffer = None
            barriers_ns.append(time.monotonic_ns())
            partition.add_event(CheckpointBarrier(checkpoint=len(barriers_ns) - 1, timestamp_ms=0))
            next_barrier_ns = now_ns + _BARRIER_NS
        buffer = partition.next_buffer(0, buffer, mid_record=False)
        assert buffer is not None, "it was waited for"
        buffer.publish(size)
    assert buffer is not None, "there was time for one"
    partition.end_buffer(0, buffer)
    partition.finish()
    return barriers_ns


def _write_late(partition: ResultPartition, start_ns: int, end_ns: int) -> list[int]:
    """Wake now and then for that time; then write one buffer."""
    _only_wake(start_ns, end_ns)
    return _write(partition, end_ns, end_ns + 1)


def _only_wake(start_ns: int, end_ns: int) -> None:
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    while time.monotonic_ns() < end_ns:
        time.sleep(_PAUSE_S)


def _consume(parent: Parent, place: Place, *, phases: Phases, idle: bool) -> list[_Read]:
    """Read with two threads, one of which is slow; what each of them got, and when."""
    with consuming(parent, place, gates=2) as (_, (fast, slow)), _tasks(place) as threads:
        start_ns = parent.receive(START_S)
        slow_from_ns, slow_until_ns = (_after(start_ns, at_s) for at_s in (phases.slow_from_s, phases.slow_until_s))
        tasks = [threads.submit(_read, fast, 0)]
        if idle:
            threads.submit(_only_wake, slow_from_ns, slow_until_ns)
            tasks.append(threads.submit(_read, slow, 0))
        else:
            tasks.append(threads.submit(_read, slow, slow_until_ns))
        return [task.result() for task in tasks]


def _read(gate: InputGate, slow_until_ns: int) -> _Read:
    """Read everything, until a time with a pause for every buffer."""
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
    return _Read(stamps_ns, barriers_ns)


def _after(start_ns: int, seconds: float) -> int:
    return start_ns + round(seconds * 1e9)


# The chart -----------------------------------------------------------------------------------------------


def _panels(found: Mapping[str, Sequence[Outcome]]) -> list[Panel]:
    """The last run of each mode: the fast channel's rate, and how long barriers took."""
    last = {mode.value: found[mode.value][-1] for mode in FlowControl}
    phases = next(iter(last.values())).phases
    speed, barriers = [], []
    for mode, outcome in last.items():
        bin_s = min(_CHART_BIN_S, phases.alone_s / 4)
        x, y = rates(outcome.fast, phases.end_s, bin_s)
        # A logarithm has no place for nothing: half a buffer is drawn instead.
        speed.append(Series(name=mode, x=x, y=[max(rate, 0.5 / bin_s) * outcome.size / 1e6 for rate in y]))
        for channel, which in enumerate(_NAMES):
            sent_s, took_ms = zip(*outcome.barriers[channel], strict=True)
            barriers.append(Series(name=f"{mode}, {which} channel", x=sent_s, y=took_ms, points=True))
    return [
        Panel(
            title=title,
            x_label="seconds",
            y_label=label,
            series=series,
            shaded=[(phases.slow_from_s, phases.slow_until_s)],
            shaded_name="slow neighbour",
            log_y=True,
        )
        for title, label, series in (
            ("A fast channel beside a slow one on the same connection", "fast channel, MB/s", speed),
            ("Barriers through both channels, by the time they were sent", "time to pass, ms", barriers),
        )
    ]
