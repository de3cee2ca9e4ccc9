"""The answers of the HTTP interface that are not shapes of `observe`. Plain data, made by the routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from headgate.observe.progress import ChannelProgress
from headgate.observe.status import JobStatus  # noqa: TC001 - a field's type, which the description resolves

if TYPE_CHECKING:
    from headgate.observe.view import JobView

__all__ = ["CancelAnswer", "EdgeAnswer", "EdgeChannel", "ErrorAnswer", "JobEntry", "edge_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job in the list of all jobs."""

    id: str
    name: str
    status: JobStatus
    started_ms: int  # when all its workers had registered, by the driver's clock
    allow_control: bool = False  # the page can cancel it


class EdgeChannel(ChannelProgress, frozen=True, kw_only=True):
    """A channel, with the subtask that reads it."""

    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAnswer:
    """All channels of an exchange."""

    exchange: int
    producers: int
    consumers: int
    channels: tuple[EdgeChannel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """The answer to a request to cancel a job."""

    over: bool  # it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """The reason why a request was not answered."""

    error: str


def edge_answer(view: JobView, exchange: int) -> EdgeAnswer | None:
    """Return the channels of an exchange, or None if there is no such exchange."""
    edge = next((one for one in view.graph.edges if one.id == exchange), None)
    if edge is None:
        return None
    parallelism = {one.id: one.parallelism for one in view.graph.vertices}
    consumer = next((one for one in view.progress.vertices if one.id == edge.consumer), None)
    return EdgeAnswer(
        exchange=exchange,
        producers=parallelism.get(edge.producer, 0),
        consumers=parallelism.get(edge.consumer, 0),
        channels=tuple(
            EdgeChannel(consumer=task.subtask, **structs.asdict(one))
            for task in (consumer.subtasks if consumer is not None else ())
            for one in task.channels
            if one.exchange == exchange
        ),
    )
