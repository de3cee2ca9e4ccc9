"""Every state of a channel and of a connection on the wire, and the steps of each: tables, nothing else.

A channel between two workers has two directions, and each ends with a last frame of its own. The producer ends its
direction with its last `Data` (a flag marks it) or with a `ReportError`; the consumer ends its direction with
`CancelRequest`, after the end or before it. Credit, events and data that cross such a frame on the way are legal. When
both directions have ended, both sides delete the channel. A frame for a channel that is deleted or was never requested
is the peer's error and ends the connection.

The producer answers a consumer that cancels before the end with `ReportError(Cancelled)`: so the producer's direction
has a last frame too, and the consumer knows until when to drop data.

Each side of a connection sends `Close` when it has no more use for it. After `Close` a side requests nothing more, but
serves what was requested of it; a new request makes a new connection.

A step that is not in a table is an error: `RemoteProtocolError` if the peer took it, else `LocalProtocolError`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeVar

from headgate.errors import HeadgateError, LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CONNECTION_STEPS",
    "CONSUMER_STEPS",
    "PRODUCER_STEPS",
    "ConnectionState",
    "ConnectionStep",
    "ConsumerState",
    "ConsumerStep",
    "ProducerState",
    "ProducerStep",
    "step",
]


class ProducerState(Enum):
    """The state of a channel at its producer.

    >>> PRODUCER_STEPS[ProducerState.SENDING, ProducerStep.CREDIT]
    <ProducerState.SENDING: 1>
    """

    SENDING = auto()
    ENDED = auto()  # has sent its last frame; the consumer has not
    GONE = auto()


class ProducerStep(Enum):
    """A frame of a channel, as its producer sends or receives it."""

    DATA = auto()  # sent, as the next two
    LAST = auto()
    ERROR = auto()
    CREDIT = auto()  # received, as the next two
    TASK_EVENT = auto()
    CANCEL = auto()


PRODUCER_STEPS: Final[Mapping[tuple[ProducerState, ProducerStep], ProducerState]] = {
    (ProducerState.SENDING, ProducerStep.DATA): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.LAST): ProducerState.ENDED,
    (ProducerState.SENDING, ProducerStep.ERROR): ProducerState.ENDED,
    (ProducerState.SENDING, ProducerStep.CREDIT): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.TASK_EVENT): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.CANCEL): ProducerState.GONE,  # and answered
    (ProducerState.ENDED, ProducerStep.CREDIT): ProducerState.ENDED,  # it has crossed the last frame
    (ProducerState.ENDED, ProducerStep.TASK_EVENT): ProducerState.ENDED,
    (ProducerState.ENDED, ProducerStep.CANCEL): ProducerState.GONE,
}
"""The state after each step; a step that is missing is an error."""


class ConsumerState(Enum):
    """The state of a channel at its consumer.

    >>> CONSUMER_STEPS[ConsumerState.RECEIVING, ConsumerStep.LAST]
    <ConsumerState.ENDED: 2>
    """

    RECEIVING = auto()
    ENDED = auto()  # the producer has sent its last frame; the consumer has not
    CANCELLED = auto()  # the consumer has sent its last frame; data that still arrives is dropped
    GONE = auto()


class ConsumerStep(Enum):
    """A frame of a channel, as its consumer sends or receives it."""

    CREDIT = auto()  # sent, as the next two
    TASK_EVENT = auto()
    CANCEL = auto()
    DATA = auto()  # received, as the next three
    BACKLOG = auto()
    LAST = auto()
    ERROR = auto()


CONSUMER_STEPS: Final[Mapping[tuple[ConsumerState, ConsumerStep], ConsumerState]] = {
    (ConsumerState.RECEIVING, ConsumerStep.CREDIT): ConsumerState.RECEIVING,
    (ConsumerState.RECEIVING, ConsumerStep.TASK_EVENT): ConsumerState.RECEIVING,
    (ConsumerState.RECEIVING, ConsumerStep.CANCEL): ConsumerState.CANCELLED,
    (ConsumerState.RECEIVING, ConsumerStep.DATA): ConsumerState.RECEIVING,
    (ConsumerState.RECEIVING, ConsumerStep.BACKLOG): ConsumerState.RECEIVING,
    (ConsumerState.RECEIVING, ConsumerStep.LAST): ConsumerState.ENDED,
    (ConsumerState.RECEIVING, ConsumerStep.ERROR): ConsumerState.ENDED,
    (ConsumerState.ENDED, ConsumerStep.TASK_EVENT): ConsumerState.ENDED,
    (ConsumerState.ENDED, ConsumerStep.CANCEL): ConsumerState.GONE,
    (ConsumerState.CANCELLED, ConsumerStep.DATA): ConsumerState.CANCELLED,
    (ConsumerState.CANCELLED, ConsumerStep.BACKLOG): ConsumerState.CANCELLED,
    (ConsumerState.CANCELLED, ConsumerStep.LAST): ConsumerState.GONE,
    (ConsumerState.CANCELLED, ConsumerStep.ERROR): ConsumerState.GONE,
}
"""The state after each step; a step that is missing is an error."""


class ConnectionState(Enum):
    """The state of a connection, from its first byte to its last."""

    PROVING = auto()  # during the handshake
    OPEN = auto()
    WE_CLOSED = auto()  # this side has sent `Close`, the peer has not
    THEY_CLOSED = auto()
    CLOSED = auto()  # both have; the stream ends
    LOST = auto()


class ConnectionStep(Enum):
    """A step of a connection."""

    PROVED = auto()
    WE_CLOSE = auto()
    THEY_CLOSE = auto()
    LOSE = auto()


CONNECTION_STEPS: Final[Mapping[tuple[ConnectionState, ConnectionStep], ConnectionState]] = {
    (ConnectionState.PROVING, ConnectionStep.PROVED): ConnectionState.OPEN,
    (ConnectionState.OPEN, ConnectionStep.WE_CLOSE): ConnectionState.WE_CLOSED,
    (ConnectionState.OPEN, ConnectionStep.THEY_CLOSE): ConnectionState.THEY_CLOSED,
    (ConnectionState.WE_CLOSED, ConnectionStep.THEY_CLOSE): ConnectionState.CLOSED,
    (ConnectionState.THEY_CLOSED, ConnectionStep.WE_CLOSE): ConnectionState.CLOSED,
    **{
        (state, ConnectionStep.LOSE): ConnectionState.LOST
        for state in ConnectionState
        if state is not ConnectionState.LOST
    },
}
"""The state after each step; a step that is missing is an error."""

_State = TypeVar("_State", bound=Enum)
_Step = TypeVar("_Step", bound=Enum)


def step(
    steps: Mapping[tuple[_State, _Step], _State], state: _State, what: _Step, subject: object, *, ours: bool
) -> _State:
    """Return the state after a step.

    `subject` is the channel or connection as error texts name it; `ours`: this side takes the step, not the peer.

    >>> step(CONSUMER_STEPS, ConsumerState.ENDED, ConsumerStep.DATA, "receiver 3", ours=False)
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: receiver 3: data while it is ended
    """
    after = steps.get((state, what))
    if after is None:
        kind: type[HeadgateError] = LocalProtocolError if ours else RemoteProtocolError
        raise kind(f"{subject}: {_words(what)} while it is {_words(state)}")
    return after


def _words(name: Enum) -> str:
    return name.name.lower().replace("_", " ")
