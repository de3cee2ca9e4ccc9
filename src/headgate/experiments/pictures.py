"""What the figures of an experiment look like: panels, for terminal, PNG and report, and the words beside them.

Pure: figures in, plain data out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.experiments.neighbour import FAST, SLOW
from headgate.experiments.panels import Kind, Line, Panel, Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.config import FlowControl
    from headgate.experiments.figures import Speeds
    from headgate.experiments.follow import Follow
    from headgate.experiments.neighbour import Neighbour
    from headgate.experiments.schedule import Schedule

__all__ = ["follow_panels", "neighbour_panels", "speed_panel"]

_KIB: Final = 1024
_MOST_POINTS: Final = 3000  # of one line: more cannot be seen, and make files large


def follow_panels(found: Follow) -> list[Panel]:
    """The panels of `follow`, the first of which is also the one for the terminal.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.follow import result_of
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> [panel.title for panel in follow_panels(found)]
    ['Speed', 'Given out and not yet taken', 'What they do with their time']
    """
    spans, end_s = _spans(found.schedule), found.schedule.end_s
    limit = found.ceiling.bytes / _KIB
    points = _thinned(found.in_flight)
    return [
        speed_panel(found),
        Panel(
            title="Given out and not yet taken",
            y_label="KiB",
            lines=(
                Line("in flight", tuple(x for x, _ in points), tuple(size / _KIB for _, size in points), Kind.POINTS),
                Line("ceiling", (0.0, end_s), (limit, limit), Kind.LIMIT),
            ),
            spans=spans,
            words=(
                "How many bytes were on their way, as stamps in the records tell. When the consumer is the slower one, "
                "buffers are full and the points lie just below the dashed line, the most that the settings allow. "
                f"They never pass it, whatever the producer would like: {found.ceiling}."
            ),
        ),
        Panel(
            title="What they do with their time",
            y_label="% of the time",
            lines=(
                _line("producer back-pressured", found.held, 100.0, end_s),
                _line("consumer idle", found.idle, 100.0, end_s),
            ),
            spans=spans,
            words=(
                "Back-pressured is the time in which the producer slept because no buffer was free: much of it while "
                "the consumer is slowed, little while the producer itself is the slower one. Then it is the consumer "
                "that has time: idle is what it spent waiting for records."
            ),
        ),
    ]


def speed_panel(found: Follow) -> Panel:
    """Both speeds, as shares of full speed.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.follow import result_of
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> [line.name for line in speed_panel(found).lines]
    ['producer', 'consumer']
    """
    end_s, scale = found.schedule.end_s, 100.0 / found.full_per_s if found.full_per_s else 0.0
    unit = "% of full speed"
    if not found.full_per_s:
        scale, unit = 1e-3, "1,000 records/s"
    return Panel(
        title="Speed",
        y_label=unit,
        lines=(
            _line("producer", found.producer, scale, end_s),
            _line("consumer", found.consumer, scale, end_s),
        ),
        spans=_spans(found.schedule),
        words=(
            "Both lines should be one. Only one of the two is ever slowed: the producer in the first phase, the "
            "consumer in the shaded ones. Nobody tells the other. When the consumer drops to 30 %, so does the "
            "producer, because it runs out of buffers; when the consumer is released, buffers come back and both "
            "return to full speed, which is whatever the machine gives at that time."
        ),
    )


def neighbour_panels(found: Mapping[FlowControl, Neighbour]) -> list[Panel]:
    """The panels of `neighbour`.

    >>> from headgate.config import FlowControl
    >>> from headgate.experiments.figures import Speeds
    >>> from headgate.experiments.neighbour import Neighbour
    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule, nothing = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0), Speeds(0.0, 0.1, ())
    >>> it = Neighbour(mode=FlowControl.TCP, schedule=schedule, record_bytes=100.0, fast=nothing, slow=nothing, took={})
    >>> [panel.title for panel in neighbour_panels({FlowControl.TCP: it})]
    ['The fast consumer', 'How long a barrier takes']
    """
    schedule = next(iter(found.values())).schedule
    spans, end_s = _spans(schedule), schedule.end_s
    speeds = tuple(_line(f"fast, {mode}", one.fast, 1e-3, end_s) for mode, one in found.items())
    points = []
    for mode, one in found.items():
        for name in (FAST, SLOW):
            took = _thinned(one.took.get(name, ()))
            label = f"{name.partition(' ')[0]}, {mode}"
            points.append(Line(label, tuple(x for x, _ in took), tuple(y for _, y in took), Kind.POINTS))
    return [
        Panel(
            title="The fast consumer",
            y_label="1,000 records/s",
            lines=speeds,
            spans=spans,
            words=(
                "In the shaded phases a second consumer, which is slow, is served over the same connection. With "
                "credit nothing is sent to it before it has a place for that, so the connection stays free and the "
                "fast consumer goes on. With tcp the records of the slow one fill the connection, and everything "
                "behind them waits."
            ),
        ),
        Panel(
            title="How long a barrier takes",
            y_label="ms",
            lines=tuple(points),
            spans=spans,
            words=(
                "Each point is a barrier, a record that travels in order with all others, by the time it was sent. "
                "Through the slow channel it takes long in any case: what was sent before it comes first. The fast "
                "channel's barriers are not held up with credit, and are with tcp. A checkpoint takes as long as its "
                "slowest barrier. The scale is logarithmic."
            ),
            log_y=True,
        ),
    ]


def _spans(schedule: Schedule) -> tuple[Span, ...]:
    spans = [Span(0.0, schedule.lead_s, "full speed")]
    for number, phase in enumerate(schedule.phases):
        spans.append(Span(*schedule.bounds(number), phase.name, shaded=phase.consumer < 1 or phase.neighbour))
    return tuple(spans)


def _line(name: str, speeds: Speeds, scale: float, end_s: float) -> Line:
    """A line from the start to the end of the schedule."""
    kept = [
        (x, None if y is None else y * scale)
        for x, y in zip(speeds.middles_s(), speeds.per_s, strict=True)
        if 0 <= x <= end_s
    ]
    return Line(name, tuple(round(x, 3) for x, _ in kept), tuple(y for _, y in kept))


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of very many points, the highest of each few."""
    each = -(-len(points) // _MOST_POINTS)
    if each <= 1:
        return list(points)
    return [max(points[at : at + each], key=lambda point: point[1]) for at in range(0, len(points), each)]
