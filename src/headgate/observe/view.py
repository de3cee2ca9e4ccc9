"""A job as one document: the input of the page, `top`, reports and files.

A view is plain data; `from_json` reads what `to_json` writes. The last view of a finished job is kept in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from headgate.errors import HeadgateError
from headgate.observe.edges import EdgeProgress  # noqa: TC001
from headgate.observe.graph import GraphView  # noqa: TC001
from headgate.observe.pressure import Pressure  # noqa: TC001
from headgate.observe.progress import Progress  # noqa: TC001
from headgate.observe.timeline import Timeline  # noqa: TC001
from headgate.observe.why.diagnosis import Diagnosis  # noqa: TC001 - fields' types, which `from_json` resolves
from headgate.version import __version__

__all__ = ["JobEvent", "JobView", "ObservedJob", "SettingView"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """An event in the life of a job."""

    at_ms: int
    text: str
    level: str = "info"  # or 'warning', 'error'


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A setting of a job."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job: its graph, its figures, its past, and the last answers of `pressure` and `why`.

    >>> from headgate.observe.status import JobStatus
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> view = JobView(at_ms=1000, graph=GraphView(vertices=(), edges=()), progress=progress)
    >>> JobView.from_json(view.to_json()) == view
    True
    """

    at_ms: int  # by the driver's clock
    graph: GraphView
    progress: Progress
    edges: tuple[EdgeProgress, ...] = ()  # sums over channels, for views without subtasks
    timeline: Timeline | None = None  # the whole history, if it was requested
    events: tuple[JobEvent, ...] = ()  # the last ones
    settings: tuple[SettingView, ...] = ()
    error: str | None = None  # of a failed job
    pressure: Pressure | None = None  # the last round of sampling
    diagnosis: Diagnosis | None = None  # the last answer to `why`
    headgate: str = __version__
    format: int = _FORMAT

    def to_json(self) -> bytes:
        """Return the view as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> JobView:
        """Return the view that `to_json` has written.

        Raises:
            HeadgateError: `data` is no view, or one of another format.
        """
        try:
            view = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HeadgateError(f"this is not the view of a job: {str(error)[:200]}") from None
        if view.format != _FORMAT:
            raise HeadgateError(
                f"it has format {view.format} of headgate {view.headgate}: this headgate reads format {_FORMAT}"
            )
        return view


class ObservedJob(Protocol):
    """A job that can be observed: one of this process, one of another process, or the file of a finished one."""

    def view(self, *, timeline: bool = False) -> JobView:
        """Return the job now; with its whole history if `timeline`."""
        ...

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """Return the last seconds in at most `points` steps: of all vertices, or of one vertex and its tasks."""
        ...

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Sample stacks (B1), which takes seconds; without `refresh`, an answer is valid for `backpressure.refresh`."""
        ...

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """Return what limits the job, and why. Samples stacks if the answer depends on them."""
        ...

    def cancel(self) -> bool:
        """Cancel the job. Return True if it is over."""
        ...
