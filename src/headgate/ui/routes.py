"""The table of all routes: what each takes and answers. Plain data.

`api` makes the application of it and `openapi` the description, so a route that is not described cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headgate.observe.diagnosis import Diagnosis
from headgate.observe.pressure import Pressure
from headgate.observe.progress import VertexProgress, WorkerProgress
from headgate.observe.timeline import Timeline
from headgate.observe.view import JobView
from headgate.ui.answers import CancelAnswer, EdgeAnswer, JobEntry

__all__ = ["MAX_POINTS", "MAX_SECONDS", "OPERATIONS", "Operation", "Parameter"]

MAX_SECONDS: Final = 3600.0
"""How far back a time-line goes at most."""

MAX_POINTS: Final = 2000
"""How many steps it has at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Something that a request says in its address.

    >>> Parameter(name="vertex", kind="integer").within
    'query'
    """

    name: str
    kind: str  # as JSON Schema calls it
    within: str = "query"  # or 'path'
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route.

    >>> [one.path for one in OPERATIONS if one.method == "POST"]
    ['/api/jobs/{job}/pressure', '/api/jobs/{job}/why', '/api/jobs/{job}/cancel']
    """

    path: str
    handler: str  # the method of `Api`
    text: str
    method: str = "GET"
    answer: Any = None  # the type of the answer's JSON; None: it is not JSON
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    empty: bool = False  # it may have nothing to say: 204
    control: bool = False  # it changes something


_JOB: Final = Parameter(name="job", kind="string", within="path", text="its id, as /api/jobs gives it")
_VERTEX: Final = Parameter(name="vertex", kind="integer", within="path")
_EDGE: Final = Parameter(name="edge", kind="integer", within="path")
_FILE: Final = Parameter(name="file", kind="string", within="path")
_STRETCH: Final = (
    Parameter(name="seconds", kind="number", text=f"how far back, at most {MAX_SECONDS:g}; 60 if not said"),
    Parameter(name="points", kind="integer", text=f"how many steps at most, up to {MAX_POINTS}; 300 if not said"),
    Parameter(name="vertex", kind="integer", text="of this one and its subtasks; if not said, of all vertices"),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(path="/", handler="page", text="The page.", media_type="text/html"),
    Operation(
        path="/static/{file}",
        handler="static",
        text="What the page is made of.",
        media_type="application/octet-stream",
        parameters=(_FILE,),
    ),
    Operation(path="/api/openapi.json", handler="openapi", text="This description.", answer=dict[str, Any]),
    Operation(path="/api/jobs", handler="jobs", text="All jobs that can be looked at here.", answer=list[JobEntry]),
    Operation(
        path="/api/jobs/{job}",
        handler="view",
        text="A job without its subtasks: small enough to be asked for every second.",
        answer=JobView,
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/vertices/{vertex}",
        handler="vertex",
        text="A vertex with its subtasks.",
        answer=VertexProgress,
        parameters=(_JOB, _VERTEX),
    ),
    Operation(
        path="/api/jobs/{job}/edges/{edge}",
        handler="edge",
        text="The channels of an exchange.",
        answer=EdgeAnswer,
        parameters=(_JOB, _EDGE),
    ),
    Operation(
        path="/api/jobs/{job}/workers",
        handler="workers",
        text="The workers with all their connections.",
        answer=list[WorkerProgress],
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/timeline",
        handler="timeline",
        text="The last stretch of the past.",
        answer=Timeline,
        parameters=(_JOB, *_STRETCH),
    ),
    Operation(
        path="/api/jobs/{job}/pressure",
        handler="pressure",
        text="What the last round of sampling has found; 204 if there was none.",
        answer=Pressure,
        parameters=(_JOB,),
        empty=True,
    ),
    Operation(
        path="/api/jobs/{job}/pressure",
        handler="sample_pressure",
        text="Sample the stacks of all tasks now, which takes some seconds.",
        method="POST",
        answer=Pressure,
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/why",
        handler="why",
        text="What was last found to hold the job back; 204 if nobody has asked.",
        answer=Diagnosis,
        parameters=(_JOB,),
        empty=True,
    ),
    Operation(
        path="/api/jobs/{job}/why",
        handler="ask_why",
        text="Find out what holds the job back, which may take some seconds.",
        method="POST",
        answer=Diagnosis,
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/cancel",
        handler="cancel",
        text="Stop the job. Only where the server was told to allow it.",
        method="POST",
        answer=CancelAnswer,
        parameters=(_JOB,),
        control=True,
    ),
    Operation(path="/metrics", handler="metrics", text="All jobs, for Prometheus.", media_type="text/plain"),
)
"""Every route there is."""
