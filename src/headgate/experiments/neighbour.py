"""The experiment `neighbour` (B4): a fast and a slow consumer on one connection, with credit and with tcp.

Each mode has a job of its own: two producers in one worker, their consumers in another. The fast pair runs all the
time; the slow pair only in every other phase. Speeds come from the job's own meters. Barriers are checkpoint barriers:
events that travel through the exchange in order with the records (see `tasks`).
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.bench.charts import ChartPanel
from headgate.bench.harness import percentile
from headgate.config import FlowControl
from headgate.experiments.figures import Speeds, speeds_of
from headgate.experiments.report import ExperimentReport, line_of, points_of, spans_of, steps_json
from headgate.experiments.running import ExperimentRun, ExperimentVerdict, meter_settings
from headgate.experiments.tasks import BarrierNote, ConsumeOperator, NoteStore, PhaseConsumer, PhaseSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.experiments.report import RunInfo
    from headgate.experiments.running import ExperimentHost
    from headgate.experiments.schedule import PhaseSchedule

__all__ = [
    "FAST",
    "MODES",
    "SLOW",
    "BarrierTimes",
    "NeighbourResult",
    "NeighbourRun",
    "neighbour_json",
    "neighbour_panels",
    "neighbour_report",
    "neighbour_table",
    "start_neighbour",
    "verdict_of",
]

FAST: Final = "fast consumer"
"""The consumer that the experiment is about."""
SLOW: Final = "slow consumer"
"""Its neighbour."""
MODES: Final = (FlowControl.CREDIT, FlowControl.TCP)
"""The modes of flow control, in the order of their runs."""

_PAUSE_S: Final = 0.02  # the slow consumer's time for a batch of 500 records
_UNSETTLED: Final = 0.25  # the share of a phase that does not count: buffers fill or drain first
_KEEPS: Final = 0.9  # with credit, the fast consumer keeps at least this share of its speed
_DRAGGED: Final = 0.5  # with tcp, at most this

_WHAT: Final = (
    "Two consumers in one worker receive records from two producers in another, over the one connection of two "
    "workers. The fast one takes what it can. The slow one, which runs in every other phase only, takes 500 records "
    "and then sleeps for 20 ms. All of it runs twice: with network.flow_control = credit, where a buffer is sent only "
    "if its receiver has announced a place for it; and with tcp, where the receiver stops reading the connection when "
    "it has no place for the next buffer."
)
_HOW: Final = (
    "Keeps is the fast consumer's speed beside the slow one, as a share of its speed alone; the first quarter of each "
    "phase does not count. Barriers are checkpoint barriers, events that the sources emit every 20 ms and that travel "
    "in order with the records: the median and the longest of those sent in the first half of a phase with the slow "
    "one, and in the second half of a phase without it."
)


@dataclass(frozen=True, slots=True)
class BarrierTimes:
    """How long barriers took from a source to its consumer, in milliseconds; None without any."""

    count: int
    p50_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourResult:
    """The figures of one mode. Speeds are records per second; None is unknown."""

    mode: FlowControl
    schedule: PhaseSchedule
    record_bytes: float
    fast: Speeds
    slow: Speeds
    took: Mapping[str, Sequence[tuple[float, float]]]  # of each consumer's barriers: when sent, in s; how long, in ms

    def alone_per_s(self) -> float | None:
        """Return the fast consumer's speed without a neighbour."""
        return self._mean(self.fast, beside=False)

    def beside_per_s(self) -> float | None:
        """Return the fast consumer's speed beside the slow one."""
        return self._mean(self.fast, beside=True)

    def slow_per_s(self) -> float | None:
        """Return the slow consumer's speed."""
        return self._mean(self.slow, beside=True)

    def keeps(self) -> float | None:
        """Return the share of its speed that the fast consumer keeps."""
        alone, beside = self.alone_per_s(), self.beside_per_s()
        return None if not alone or beside is None else beside / alone

    def barriers(self, consumer: str, *, beside: bool) -> BarrierTimes:
        """Return the times of barriers that were sent in phases with or without the slow consumer.

        Beside it, those of the first half of a phase: later ones arrive when it is not slow any more. Without it, those
        of the second half, when its records are gone.
        """
        half_s = self.schedule.phase_s / 2
        starts_s = [begin_s if beside else end_s - half_s for begin_s, end_s in self._phases(beside=beside)]
        took = self.took.get(consumer, ())
        own = [ms for sent_s, ms in took if any(0 <= sent_s - start_s < half_s for start_s in starts_s)]
        return BarrierTimes(len(own), percentile(own, 50) if own else None, max(own, default=None))

    def _phases(self, *, beside: bool) -> list[tuple[float, float]]:
        schedule = self.schedule
        return [schedule.bounds(number) for number, one in enumerate(schedule.phases) if one.neighbour is beside]

    def _mean(self, speeds: Speeds, *, beside: bool) -> float | None:
        skip_s = _UNSETTLED * self.schedule.phase_s
        means = [speeds.mean(begin_s + skip_s, end_s) for begin_s, end_s in self._phases(beside=beside)]
        known = [mean for mean in means if mean is not None]
        return sum(known) / len(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "flow_control": self.mode.value,
            "alone_per_s": self.alone_per_s(),
            "beside_per_s": self.beside_per_s(),
            "slow_per_s": self.slow_per_s(),
            "keeps": self.keeps(),
            "barriers": {
                f"{name}, {'beside' if beside else 'alone'}": asdict(self.barriers(name, beside=beside))
                for name, beside in ((FAST, False), (FAST, True), (SLOW, True))
            },
        }


def verdict_of(found: Mapping[FlowControl, NeighbourResult]) -> ExperimentVerdict:
    """Return the verdict: with credit the fast consumer keeps its speed, with tcp it does not."""
    parts, passed = [], True
    for mode in MODES:
        kept = found[mode].keeps() if mode in found else None
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
    return ExperimentVerdict(passed, f"beside a slow neighbour the fast consumer keeps {'; '.join(parts)}")


class NeighbourRun(ExperimentRun):
    """The run of one mode under way, made by `start_neighbour`."""

    mode: FlowControl

    def result(self) -> NeighbourResult:
        """Return the figures so far."""
        timeline = self.timeline()
        start_ns = self.start_ns(timeline)
        fast, slow = self.vertex(FAST), self.vertex(SLOW)
        return NeighbourResult(
            mode=self.mode,
            schedule=self.schedule,
            record_bytes=fast.bytes_in / fast.records_in if fast.records_in else 0.0,
            fast=speeds_of(timeline, fast.id, "records_in", start_ns / 1e6),
            slow=speeds_of(timeline, slow.id, "records_in", start_ns / 1e6),
            took={
                name: [((one.sent_ns - start_ns) / 1e9, (one.came_ns - one.sent_ns) / 1e6) for one in notes]
                for name in (FAST, SLOW)
                if (notes := self.notes.notes(name))
            },
        )


def start_neighbour(
    host: ExperimentHost, schedule: PhaseSchedule, mode: FlowControl, settings: Mapping[str, object] | None = None
) -> NeighbourRun:
    """Start the job of one mode."""
    env = host.environment({**(settings or {}), **meter_settings(schedule), "network.flow_control": mode.value})
    store, run_id = NoteStore(), secrets.token_hex(8)
    notes = []
    for name, neighbour in ((FAST, False), (SLOW, True)):
        made = env.from_source(PhaseSource(run_id, schedule, neighbour=neighbour))
        made.name(f"{'slow' if neighbour else 'fast'} producer").slot_sharing_group("producing")
        consumer = PhaseConsumer(name, schedule, pause_s=_PAUSE_S if neighbour else 0.0)
        own = made._then(name, partial(ConsumeOperator, consumer), hint=BarrierNote)
        notes.append(own.slot_sharing_group("consuming"))
    notes[0].union(notes[1]).sink_to(hg.CollectSink(store)).name("notes")
    run = NeighbourRun(env.execute_async(f"neighbour, {mode}"), store, schedule, FAST)
    run.mode = mode
    return run


# Table, JSON, charts ---------------------------------------------------------------------------------------------


def neighbour_table(found: Mapping[FlowControl, NeighbourResult]) -> tuple[list[str], list[list[str]]]:
    """Return a column for each mode."""
    runs = list(found.values())
    speeds = {
        "fast consumer, alone": [one.alone_per_s() for one in runs],
        "fast consumer, beside the slow one": [one.beside_per_s() for one in runs],
    }
    keeps = ["" if (kept := one.keeps()) is None else f"{100 * kept:.0f} %" for one in runs]
    alone, beside, slow = (
        [one.barriers(name, beside=slowed) for one in runs]
        for name, slowed in ((FAST, False), (FAST, True), (SLOW, True))
    )
    times = {
        "barrier to the fast one, alone, median": [one.p50_ms for one in alone],
        "beside the slow one, median": [one.p50_ms for one in beside],
        "beside the slow one, longest": [one.max_ms for one in beside],
        "barrier to the slow one, median": [one.p50_ms for one in slow],
        "barrier to the slow one, longest": [one.max_ms for one in slow],
    }
    rows = [
        *([name, *map(_thousands, values)] for name, values in speeds.items()),
        ["it keeps", *keeps],
        ["slow consumer", *(_thousands(one.slow_per_s()) for one in runs)],
        *([name, *("" if ms is None else f"{ms:,.1f} ms" for ms in values)] for name, values in times.items()),
    ]
    return ["with flow control by", *(mode.value for mode in found)], rows


def neighbour_json(found: Mapping[FlowControl, NeighbourResult], info: RunInfo) -> dict[str, Any]:
    """Return all figures for `--json`."""
    verdict = verdict_of(found)
    return {
        "experiment": "neighbour",
        **info.to_dict(),
        "phase_seconds": next(iter(found.values())).schedule.phase_s,
        "runs": [{**one.to_dict(), "steps": {"fast": steps_json(one.fast)}} for one in found.values()],
        "verdict": {"passed": verdict.passed, "line": str(verdict)},
    }


def neighbour_report(found: Mapping[FlowControl, NeighbourResult], info: RunInfo) -> ExperimentReport:
    """Return the report."""
    header, rows = neighbour_table(found)
    return ExperimentReport(
        title="Does a slow neighbour slow a fast consumer?",
        verdict=verdict_of(found),
        command=info.command,
        about=info.line(),
        words=(_WHAT, _HOW),
        header=header,
        rows=rows,
        panels=neighbour_panels(found),
    )


def neighbour_panels(found: Mapping[FlowControl, NeighbourResult]) -> list[ChartPanel]:
    """Return the charts; the first is also that of the terminal."""
    schedule = next(iter(found.values())).schedule
    spans = spans_of(schedule)
    return [
        ChartPanel(
            title="The fast consumer",
            y_label="1,000 records/s",
            lines=[line_of(f"fast, {mode}", one.fast, 1e-3, schedule.end_s) for mode, one in found.items()],
            spans=spans,
            words=(
                "In the shaded phases a second consumer, which is slow, is served over the same connection. With "
                "credit, a buffer is sent to it only when it has a place for it, so the connection stays free and the "
                "fast consumer continues. With tcp the records of the slow one fill the connection, and all later "
                "records wait."
            ),
        ),
        ChartPanel(
            title="How long a barrier takes",
            y_label="ms",
            lines=[
                points_of(f"{name.partition(' ')[0]}, {mode}", one.took.get(name, ()))
                for mode, one in found.items()
                for name in (FAST, SLOW)
            ],
            spans=spans,
            words=(
                "Each point is a checkpoint barrier, an event that travels in order with the records, at the time it "
                "was sent. Through the slow channel it takes long with both modes: the records before it are consumed "
                "first. The fast channel's barriers are delayed with tcp, but not with credit. A checkpoint takes as "
                "long as its slowest barrier. The scale is logarithmic."
            ),
            log_y=True,
        ),
    ]


def _thousands(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s / 1000:,.0f} k/s"
