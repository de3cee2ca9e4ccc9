"""What an experiment has found, said in a table, in JSON, and in a report's words."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headgate.experiments.neighbour import FAST, SLOW, verdict_of
from headgate.experiments.pictures import follow_panels, neighbour_panels
from headgate.experiments.report import Report
from headgate.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.config import FlowControl
    from headgate.experiments.figures import Speeds
    from headgate.experiments.follow import Follow
    from headgate.experiments.neighbour import Neighbour

__all__ = [
    "About",
    "follow_json",
    "follow_report",
    "follow_table",
    "neighbour_json",
    "neighbour_report",
    "neighbour_table",
]

_KIB: Final = 1024

_WHAT_FOLLOW: Final = (
    "A producer in one worker sends records of 100 bytes to a consumer in another, as fast as it can: {full} records a "
    "second here, which is called full speed. Then one of the two is slowed, by sleeping, and released again. There is "
    "no message that says how fast to go: the producer follows because a buffer that is not free cannot be filled."
)
_HOW_FOLLOW: Final = (
    "Speeds are counted by the job's own meters in steps of 100 ms. A phase is good if producer and consumer moved the "
    "same number of records within 5 %; if the producer's speed came within 10 % of the consumer's and stayed there, "
    "in means over half a second (followed says after how long); if the speed is at least half of what the phase asks "
    "for; and if never more bytes were under way than the settings allow."
)
_WHAT_NEIGHBOUR: Final = (
    "Two consumers in one worker get records from two producers in another, over the one connection that two workers "
    "have. The fast one takes what it can. The slow one, which is there in every other phase only, takes 500 records "
    "and then sleeps for 20 ms. All of it runs twice: with network.flow_control = credit, where a buffer is sent only "
    "if its receiver has said that it has a place for it; and with tcp, where the receiver stops reading the "
    "connection when it has no place for the next buffer."
)
_HOW_NEIGHBOUR: Final = (
    "Keeps is the fast consumer's speed beside the slow one, as a share of its speed alone; the first quarter of each "
    "phase is left out. Barriers are records sent every 20 ms that travel in order with all others, as those of a "
    "checkpoint do: the median and the longest of those sent in the first half of a phase with the slow one, and in "
    "the second half of one without."
)


@dataclass(frozen=True, slots=True)
class About:
    """Where, when and how a run was made.

    >>> About("headgate experiment follow", "threads of this process").machine()["python"]
    'CPython ...'
    """

    command: str
    where: str

    def machine(self) -> dict[str, Any]:
        """What a reader needs to know to judge the figures."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {
            "cores": cores,
            "platform": platform.platform(),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "headgate": __version__,
        }

    def line(self) -> str:
        """All of it in one line."""
        machine = self.machine()
        cores = f"{machine['cores']} core{'' if machine['cores'] == 1 else 's'}"
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"{when}; {self.where}; {cores}, {machine['python']}, {machine['platform']}; headgate {__version__}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"command": self.command, "where": self.where, "machine": self.machine()}


# follow --------------------------------------------------------------------------------------------------


def follow_table(found: Follow) -> tuple[list[str], list[list[str]]]:
    """A row for each phase: `speed` as a share of full speed, `ceiling` the share of it that was in flight.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.follow import result_of
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> header, rows = follow_table(found)
    >>> rows[0]
    ['producer 60 %', '', '', '', '', 'never', '', '', 'NO']
    """
    ceiling = found.ceiling.bytes
    header = ["phase", "speed", "producer", "consumer", "ratio", "followed", "in flight", "ceiling", "ok"]
    rows = []
    for one in found.phases:
        sent = one.in_flight_bytes
        rows.append(
            [
                one.name,
                _share(one.share),
                _thousands(one.producer_per_s),
                _thousands(one.consumer_per_s),
                "" if one.ratio is None else f"{one.ratio:.3f}",
                "never" if one.followed_after_s is None else f"{one.followed_after_s:.1f} s",
                "" if sent is None else f"{sent / _KIB:.0f} KiB",
                _share(None if sent is None else sent / ceiling),
                "NO" if one.problems() or (sent or 0) > ceiling else "yes",
            ]
        )
    return header, rows


def follow_json(found: Follow, about: About, interval_s: float) -> dict[str, Any]:
    """Everything, for programs.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.follow import result_of
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> follow_json(found, About("headgate experiment follow", "nowhere"), 5.0)["verdict"]["passed"]
    False
    """
    verdict = found.verdict()
    return {
        "experiment": "follow",
        **about.to_dict(),
        "phase_seconds": found.schedule.phase_s,
        "interval_seconds": interval_s,
        "full_per_s": found.full_per_s,
        "record_bytes": found.record_bytes,
        "ceiling_bytes": found.ceiling.bytes,
        "ceiling": asdict(found.ceiling),
        "phases": [one.to_dict() for one in found.phases],
        "samples": [asdict(one) for one in found.samples(interval_s)],
        "steps": {"producer": _steps(found.producer), "consumer": _steps(found.consumer)},
        "verdict": {"passed": verdict.passed, "line": str(verdict)},
    }


def follow_report(found: Follow, about: About) -> Report:
    """Everything, for people.

    >>> from headgate.config import Settings
    >>> from headgate.experiments.follow import result_of
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> from headgate.observe.timeline import Timeline
    >>> nothing = Timeline(start_ms=0, step_ms=100, steps=0, tasks=())
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> found = result_of([], nothing, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=102.0)
    >>> follow_report(found, About("headgate experiment follow", "nowhere")).title
    'Does the producer follow the consumer?'
    """
    header, rows = follow_table(found)
    return Report(
        title="Does the producer follow the consumer?",
        verdict=found.verdict(),
        command=about.command,
        about=about.line(),
        words=(_WHAT_FOLLOW.format(full=_count(found.full_per_s)), _HOW_FOLLOW),
        header=tuple(header),
        rows=tuple(tuple(row) for row in rows),
        panels=tuple(follow_panels(found)),
    )


# neighbour -----------------------------------------------------------------------------------------------


def neighbour_table(found: Mapping[FlowControl, Neighbour]) -> tuple[list[str], list[list[str]]]:
    """A column for each way of flow control.

    >>> from headgate.config import FlowControl
    >>> from headgate.experiments.figures import Speeds
    >>> from headgate.experiments.neighbour import Neighbour
    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule, nothing = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0), Speeds(0.0, 0.1, ())
    >>> it = Neighbour(mode=FlowControl.TCP, schedule=schedule, record_bytes=100.0, fast=nothing, slow=nothing, took={})
    >>> neighbour_table({FlowControl.TCP: it})[0]
    ['with flow control by', 'tcp']
    """
    alone = {mode: one.barriers(FAST, beside=False) for mode, one in found.items()}
    beside = {mode: one.barriers(FAST, beside=True) for mode, one in found.items()}
    slow = {mode: one.barriers(SLOW, beside=True) for mode, one in found.items()}
    rows = [
        ["fast consumer, alone", *(_thousands(one.alone_per_s()) for one in found.values())],
        ["fast consumer, beside the slow one", *(_thousands(one.beside_per_s()) for one in found.values())],
        ["it keeps", *(_share(one.keeps()) for one in found.values())],
        ["slow consumer", *(_thousands(one.slow_per_s()) for one in found.values())],
        ["barrier to the fast one, alone, median", *(_ms(alone[mode].p50_ms) for mode in found)],
        ["beside the slow one, median", *(_ms(beside[mode].p50_ms) for mode in found)],
        ["beside the slow one, longest", *(_ms(beside[mode].max_ms) for mode in found)],
        ["barrier to the slow one, median", *(_ms(slow[mode].p50_ms) for mode in found)],
        ["barrier to the slow one, longest", *(_ms(slow[mode].max_ms) for mode in found)],
    ]
    return ["with flow control by", *(mode.value for mode in found)], rows


def neighbour_json(found: Mapping[FlowControl, Neighbour], about: About) -> dict[str, Any]:
    """Everything, for programs.

    >>> from headgate.config import FlowControl
    >>> from headgate.experiments.figures import Speeds
    >>> from headgate.experiments.neighbour import Neighbour
    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule, nothing = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0), Speeds(0.0, 0.1, ())
    >>> it = Neighbour(mode=FlowControl.TCP, schedule=schedule, record_bytes=100.0, fast=nothing, slow=nothing, took={})
    >>> neighbour_json({FlowControl.TCP: it}, About("headgate experiment neighbour", "nowhere"))["verdict"]["passed"]
    False
    """
    verdict = verdict_of(found)
    schedule = next(iter(found.values())).schedule
    return {
        "experiment": "neighbour",
        **about.to_dict(),
        "phase_seconds": schedule.phase_s,
        "runs": [{**one.to_dict(), "steps": {"fast": _steps(one.fast)}} for one in found.values()],
        "verdict": {"passed": verdict.passed, "line": str(verdict)},
    }


def neighbour_report(found: Mapping[FlowControl, Neighbour], about: About) -> Report:
    """Everything, for people.

    >>> from headgate.config import FlowControl
    >>> from headgate.experiments.figures import Speeds
    >>> from headgate.experiments.neighbour import Neighbour
    >>> from headgate.experiments.schedule import Schedule, neighbour_phases
    >>> schedule, nothing = Schedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0), Speeds(0.0, 0.1, ())
    >>> it = Neighbour(mode=FlowControl.TCP, schedule=schedule, record_bytes=100.0, fast=nothing, slow=nothing, took={})
    >>> neighbour_report({FlowControl.TCP: it}, About("headgate experiment neighbour", "nowhere")).title
    'Does a slow neighbour slow a fast consumer?'
    """
    header, rows = neighbour_table(found)
    return Report(
        title="Does a slow neighbour slow a fast consumer?",
        verdict=verdict_of(found),
        command=about.command,
        about=about.line(),
        words=(_WHAT_NEIGHBOUR, _HOW_NEIGHBOUR),
        header=tuple(header),
        rows=tuple(tuple(row) for row in rows),
        panels=tuple(neighbour_panels(found)),
    )


def _steps(speeds: Speeds) -> dict[str, Any]:
    per_s: Sequence[float | None] = speeds.per_s
    return {"start_s": speeds.start_s, "step_s": speeds.step_s, "per_s": list(per_s)}


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _thousands(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s / 1000:,.0f} k/s"


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _ms(number: float | None) -> str:
    return "" if number is None else f"{number:,.1f} ms"
