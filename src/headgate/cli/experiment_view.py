"""The live display of an experiment: its chart and one line of figures.

Used by `headgate experiment` and `headgate demo`, on the thread that waits for the job.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headgate.bench.charts import ChartPanel
from headgate.config import FlowControl
from headgate.coordinator.terminal import count_text
from headgate.experiments.follow import FollowResult, FollowRun, speed_panel, start_follow
from headgate.experiments.neighbour import MODES, NeighbourResult, NeighbourRun, neighbour_panels, start_neighbour
from headgate.experiments.running import ExperimentHost
from headgate.experiments.schedule import PhaseSchedule
from headgate.experiments.terminal import LEAST_HEIGHT, LEAST_WIDTH, LiveView, TextRow, draw_rows

__all__ = ["chart_of", "follow_line", "neighbour_line", "scale_top", "watch_follow", "watch_neighbour"]

_TOPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)  # the possible ends of a scale, times a power of ten
_KIB = 1024


def scale_top(most: float) -> float:
    """Return a round number that is at least `most`, so that a scale rarely changes with new values.

    >>> [scale_top(one) for one in (0.0, 100.0, 104.0, 1999.0, 0.7)]
    [1.0, 100.0, 120.0, 2000.0, 1.0]
    """
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((top for one in _TOPS if (top := one * power) >= most), 10 * power)


def chart_of(panel: ChartPanel, width: int, height: int) -> list[TextRow]:
    """Return the chart of a panel for this width and height, but not smaller than readable."""
    known = [y for line in panel.lines for y in line.y if y is not None]
    return draw_rows(
        panel,
        width=max(LEAST_WIDTH, width),
        height=max(LEAST_HEIGHT, height),
        end_s=panel.spans[-1].end_s,
        top=scale_top(max(known, default=1.0)),
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """The display at one time."""

    panel: ChartPanel
    line: str

    def rows(self, width: int, height: int) -> list[TextRow]:
        return [*chart_of(self.panel, width, height - 1), [(self.line[:width], "")]]


def watch_follow(where: ExperimentHost, schedule: PhaseSchedule, live: LiveView, interval_s: float) -> FollowRun:
    """Run `follow` to the end of its schedule."""
    run = start_follow(where, schedule)

    def frame(second: float) -> _Frame:
        found = run.result()
        return _Frame(speed_panel(found), follow_line(found, second, interval_s))

    _watch(run, live, "follow", frame)
    return run


def watch_neighbour(
    where: ExperimentHost, schedule: PhaseSchedule, live: LiveView
) -> dict[FlowControl, NeighbourResult]:
    """Run `neighbour` with each kind of flow control."""
    done: dict[FlowControl, NeighbourResult] = {}
    for mode in MODES:
        run = start_neighbour(where, schedule, mode)
        _watch_mode(run, live, done)
        done[mode] = run.result()
    return done


def _watch_mode(run: NeighbourRun, live: LiveView, done: Mapping[FlowControl, NeighbourResult]) -> None:
    def frame(second: float) -> _Frame:
        found = run.result()
        return _Frame(neighbour_panels({**done, run.mode: found})[0], neighbour_line(found, second))

    _watch(run, live, f"neighbour, {run.mode}", frame)


def _watch(run: FollowRun | NeighbourRun, live: LiveView, name: str, frame: Callable[[float], _Frame]) -> None:
    def tick() -> None:
        second = run.now_s(time.time_ns())
        if second is None:
            text = f"{name}: workers are being started"
            live.show(lambda width, _: [[(text[:width], "")]], lambda: text)
            return
        live.show(lambda width, height: frame(second).rows(width, height), lambda: frame(second).line)

    run.wait(tick)


def follow_line(found: FollowResult, second: float, interval_s: float) -> str:
    """Return one line about the run at this second; speeds are means over the last interval."""
    schedule = found.schedule
    begins = f"follow: {_where(schedule, second)}"
    if not found.full_per_s:
        return f"{begins}: measuring full speed"
    known = found.consumer.middles_s()[-1:] or [0.0]
    end_s = known[0] + found.consumer.step_s
    means = [one.mean(end_s - interval_s, end_s) for one in (found.producer, found.consumer)]
    speeds = ["-" if one is None else f"{100 * one / found.full_per_s:.0f} %" for one in means]
    sent = [size for at_s, size in found.in_flight if at_s >= end_s - interval_s]
    in_flight = f", {max(sent) / _KIB:.0f} of {found.ceiling.bytes / _KIB:.0f} KiB in flight" if sent else ""
    full = count_text(found.full_per_s)
    return f"{begins}: producer {speeds[0]}, consumer {speeds[1]} of {full}/s{in_flight}"


def neighbour_line(found: NeighbourResult, second: float) -> str:
    """Return one line about the run at this second."""
    fast = [one for one in found.fast.per_s if one is not None]
    took = found.took.get("fast consumer", ())
    speed = f"fast consumer {count_text(sum(fast[-10:]) / len(fast[-10:]))}/s" if fast else "no figures yet"
    barrier = f", its last barrier took {took[-1][1]:,.1f} ms" if took else ""
    return f"neighbour, {found.mode}: {_where(found.schedule, second)}: {speed}{barrier}"


def _where(schedule: PhaseSchedule, second: float) -> str:
    return f"{min(second, schedule.end_s):.0f} of {schedule.end_s:.0f} s, {schedule.at(second).name}"
