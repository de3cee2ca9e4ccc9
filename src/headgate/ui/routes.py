"""The table of all routes with their parameters and answers. Plain data.

`api` makes the application from it and `openapi` the description, so every route is described.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headgate.observe.pressure import Pressure
from headgate.observe.progress import VertexProgress, WorkerProgress
from headgate.observe.timeline import Timeline
from headgate.observe.view import JobView
from headgate.observe.why.diagnosis import Diagnosis
from headgate.ui.answers import CancelAnswer, EdgeAnswer, JobEntry

__all__ = ["MAX_POINTS", "MAX_SECONDS", "OPERATIONS", "Operation", "Parameter"]

MAX_SECONDS: Final = 3600.0
"""The longest timeline."""

MAX_POINTS: Final = 2000
"""The most steps of a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter in the address of a request."""

    name: str
    kind: str  # a type of JSON Schema
    within: str = "query"  # or 'path'
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route."""

    path: str
    handler: str  # the method of `Api`
    text: str
    method: str = "GET"
    answer: Any = None  # the type of the answer's JSON; None: it is not JSON
    media_type: str = "application/json"
    parameters: tuple[Parameter, ...] = ()
    empty: bool = False  # there may be no answer: 204
    control: bool = False  # it changes a job


_JOB: Final = Parameter(name="job", kind="string", within="path", text="its id, from /api/jobs")
_VERTEX: Final = Parameter(name="vertex", kind="integer", within="path")
_EDGE: Final = Parameter(name="edge", kind="integer", within="path")
_FILE: Final = Parameter(name="file", kind="string", within="path")
_PERIOD: Final = (
    Parameter(name="seconds", kind="number", text=f"length, at most {MAX_SECONDS:g}; default 60"),
    Parameter(name="points", kind="integer", text=f"the most steps, up to {MAX_POINTS}; default 300"),
    Parameter(name="vertex", kind="integer", text="this vertex and its subtasks; default: all vertices"),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(path="/", handler="page", text="The page.", media_type="text/html"),
    Operation(
        path="/static/{file}",
        handler="static",
        text="The files of the page.",
        media_type="application/octet-stream",
        parameters=(_FILE,),
    ),
    Operation(path="/api/openapi.json", handler="openapi", text="This description.", answer=dict[str, Any]),
    Operation(path="/api/jobs", handler="jobs", text="All jobs of this page.", answer=list[JobEntry]),
    Operation(
        path="/api/jobs/{job}",
        handler="view",
        text="A job without its subtasks: small enough to be requested every second.",
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
        text="The last seconds of its history.",
        answer=Timeline,
        parameters=(_JOB, *_PERIOD),
    ),
    Operation(
        path="/api/jobs/{job}/pressure",
        handler="pressure",
        text="The result of the last round of sampling; 204 if there was none.",
        answer=Pressure,
        parameters=(_JOB,),
        empty=True,
    ),
    Operation(
        path="/api/jobs/{job}/pressure",
        handler="sample_pressure",
        text="Sample the stacks of all tasks, which takes some seconds.",
        method="POST",
        answer=Pressure,
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/why",
        handler="why",
        text="The last diagnosis of the job; 204 if there is none.",
        answer=Diagnosis,
        parameters=(_JOB,),
        empty=True,
    ),
    Operation(
        path="/api/jobs/{job}/why",
        handler="ask_why",
        text="Find out what limits the job, which may take some seconds.",
        method="POST",
        answer=Diagnosis,
        parameters=(_JOB,),
    ),
    Operation(
        path="/api/jobs/{job}/cancel",
        handler="cancel",
        text="Cancel the job. Only if the server allows control.",
        method="POST",
        answer=CancelAnswer,
        parameters=(_JOB,),
        control=True,
    ),
    Operation(path="/metrics", handler="metrics", text="All jobs, for Prometheus.", media_type="text/plain"),
)
"""All routes."""
