"""`neighbour` (B4): a fast and a slow consumer behind one connection, with credit and with TCP's own flow control.

Called in the driver. Each way of flow control has a job of its own: two producers in one worker, their consumers in
another. The fast pair runs all the time; the slow pair only in every other phase, and its consumer takes its time.
Speeds come from the job's own meters; barriers are stamped records that travel in order with all others (see `flow`).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.config import FlowControl
from headgate.experiments.figures import Speeds, percentile, speeds_of
from headgate.experiments.flow import Consumer, Note, Notebook, Producer
from headgate.experiments.running import Verdict, await_run, history, meter_settings, vertex_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headgate.coordinator import Job
    from headgate.experiments.running import Where
    from headgate.experiments.schedule import Schedule

__all__ = ["FAST", "MODES", "SLOW", "Barriers", "Neighbour", "NeighbourRun", "start_neighbour", "verdict_of"]

FAST: Final = "fast consumer"
"""The consumer that the experiment is about."""
SLOW: Final = "slow consumer"
"""Its neighbour."""
MODES: Final = (FlowControl.CREDIT, FlowControl.TCP)
"""Ways of flow control, in the order in which they are run."""

_PAUSE_S: Final = 0.02  # what the slow consumer takes for a batch of 500 records
_SETTLED: Final = 0.25  # the share of a phase that does not count: buffers fill or drain first
_KEEPS: Final = 0.9  # what the fast one keeps of its speed, with credit
_DRAGGED: Final = 0.5  # and without: at most this


@dataclass(frozen=True, slots=True)
class Barriers:
    """How long barriers took from a source to its consumer, in milliseconds; None: none was sent.

    >>> Barriers.of([1.0, 2.0, 9.0])
    Barriers(count=3, p50_ms=2.0, max_ms=9.0)
    """

    count: int
    p50_ms: float | None
    max_ms: float | None

    @classmethod
    def of(cls, took_ms: Sequence[float]) -> Barriers:
        """Of the time that each of them took."""
        return cls(len(took_ms), percentile(took_ms, 0.5), max(took_ms, default=None))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"count": self.count, "p50_ms": self.p50_ms, "max_ms": self.max_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What the job of one way of flow control has found. Speeds are records a second.

    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0)
    >>> speeds = Speeds(0.0, 1.0, (100.0, 100.0, 95.0, 100.0))
    >>> found = Neighbour(mode=FlowControl.CREDIT, schedule=schedule, record_bytes=100.0, fast=speeds, slow=speeds,
    ...     took={})
    >>> found.barriers(FAST, beside=True).count
    0
    """

    mode: FlowControl
    schedule: Schedule
    record_bytes: float
    fast: Speeds
    slow: Speeds
    took: Mapping[str, Sequence[tuple[float, float]]]  # of each consumer's barriers: when sent, in s; how long, in ms

    def alone_per_s(self) -> float | None:
        """The fast one's speed without a neighbour."""
        return self._mean(self.fast, beside=False)

    def beside_per_s(self) -> float | None:
        """Its speed beside the slow one."""
        return self._mean(self.fast, beside=True)

    def slow_per_s(self) -> float | None:
        """The slow one's own speed."""
        return self._mean(self.slow, beside=True)

    def keeps(self) -> float | None:
        """What the fast one keeps of its speed."""
        alone, beside = self.alone_per_s(), self.beside_per_s()
        return None if not alone or beside is None else beside / alone

    def barriers(self, consumer: str, *, beside: bool) -> Barriers:
        """Those that were sent in such phases.

        Beside a slow one, in the first half, for later ones come when it is not slow any more; alone, in the second,
        when nothing is left of it.
        """
        half_s = self.schedule.phase_s / 2
        starts_s = [begin_s if beside else end_s - half_s for begin_s, end_s in self._phases(beside=beside)]
        took = self.took.get(consumer, ())
        return Barriers.of([ms for sent_s, ms in took if any(0 <= sent_s - start_s < half_s for start_s in starts_s)])

    def _phases(self, *, beside: bool) -> list[tuple[float, float]]:
        schedule = self.schedule
        return [schedule.bounds(number) for number, one in enumerate(schedule.phases) if one.neighbour is beside]

    def _mean(self, speeds: Speeds, *, beside: bool) -> float | None:
        skip_s = _SETTLED * self.schedule.phase_s
        means = [speeds.mean(begin_s + skip_s, end_s) for begin_s, end_s in self._phases(beside=beside)]
        known = [mean for mean in means if mean is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "flow_control": self.mode.value,
            "alone_per_s": self.alone_per_s(),
            "beside_per_s": self.beside_per_s(),
            "slow_per_s": self.slow_per_s(),
            "keeps": self.keeps(),
            "barriers": {
                f"{name}, {'beside' if beside else 'alone'}": self.barriers(name, beside=beside).to_dict()
                for name, beside in ((FAST, False), (FAST, True), (SLOW, True))
            },
        }


def verdict_of(found: Mapping[FlowControl, Neighbour]) -> Verdict:
    """All of it in one line: with credit the fast one keeps its speed, with tcp it does not.

    >>> verdict_of({}).passed
    False
    """
    keeps = {mode: found[mode].keeps() if mode in found else None for mode in MODES}
    parts, passed = [], True
    for mode, kept in keeps.items():
        if kept is None:
            parts.append(f"with {mode} nothing is known")
            passed = False
            continue
        credited = mode is FlowControl.CREDIT
        fine = kept >= _KEEPS if credited else kept <= _DRAGGED
        goal = f"at least {100 * _KEEPS:.0f}" if credited else f"dragged down, at most {100 * _DRAGGED:.0f}"
        barrier = found[mode].barriers(FAST, beside=True).p50_ms
        took = "none came" if barrier is None else f"a barrier takes {barrier:,.1f} ms"
        parts.append(f"with {mode} {100 * kept:.0f} % ({'' if fine else 'not '}{goal} %), {took}")
        passed = passed and fine
    return Verdict(passed, f"beside a slow neighbour the fast consumer keeps {'; '.join(parts)}")


class NeighbourRun:
    """The job of one way of flow control, under way.

    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0)
    >>> run = NeighbourRun(None, Notebook(), schedule, FlowControl.TCP)  # made by `start_neighbour`
    >>> run.now_s(5) is None
    True
    """

    def __init__(self, job: Job, book: Notebook, schedule: Schedule, mode: FlowControl) -> None:
        self.job = job
        self.schedule = schedule
        self.mode = mode
        self._book = book

    def wait(self, tick: Callable[[], object]) -> None:
        """Until the schedule is over; `tick` is called now and then."""
        await_run(self.job, self.schedule, lambda: self._book.last(FAST), tick)

    def now_s(self, now_ns: int) -> float | None:
        """Seconds since its start; None: it has not begun."""
        note = self._book.last(FAST)
        return None if note is None else (now_ns - note.start_ns) / 1e9

    def result(self) -> Neighbour:
        """What is known so far."""
        timeline, first = history(self.job, self.schedule), self._book.last(FAST)
        start_ns = timeline.start_ms * 1_000_000 if first is None else first.start_ns
        fast, slow = (vertex_named(self.job, name) for name in (FAST, SLOW))
        return Neighbour(
            mode=self.mode,
            schedule=self.schedule,
            record_bytes=fast.bytes_in / fast.records_in if fast.records_in else 0.0,
            fast=speeds_of(timeline, fast.id, "records_in", start_ns / 1e6),
            slow=speeds_of(timeline, slow.id, "records_in", start_ns / 1e6),
            took={
                name: [((one.sent_ns - start_ns) / 1e9, (one.came_ns - one.sent_ns) / 1e6) for one in notes]
                for name in (FAST, SLOW)
                if (notes := self._book.notes(name))
            },
        )


def start_neighbour(
    where: Where, schedule: Schedule, mode: FlowControl, settings: Mapping[str, object] | None = None
) -> NeighbourRun:
    """Start the job of one way of flow control.

    >>> import headgate as hg
    >>> from headgate.experiments.running import Where
    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> where = Where("threads", lambda settings: hg.environment(local=True, parallelism=1, settings=settings))
    >>> run = start_neighbour(where, Schedule(neighbour_phases(1), phase_s=0.1, lead_s=0.1), FlowControl.CREDIT)
    >>> run.wait(lambda: None)
    >>> run.result().mode
    <FlowControl.CREDIT: 'credit'>
    """
    env = where.environment({**(settings or {}), **meter_settings(schedule), "network.flow_control": mode.value})
    book, run = Notebook(), secrets.token_hex(8)
    told = []
    for name, neighbour in ((FAST, False), (SLOW, True)):
        made = env.from_source(Producer(run, schedule, neighbour=neighbour))
        made.name(f"{'slow' if neighbour else 'fast'} producer").slot_sharing_group("producing")
        consumer = Consumer(name, schedule, pause_s=_PAUSE_S if neighbour else 0.0)
        notes = made.map_batches(consumer, output_type=Note)
        told.append(notes.name(name).slot_sharing_group("consuming"))
    told[0].union(told[1]).sink_to(hg.CollectSink(book)).name("notes")
    return NeighbourRun(env.execute_async(f"neighbour, {mode}"), book, schedule, mode)
