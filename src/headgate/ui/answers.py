"""What the HTTP interface answers where that is not one of the shapes of `observe`. Plain data, made by the routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.observe.status import JobStatus  # noqa: TC001 - a field's type, which the description looks up

if TYPE_CHECKING:
    from headgate.observe.view import JobView

__all__ = ["CancelAnswer", "EdgeAnswer", "EdgeChannel", "ErrorAnswer", "JobEntry", "edge_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job in the list of all.

    >>> JobEntry(id="1", name="etl", status="running", started_ms=0).allow_control
    False
    """

    id: str
    name: str
    status: JobStatus
    started_ms: int  # when all its workers were there, by the driver's clock
    allow_control: bool = False  # whether it may be cancelled from here


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChannel:
    """A channel, from its consumer's side.

    >>> EdgeChannel(consumer=0, producer=1, local=False).credit
    0
    """

    consumer: int  # subtask
    producer: int  # subtask
    local: bool
    backlog: int = 0
    queued: int = 0
    exclusive: int = 0
    floating: int = 0
    credit: int = 0
    bytes_in: int = 0
    exchange: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAnswer:
    """All channels of an exchange.

    >>> EdgeAnswer(exchange=0, producers=2, consumers=2, channels=()).channels
    ()
    """

    exchange: int
    producers: int
    consumers: int
    channels: tuple[EdgeChannel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """What has become of a job that was to be stopped.

    >>> CancelAnswer(over=True).over
    True
    """

    over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """What was wrong.

    >>> ErrorAnswer(error="there is no job 'x' here").error
    "there is no job 'x' here"
    """

    error: str


def edge_answer(view: JobView, exchange: int) -> EdgeAnswer | None:
    """The channels of an exchange; None: there is no such.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> edge_answer(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), 0) is None
    True
    """
    edge = next((one for one in view.graph.edges if one.id == exchange), None)
    if edge is None:
        return None
    parallelism = {one.id: one.parallelism for one in view.graph.vertices}
    consumer = next((one for one in view.progress.vertices if one.id == edge.consumer), None)
    channels = tuple(
        EdgeChannel(
            exchange=exchange,
            consumer=task.subtask,
            producer=one.producer,
            local=one.local,
            backlog=one.backlog,
            queued=one.queued,
            exclusive=one.exclusive,
            floating=one.floating,
            credit=one.credit,
            bytes_in=one.bytes_in,
        )
        for task in (consumer.subtasks if consumer is not None else ())
        for one in task.channels
        if one.exchange == exchange
    )
    return EdgeAnswer(
        exchange=exchange,
        producers=parallelism.get(edge.producer, 0),
        consumers=parallelism.get(edge.consumer, 0),
        channels=channels,
    )
