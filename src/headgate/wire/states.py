"""Every state of a channel and of a connection on the wire, and what may happen in each: tables, nothing else.

A channel between two workers has two directions, and each is ended by a last frame of its own. The producer ends its
direction with its last `Data` (the flag says so) or with a `ReportError`; the consumer ends its own with
`CancelRequest`, whether it has read everything or wants no more. Credit, events and data that cross such an end on the
way are no mistake. When both have ended, both sides forget the channel: whatever comes for it after that, or for one
that never was, is the peer's mistake and costs it the connection.

A consumer that cancels in the middle is answered with `ReportError(Cancelled)`, so that the producer's direction has
its last frame then, too: the consumer knows how long to drop what is still on its way.

A connection is ended by both, each with `Close`, when it has no more use for it. Who has said `Close` requests nothing
more, but serves what was requested of it; a new use makes a new connection.

What is not in a table is an error: `RemoteProtocolError` if the peer did it, `LocalProtocolError` if we did.
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
    """A channel as its producer sees it.

    >>> PRODUCER_STEPS[ProducerState.SENDING, ProducerStep.CREDIT]
    <ProducerState.SENDING: 1>
    """

    SENDING = auto()
    ENDED = auto()  # said its last; the consumer has not yet
    GONE = auto()


class ProducerStep(Enum):
    """What happens to a channel at its producer.

    >>> (ProducerState.GONE, ProducerStep.CREDIT) in PRODUCER_STEPS
    False
    """

    DATA = auto()  # ours, as are the next two
    LAST = auto()
    ERROR = auto()
    CREDIT = auto()  # the peer's, as are the next two
    TASK_EVENT = auto()
    CANCEL = auto()


PRODUCER_STEPS: Final[Mapping[tuple[ProducerState, ProducerStep], ProducerState]] = {
    (ProducerState.SENDING, ProducerStep.DATA): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.LAST): ProducerState.ENDED,
    (ProducerState.SENDING, ProducerStep.ERROR): ProducerState.ENDED,
    (ProducerState.SENDING, ProducerStep.CREDIT): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.TASK_EVENT): ProducerState.SENDING,
    (ProducerState.SENDING, ProducerStep.CANCEL): ProducerState.GONE,  # and is answered
    (ProducerState.ENDED, ProducerStep.CREDIT): ProducerState.ENDED,  # crossed our last
    (ProducerState.ENDED, ProducerStep.TASK_EVENT): ProducerState.ENDED,
    (ProducerState.ENDED, ProducerStep.CANCEL): ProducerState.GONE,
}
"""Where each step leads; what is not here is an error."""


class ConsumerState(Enum):
    """A channel as its consumer sees it.

    >>> CONSUMER_STEPS[ConsumerState.RECEIVING, ConsumerStep.LAST]
    <ConsumerState.ENDED: 2>
    """

    RECEIVING = auto()
    ENDED = auto()  # the producer has said its last; we have not yet
    CANCELLED = auto()  # we have said our last; what still comes is dropped
    GONE = auto()


class ConsumerStep(Enum):
    """What happens to a channel at its consumer.

    >>> (ConsumerState.ENDED, ConsumerStep.DATA) in CONSUMER_STEPS
    False
    """

    CREDIT = auto()  # ours, as are the next two
    TASK_EVENT = auto()
    CANCEL = auto()
    DATA = auto()  # the peer's, as are the next three
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
"""Where each step leads; what is not here is an error."""


class ConnectionState(Enum):
    """A connection, from its first byte to its last.

    >>> CONNECTION_STEPS[ConnectionState.PROVING, ConnectionStep.PROVED]
    <ConnectionState.OPEN: 2>
    """

    PROVING = auto()  # the handshake is under way
    OPEN = auto()
    WE_CLOSED = auto()  # we have said `Close`, the peer has not
    THEY_CLOSED = auto()
    CLOSED = auto()  # both have; the stream ends
    LOST = auto()


class ConnectionStep(Enum):
    """What happens to a connection.

    >>> (ConnectionState.LOST, ConnectionStep.PROVED) in CONNECTION_STEPS
    False
    """

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
"""Where each step leads; what is not here is an error."""

_State = TypeVar("_State", bound=Enum)
_Step = TypeVar("_Step", bound=Enum)


def step(
    steps: Mapping[tuple[_State, _Step], _State], state: _State, what: _Step, who: object, *, ours: bool
) -> _State:
    """The state after a step.

    `who` is the channel or connection as error texts name it; `ours` says whose mistake a wrong step is.

    >>> step(CONSUMER_STEPS, ConsumerState.ENDED, ConsumerStep.DATA, "receiver 3", ours=False)
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: receiver 3: data while it is ended
    """
    after = steps.get((state, what))
    if after is None:
        kind: type[HeadgateError] = LocalProtocolError if ours else RemoteProtocolError
        raise kind(f"{who}: {_words(what)} while it is {_words(state)}")
    return after


def _words(name: Enum) -> str:
    return name.name.lower().replace("_", " ")
