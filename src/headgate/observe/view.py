"""A whole job in one document: what the page, the terminal, reports and files all read.

A view is plain data; `to_json` and `from_json` are each other's inverse. A finished job's view is what is kept of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from headgate.errors import HeadgateError
from headgate.observe.diagnosis import Diagnosis  # noqa: TC001 - fields' types, which `from_json` looks up
from headgate.observe.edges import EdgeProgress  # noqa: TC001
from headgate.observe.graph import GraphView  # noqa: TC001
from headgate.observe.pressure import Pressure  # noqa: TC001
from headgate.observe.progress import Progress  # noqa: TC001
from headgate.observe.timeline import Timeline  # noqa: TC001
from headgate.version import __version__

__all__ = ["JobEvent", "JobView", "SettingView", "Watched"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job.

    >>> JobEvent(at_ms=0, text="all workers are there").level
    'info'
    """

    at_ms: int
    text: str
    level: str = "info"  # or 'warning', 'error'


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A setting that a job runs with.

    >>> SettingView(key="memory.segment_size", value="32 KiB", origin="default").value
    '32 KiB'
    """

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job: its graph, its figures, its past, and what was found out about it.

    >>> from headgate.observe.status import JobStatus
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> view = JobView(at_ms=1000, graph=GraphView(vertices=(), edges=()), progress=progress)
    >>> JobView.from_json(view.to_json()) == view
    True
    """

    at_ms: int  # by the driver's clock
    graph: GraphView
    progress: Progress
    edges: tuple[EdgeProgress, ...] = ()  # sums over channels, for views that leave out subtasks
    timeline: Timeline | None = None  # of the whole ring, where it was asked for
    events: tuple[JobEvent, ...] = ()  # the last ones
    settings: tuple[SettingView, ...] = ()
    error: str | None = None  # of a job that has failed
    pressure: Pressure | None = None  # the last round of sampling
    diagnosis: Diagnosis | None = None  # the last answer to `why`
    headgate: str = __version__
    format: int = _FORMAT

    def to_json(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> JobView:
        """Read what `to_json` wrote.

        Raises:
            HeadgateError: it is not that.
        """
        try:
            view = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HeadgateError(f"this is not what headgate keeps of a job: {str(error)[:200]}") from None
        if view.format != _FORMAT:
            raise HeadgateError(
                f"it was kept in format {view.format} by headgate {view.headgate}: this one reads {_FORMAT}"
            )
        return view


class Watched(Protocol):
    """A job that can be looked at: a running one in this process, one of another process, or what was kept of one."""

    def view(self, *, timeline: bool = False) -> JobView:
        """All of it now; with the past only if asked for."""
        ...

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """The last stretch of the past, in at most so many steps: of a vertex and its tasks, or of all vertices."""
        ...

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Sample stacks (B1), which takes seconds; an earlier answer is given again for `backpressure.refresh`."""
        ...

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """What holds the job back, and why. Samples stacks where that is needed to tell."""
        ...

    def cancel(self) -> bool:
        """Stop the job; whether it is over."""
        ...
