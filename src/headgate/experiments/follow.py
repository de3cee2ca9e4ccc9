"""The experiment `follow` (B3): a producer, an exchange, a consumer; one is slowed in turn, and the other must follow.

Speeds come from the job's own meters, the bytes in flight from the stamps of its records (see `tasks`).
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.bench.ceiling import Ceiling, ceiling_of
from headgate.bench.charts import ChartPanel, Line, LineKind
from headgate.bench.harness import percentile
from headgate.config.units import KIB
from headgate.experiments.figures import Speeds, follows_after_s, speeds_of
from headgate.experiments.report import ExperimentReport, line_of, points_of, spans_of, steps_json
from headgate.experiments.running import ExperimentRun, ExperimentVerdict, meter_settings
from headgate.experiments.tasks import BATCH, BarrierNote, ConsumeOperator, NoteStore, PhaseConsumer, PhaseSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.config import Settings
    from headgate.experiments.report import RunInfo
    from headgate.experiments.running import ExperimentHost
    from headgate.experiments.schedule import PhaseSchedule
    from headgate.observe.timeline import Timeline

__all__ = [
    "FollowResult",
    "FollowRun",
    "PhaseFigures",
    "SpeedSample",
    "follow_json",
    "follow_panels",
    "follow_report",
    "follow_table",
    "result_of",
    "samples_of",
    "speed_panel",
    "start_follow",
]

PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"

_RATIO: Final = 0.05  # the two speeds of a phase may differ by this
_LEAST_SHARE: Final = 0.5  # of the expected speed: machines change their speed
_MOST_SHARE: Final = 1.1  # of the expected speed, where one is throttled

_WHAT: Final = (
    "A producer in one worker sends records of 100 bytes to a consumer in another, as fast as it can: {full} records "
    "per second here, which is called full speed. Then one of the two is slowed, by sleeping, and released again. No "
    "message carries a speed: the producer follows because it cannot fill a buffer that is not free."
)
_HOW: Final = (
    "The job's own meters count records in steps of 100 ms. A phase is good if producer and consumer moved the same "
    "number of records within 5 %; if the producer's speed came within 10 % of the consumer's and stayed there, in "
    "means over half a second (`followed` is the time until then); if the speed is at least half of the expected one; "
    "and if the bytes in flight never exceeded what the settings allow."
)


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """Both speeds between two times, as shares of full speed; None is unknown."""

    begin_s: float
    end_s: float
    producer: float | None
    consumer: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """The figures of one phase. Speeds are records per second; None is unknown."""

    name: str
    begin_s: float
    end_s: float
    expected: float  # share of full speed
    throttled: bool
    full_per_s: float
    producer_per_s: float | None
    consumer_per_s: float | None
    followed_after_s: float | None  # None: it did not
    in_flight_bytes: int | None  # the most
    latency_p50_ms: float | None = None  # of barriers, from source to consumer
    latency_max_ms: float | None = None

    @property
    def ratio(self) -> float | None:
        """The producer's speed divided by the consumer's."""
        if self.producer_per_s is None or not self.consumer_per_s:
            return None
        return self.producer_per_s / self.consumer_per_s

    @property
    def share(self) -> float | None:
        """The consumer's speed as a share of full speed."""
        return None if self.consumer_per_s is None or not self.full_per_s else self.consumer_per_s / self.full_per_s

    def problems(self) -> list[str]:
        """Return what fails the phase."""
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
        """Return the figures for JSON."""
        same = ("followed_after_s", "in_flight_bytes", "latency_p50_ms", "latency_max_ms")
        return {
            "name": self.name,
            "begin_s": self.begin_s,
            "end_s": self.end_s,
            "expected_share": self.expected,
            "share": self.share,
            "producer_per_s": self.producer_per_s,
            "consumer_per_s": self.consumer_per_s,
            "producer_to_consumer": self.ratio,
            **{name: getattr(self, name) for name in same},
            "problems": self.problems(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowResult:
    """The figures of a run."""

    schedule: PhaseSchedule
    full_per_s: float
    record_bytes: float  # on the wire
    phases: tuple[PhaseFigures, ...]
    ceiling: Ceiling
    producer: Speeds
    consumer: Speeds
    held: Speeds  # shares of its time that the producer was back-pressured
    idle: Speeds  # shares of its time that the consumer waited for input
    in_flight: tuple[tuple[float, int], ...]  # seconds, bytes

    def verdict(self) -> ExperimentVerdict:
        """Return the verdict."""
        if not self.full_per_s:
            return ExperimentVerdict(False, "no record came in the time in which full speed is measured")
        found = [f"{phase.name}: {', '.join(problems)}" for phase in self.phases if (problems := phase.problems())]
        most = max((phase.in_flight_bytes or 0 for phase in self.phases), default=0)
        ceiling = self.ceiling.bytes
        if most > ceiling:
            found.append(f"{most / KIB:.0f} KiB were in flight, and the ceiling is {ceiling / KIB:.0f} KiB")
        if found:
            return ExperimentVerdict(False, "; ".join(found))
        apart = max((abs(phase.ratio - 1) for phase in self.phases if phase.ratio is not None), default=0.0)
        after_s = max((phase.followed_after_s or 0.0 for phase in self.phases), default=0.0)
        return ExperimentVerdict(
            True,
            f"the producer followed in all {len(self.phases)} phases, after {after_s:.1f} s at most; speeds within "
            f"{100 * apart:.1f} % of each other; at most {most / KIB:.0f} KiB in flight, "
            f"{_percent(most / ceiling)} of the ceiling",
        )


def samples_of(
    producer: Speeds, consumer: Speeds, end_s: float, interval_s: float, full_per_s: float
) -> list[SpeedSample]:
    """Return the mean speeds of intervals of one length; the last one may be shorter."""
    found, number = [], 0
    while (begin_s := number * interval_s) < end_s - 1e-6:
        stop_s = min(begin_s + interval_s, end_s)
        means = (one.mean(begin_s, stop_s) for one in (producer, consumer))
        shares = [None if mean is None or not full_per_s else mean / full_per_s for mean in means]
        found.append(SpeedSample(round(begin_s, 6), round(stop_s, 6), *shares))
        number += 1
    return found


class FollowRun(ExperimentRun):
    """A run under way, made by `start_follow`."""

    settings: Settings

    def result(self) -> FollowResult:
        """Return the figures so far."""
        source, consumer = self.vertex(PRODUCER), self.vertex(CONSUMER)
        return result_of(
            self.notes.notes(CONSUMER),
            self.timeline(),
            ids=(source.id, consumer.id),
            schedule=self.schedule,
            settings=self.settings,
            record_bytes=source.bytes_out / source.records_out if source.records_out else 0.0,
        )


def start_follow(
    host: ExperimentHost, schedule: PhaseSchedule, settings: Mapping[str, object] | None = None
) -> FollowRun:
    """Start the job: a producer in one worker, its consumer in another, a sink for its notes in the driver."""
    env = host.environment({**(settings or {}), **meter_settings(schedule)})
    store = NoteStore()
    made = env.from_source(PhaseSource(secrets.token_hex(8), schedule)).name(PRODUCER).slot_sharing_group("producing")
    consumer = PhaseConsumer(CONSUMER, schedule)
    notes = made._then(CONSUMER, partial(ConsumeOperator, consumer), hint=BarrierNote)
    notes.slot_sharing_group("consuming")
    notes.sink_to(hg.CollectSink(store)).name("notes")
    resolved = env.settings
    run = FollowRun(env.execute_async("follow"), store, schedule, CONSUMER)
    run.settings = resolved
    return run


def result_of(
    notes: Sequence[BarrierNote],
    timeline: Timeline,
    *,
    ids: tuple[int, int],
    schedule: PhaseSchedule,
    settings: Settings,
    record_bytes: float,
) -> FollowResult:
    """Return the figures of a run from its consumer's notes and its meters; `ids` are producer's and consumer's."""
    start_ns = notes[0].start_ns if notes else timeline.start_ms * 1_000_000
    full_per_s = next((note.full_per_s for note in notes if note.full_per_s), 0.0)
    column = partial(speeds_of, timeline, start_ms=start_ns / 1e6)
    producer, consumer = column(ids[0], "records_out"), column(ids[1], "records_in")
    in_flight = tuple(((note.sent_ns - start_ns) / 1e9, round(note.in_flight * record_bytes)) for note in notes)
    took = [((note.sent_ns - start_ns) / 1e9, (note.came_ns - note.sent_ns) / 1e6) for note in notes]

    def figures(number: int) -> PhaseFigures:
        phase, (begin_s, end_s) = schedule.phases[number], schedule.bounds(number)
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
            latency_p50_ms=percentile(own_ms, 50) if own_ms else None,
            latency_max_ms=max(own_ms, default=None),
        )

    return FollowResult(
        schedule=schedule,
        full_per_s=full_per_s,
        record_bytes=record_bytes,
        phases=tuple(map(figures, range(len(schedule.phases)))),
        # Two batches: the writer holds the rest of one, and the reader puts one together.
        ceiling=ceiling_of(
            settings, overdraft=settings.network.max_overdraft_buffers, batches=2 * round(BATCH * record_bytes)
        ),
        producer=producer,
        consumer=consumer,
        held=column(ids[0], "back_pressured"),
        idle=column(ids[1], "idle"),
        in_flight=in_flight,
    )


# Table, JSON, charts ---------------------------------------------------------------------------------------------


def follow_table(found: FollowResult) -> tuple[list[str], list[list[str]]]:
    """Return a row for each phase: `speed` is a share of full speed, `ceiling` the share of it in flight."""
    ceiling = found.ceiling.bytes
    header = ["phase", "speed", "producer", "consumer", "ratio", "followed", "in flight", "ceiling", "ok"]
    rows = []
    for one in found.phases:
        sent = one.in_flight_bytes
        rows.append(
            [
                one.name,
                "" if one.share is None else _percent(one.share),
                _thousands(one.producer_per_s),
                _thousands(one.consumer_per_s),
                "" if one.ratio is None else f"{one.ratio:.3f}",
                "never" if one.followed_after_s is None else f"{one.followed_after_s:.1f} s",
                "" if sent is None else f"{sent / KIB:.0f} KiB",
                "" if sent is None else _percent(sent / ceiling),
                "NO" if one.problems() or (sent or 0) > ceiling else "yes",
            ]
        )
    return header, rows


def follow_json(found: FollowResult, info: RunInfo, interval_s: float) -> dict[str, Any]:
    """Return all figures for `--json`, with speeds sampled every `interval_s`."""
    verdict = found.verdict()
    samples = samples_of(found.producer, found.consumer, found.schedule.end_s, interval_s, found.full_per_s)
    return {
        "experiment": "follow",
        **info.to_dict(),
        "phase_seconds": found.schedule.phase_s,
        "interval_seconds": interval_s,
        "full_per_s": found.full_per_s,
        "record_bytes": found.record_bytes,
        "ceiling_bytes": found.ceiling.bytes,
        "ceiling": asdict(found.ceiling),
        "phases": [one.to_dict() for one in found.phases],
        "samples": [asdict(one) for one in samples],
        "steps": {"producer": steps_json(found.producer), "consumer": steps_json(found.consumer)},
        "verdict": {"passed": verdict.passed, "line": str(verdict)},
    }


def follow_report(found: FollowResult, info: RunInfo) -> ExperimentReport:
    """Return the report."""
    header, rows = follow_table(found)
    return ExperimentReport(
        title="Does the producer follow the consumer?",
        verdict=found.verdict(),
        command=info.command,
        about=info.line(),
        words=(_WHAT.format(full=f"{found.full_per_s:,.0f}"), _HOW),
        header=header,
        rows=rows,
        panels=follow_panels(found),
    )


def follow_panels(found: FollowResult) -> list[ChartPanel]:
    """Return the charts; the first is also that of the terminal."""
    spans, end_s = spans_of(found.schedule), found.schedule.end_s
    limit = found.ceiling.bytes / KIB
    return [
        speed_panel(found),
        ChartPanel(
            title="Given out and not yet taken",
            y_label="KiB",
            lines=[
                points_of("in flight", found.in_flight, 1 / KIB),
                Line("ceiling", [0.0, end_s], [limit, limit], LineKind.LIMIT),
            ],
            spans=spans,
            words=(
                "The bytes on their way, by the stamps in the records. When the consumer is the slower one, buffers "
                "are full and the points are just below the dashed line, the most that the settings allow. They "
                f"never exceed it, however fast the producer is: {found.ceiling}."
            ),
        ),
        ChartPanel(
            title="What they do with their time",
            y_label="% of the time",
            lines=[
                line_of("producer back-pressured", found.held, 100.0, end_s),
                line_of("consumer idle", found.idle, 100.0, end_s),
            ],
            spans=spans,
            words=(
                "Back-pressured is the time in which the producer blocked because no buffer was free: much of it "
                "while the consumer is slowed, little while the producer itself is the slower one. Then the consumer "
                "is idle: it waits for records."
            ),
        ),
    ]


def speed_panel(found: FollowResult) -> ChartPanel:
    """Return the chart of both speeds, as shares of full speed."""
    end_s = found.schedule.end_s
    scale, unit = (100.0 / found.full_per_s, "% of full speed") if found.full_per_s else (1e-3, "1,000 records/s")
    return ChartPanel(
        title="Speed",
        y_label=unit,
        lines=[line_of("producer", found.producer, scale, end_s), line_of("consumer", found.consumer, scale, end_s)],
        spans=spans_of(found.schedule),
        words=(
            "Both lines should be one. Only one of the two is ever slowed: the producer in the first phase, the "
            "consumer in the shaded ones. No message informs the other. When the consumer drops to 30 %, so does the "
            "producer, because it runs out of buffers; when the consumer is released, buffers are recycled and both "
            "return to full speed, as far as the machine has it at that time."
        ),
    )


def _thousands(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s / 1000:,.0f} k/s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
