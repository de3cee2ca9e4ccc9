"""`follow` (B3): a producer, an exchange, a consumer; who is slowed by turns, and does the other follow?

Called in the driver. Speeds come from the job's own meters, what is in flight from the stamps of its records
(see `flow`); what the figures mean is decided here, from plain data.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.experiments.ceiling import Ceiling, ceiling_of
from headgate.experiments.figures import Speeds, follows_after_s, line_of, percentile, speeds_of
from headgate.experiments.flow import BATCH, Consumer, Note, Notebook, Producer
from headgate.experiments.running import Verdict, await_run, history, meter_settings, vertex_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headgate.coordinator import Job
    from headgate.experiments.running import Where
    from headgate.experiments.schedule import Phase, Schedule
    from headgate.observe.timeline import Timeline

__all__ = ["Follow", "FollowRun", "PhaseFigures", "Sample", "result_of", "samples_of", "start_follow"]

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"

_RATIO: Final = 0.05  # by how much the two speeds of a phase may differ
_LEAST_SHARE: Final = 0.5  # of the speed that a phase asks for: machines are not steady
_MOST_SHARE: Final = 1.1  # likewise, where somebody is throttled
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """Both speeds in a stretch of time, as shares of full speed; None: not known.

    >>> Sample(0.0, 5.0, 0.6, 0.6).producer
    0.6
    """

    begin_s: float
    end_s: float
    producer: float | None
    consumer: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """One phase. Speeds are records a second.

    >>> slowed = PhaseFigures(
    ...     name="consumer 30 %", begin_s=12.0, end_s=22.0, expected=0.3, throttled=True, full_per_s=1e6,
    ...     producer_per_s=303e3, consumer_per_s=300e3, followed_after_s=0.2, in_flight_bytes=800_000,
    ... )
    >>> round(slowed.ratio, 3), slowed.share, slowed.problems()
    (1.01, 0.3, [])
    """

    name: str
    begin_s: float
    end_s: float
    expected: float  # share of full speed
    throttled: bool
    full_per_s: float
    producer_per_s: float | None
    consumer_per_s: float | None
    followed_after_s: float | None  # None: it did not
    in_flight_bytes: int | None  # the most; None: no stamp came
    latency_p50_ms: float | None = None  # of stamped records, from source to consumer
    latency_max_ms: float | None = None

    @property
    def ratio(self) -> float | None:
        """The producer's speed to the consumer's."""
        if self.producer_per_s is None or not self.consumer_per_s:
            return None
        return self.producer_per_s / self.consumer_per_s

    @property
    def share(self) -> float | None:
        """The consumer's speed as a share of full speed."""
        return None if self.consumer_per_s is None or not self.full_per_s else self.consumer_per_s / self.full_per_s

    def problems(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.ratio is None:
            found.append("one of the two stood still")
        elif abs(self.ratio - 1) > _RATIO:
            found.append(f"the producer gave out {self.ratio:.2f} of what the consumer took")
        if self.followed_after_s is None:
            found.append("the producer did not follow")
        if self.share is not None and (
            self.share < _LEAST_SHARE * self.expected or (self.throttled and self.share > _MOST_SHARE * self.expected)
        ):
            found.append(f"{_percent(self.share)} of full speed instead of {_percent(self.expected)} (a busy machine?)")
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "begin_s": self.begin_s,
            "end_s": self.end_s,
            "expected_share": self.expected,
            "share": self.share,
            "producer_per_s": self.producer_per_s,
            "consumer_per_s": self.consumer_per_s,
            "producer_to_consumer": self.ratio,
            "followed_after_s": self.followed_after_s,
            "in_flight_bytes": self.in_flight_bytes,
            "latency_p50_ms": self.latency_p50_ms,
            "latency_max_ms": self.latency_max_ms,
            "problems": self.problems(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """What a run has found.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> nothing = Speeds(0.0, 0.1, ())
    >>> found = Follow(
    ...     schedule=Schedule(FOLLOW, phase_s=1.0, lead_s=1.0), full_per_s=0.0, record_bytes=102.0, phases=(),
    ...     ceiling=ceiling_of(Settings(), 51_000), producer=nothing, consumer=nothing, held=nothing, idle=nothing,
    ...     in_flight=(),
    ... )
    >>> str(found.verdict())
    'FAIL: no record came in the time in which full speed is measured'
    """

    schedule: Schedule
    full_per_s: float
    record_bytes: float  # as they are on the wire
    phases: tuple[PhaseFigures, ...]
    ceiling: Ceiling
    producer: Speeds
    consumer: Speeds
    held: Speeds  # shares of its time that the producer was back-pressured
    idle: Speeds  # shares of its time that the consumer waited for input
    in_flight: tuple[tuple[float, int], ...]  # seconds, bytes

    def verdict(self) -> Verdict:
        """All of it in one line."""
        if not self.full_per_s:
            return Verdict(False, "no record came in the time in which full speed is measured")
        found = [f"{phase.name}: {', '.join(problems)}" for phase in self.phases if (problems := phase.problems())]
        most = max((phase.in_flight_bytes or 0 for phase in self.phases), default=0)
        ceiling = self.ceiling.bytes
        if most > ceiling:
            found.append(f"{most / _KIB:.0f} KiB were in flight, and the ceiling is {ceiling / _KIB:.0f} KiB")
        if found:
            return Verdict(False, "; ".join(found))
        apart = max((abs(phase.ratio - 1) for phase in self.phases if phase.ratio is not None), default=0.0)
        after_s = max((phase.followed_after_s or 0.0 for phase in self.phases), default=0.0)
        return Verdict(
            True,
            f"the producer followed in all {len(self.phases)} phases, after {after_s:.1f} s at most; speeds within "
            f"{100 * apart:.1f} % of each other; at most {most / _KIB:.0f} KiB in flight, "
            f"{_percent(most / ceiling)} of the ceiling",
        )

    def samples(self, interval_s: float) -> list[Sample]:
        """Both speeds, sampled so often."""
        return samples_of(self.producer, self.consumer, self.schedule.end_s, interval_s, self.full_per_s)


def samples_of(producer: Speeds, consumer: Speeds, end_s: float, interval_s: float, full_per_s: float) -> list[Sample]:
    """Mean speeds of stretches of one length, as shares of full speed; what is left at the end is the last.

    >>> speeds = Speeds(0.0, 0.1, (5.0,) * 10)
    >>> [(one.begin_s, one.end_s, one.producer) for one in samples_of(speeds, speeds, 1.0, 0.6, 10.0)]
    [(0.0, 0.6, 0.5), (0.6, 1.0, 0.5)]
    """
    assert interval_s > 0, "samples are apart"
    found, number = [], 0
    while (begin_s := number * interval_s) < end_s - 1e-6:
        stop_s = min(begin_s + interval_s, end_s)
        means = (one.mean(begin_s, stop_s) for one in (producer, consumer))
        shares = [None if mean is None or not full_per_s else mean / full_per_s for mean in means]
        found.append(Sample(round(begin_s, 6), round(stop_s, 6), *shares))
        number += 1
    return found


class FollowRun:
    """A run under way: what can be seen of it, and in the end its figures.

    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> run = FollowRun(None, Notebook(), Schedule(FOLLOW, phase_s=10.0, lead_s=2.0), None)  # made by `start_follow`
    >>> run.now_s(5) is None
    True
    """

    def __init__(self, job: Job, book: Notebook, schedule: Schedule, settings: Any) -> None:
        self.job = job
        self.schedule = schedule
        self._book = book
        self._settings = settings

    def wait(self, tick: Callable[[], object]) -> None:
        """Until the schedule is over; `tick` is called now and then."""
        await_run(self.job, self.schedule, lambda: self._book.last(CONSUMER), tick)

    def now_s(self, now_ns: int) -> float | None:
        """Seconds since its start; None: it has not begun."""
        note = self._book.last(CONSUMER)
        return None if note is None else (now_ns - note.start_ns) / 1e9

    def result(self) -> Follow:
        """What is known so far."""
        job, notes, schedule = self.job, self._book.notes(CONSUMER), self.schedule
        source = vertex_named(job, PRODUCER)
        record_bytes = source.bytes_out / source.records_out if source.records_out else 0.0
        ids = (source.id, vertex_named(job, CONSUMER).id)
        return result_of(
            notes,
            history(job, schedule),
            ids=ids,
            schedule=schedule,
            settings=self._settings,
            record_bytes=record_bytes,
        )


def result_of(
    notes: Sequence[Note],
    timeline: Timeline,
    *,
    ids: tuple[int, int],
    schedule: Schedule,
    settings: Any,
    record_bytes: float,
) -> Follow:
    """The figures of a run, from what its consumer has told and what its job's meters have kept of two vertices.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> found.phases[0].problems()
    ['one of the two stood still', 'the producer did not follow']
    """
    start_ns = notes[0].start_ns if notes else timeline.start_ms * 1_000_000
    full_per_s = next((note.full_per_s for note in notes if note.full_per_s), 0.0)
    start_ms = start_ns / 1e6
    producer = speeds_of(timeline, ids[0], "records_out", start_ms)
    consumer = speeds_of(timeline, ids[1], "records_in", start_ms)
    in_flight = tuple(((note.sent_ns - start_ns) / 1e9, round(note.in_flight * record_bytes)) for note in notes)
    took = [((note.sent_ns - start_ns) / 1e9, (note.came_ns - note.sent_ns) / 1e6) for note in notes]
    return Follow(
        schedule=schedule,
        full_per_s=full_per_s,
        record_bytes=record_bytes,
        phases=tuple(
            _phase(
                phase,
                schedule.bounds(number),
                full_per_s,
                producer=producer,
                consumer=consumer,
                in_flight=in_flight,
                took=took,
            )
            for number, phase in enumerate(schedule.phases)
        ),
        ceiling=ceiling_of(settings, round(BATCH * record_bytes)),
        producer=producer,
        consumer=consumer,
        held=_shares(timeline, ids[0], "back_pressured", producer),
        idle=_shares(timeline, ids[1], "idle", consumer),
        in_flight=in_flight,
    )


def _phase(
    phase: Phase,
    bounds: tuple[float, float],
    full_per_s: float,
    *,
    producer: Speeds,
    consumer: Speeds,
    in_flight: Sequence[tuple[float, int]],
    took: Sequence[tuple[float, float]],
) -> PhaseFigures:
    begin_s, end_s = bounds
    own_ms = [ms for at_s, ms in took if begin_s <= at_s < end_s]
    return PhaseFigures(
        name=phase.name,
        begin_s=begin_s,
        end_s=end_s,
        expected=phase.expected,
        throttled=phase.expected < 1,
        full_per_s=full_per_s,
        producer_per_s=producer.mean(begin_s, end_s),
        consumer_per_s=consumer.mean(begin_s, end_s),
        followed_after_s=follows_after_s(consumer, producer, begin_s, end_s),
        in_flight_bytes=max((size for at_s, size in in_flight if begin_s <= at_s < end_s), default=None),
        latency_p50_ms=percentile(own_ms, 0.5),
        latency_max_ms=max(own_ms, default=None),
    )


def _shares(timeline: Timeline, vertex: int, column: str, like: Speeds) -> Speeds:
    """Shares of its time that a vertex spent so."""
    line = line_of(timeline, vertex)
    permille: tuple[int, ...] = () if line is None else getattr(line, column)
    return Speeds(like.start_s, like.step_s, tuple(None if one < 0 else one / 1000 for one in permille))


def start_follow(where: Where, schedule: Schedule, settings: Mapping[str, object] | None = None) -> FollowRun:
    """Start the job: a producer in one worker, its consumer in another, what that tells in the driver.

    >>> import headgate as hg
    >>> from headgate.experiments.running import Where
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> where = Where("threads", lambda settings: hg.environment(local=True, parallelism=1, settings=settings))
    >>> run = start_follow(where, Schedule(FOLLOW, phase_s=0.1, lead_s=0.1))
    >>> run.wait(lambda: None)
    >>> [phase.name for phase in run.result().phases][:2]
    ['producer 60 %', 'consumer 30 %']
    """
    env = where.environment({**(settings or {}), **meter_settings(schedule)})
    book = Notebook()
    made = env.from_source(Producer(secrets.token_hex(8), schedule)).name(PRODUCER).slot_sharing_group("producing")
    notes = made.map_batches(Consumer(CONSUMER, schedule), output_type=Note)
    notes.name(CONSUMER).slot_sharing_group("consuming")
    notes.sink_to(hg.CollectSink(book)).name("notes")
    resolved = env.settings
    return FollowRun(env.execute_async("follow"), book, schedule, resolved)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
