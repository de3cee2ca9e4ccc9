"""Every error headgate raises, as one tree. One class = one wire code.

A message says what happened, to which operator, subtask or channel, and what to do about it. A failure
that crosses the network travels as `code` plus capped text and is raised again on the other side as the
class of that code: never as a pickled object. Codes are part of the wire format: never reuse one.
"""

from typing import ClassVar

__all__ = [
    "AuthError",
    "Cancelled",
    "ConfigError",
    "CorruptStream",
    "HeadgateError",
    "InsufficientBuffers",
    "InvariantViolated",
    "LocalProtocolError",
    "PartitionNotFound",
    "ProducerFailed",
    "RecordTooLarge",
    "RemoteProtocolError",
    "RequestTimeout",
    "SelectorError",
    "SerializationError",
    "SpillError",
    "TransportError",
    "UnstableKey",
    "UserCodeError",
    "error_class",
]


class HeadgateError(Exception):
    """The root of the tree: `except HeadgateError` catches all that headgate raises on purpose.

    >>> issubclass(ConfigError, HeadgateError)
    True
    """

    code: ClassVar[int] = 1


class ConfigError(HeadgateError):
    """A setting is unknown, malformed, out of its limits, or contradicts another."""

    code = 2


class LocalProtocolError(HeadgateError):
    """This side used the exchange wrongly: a bug in headgate or in code that calls its internals."""

    code = 3


class RemoteProtocolError(HeadgateError):
    """The peer broke the protocol; its connection is closed."""

    code = 4


class AuthError(HeadgateError):
    """A peer did not prove who it is. Deliberately says nothing more."""

    code = 5


class TransportError(HeadgateError):
    """A connection failed or timed out.

    >>> TransportError("connection reset", peer="127.0.0.1:7077").peer
    '127.0.0.1:7077'
    """

    code = 6

    def __init__(self, message: str, *, peer: str = "unknown peer") -> None:
        super().__init__(f"{message} ({peer})")
        self.peer = peer


class PartitionNotFound(HeadgateError):
    """No such result partition on the worker that was asked, also after all retries."""

    code = 7


class ProducerFailed(HeadgateError):
    """The task that produces this input failed; `cause` is what it reported."""

    code = 8

    def __init__(self, message: str, *, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause


class InsufficientBuffers(HeadgateError):
    """The network memory has too few segments for what was asked of it."""

    code = 9


class UserCodeError(HeadgateError):
    """A user's function raised.

    >>> print(UserCodeError("division by zero", operator="map", subtask=3))
    map, subtask 3: division by zero
    """

    code = 10

    def __init__(self, message: str, *, operator: str, subtask: int) -> None:
        super().__init__(f"{operator}, subtask {subtask}: {message}")
        self.operator = operator
        self.subtask = subtask


class InvariantViolated(HeadgateError):
    """The exchange found itself in a state that must not exist: a bug, never bad input."""

    code = 11


class Cancelled(HeadgateError):
    """The partition, gate or pool was released while, or before, it was used."""

    code = 12


class RequestTimeout(HeadgateError):
    """A blocking request got no answer within its time."""

    code = 13


class CorruptStream(HeadgateError):
    """The bytes of a channel are not a sequence of stream elements."""

    code = 14


class SerializationError(HeadgateError):
    """A value cannot be written by, or read with, the serializer of its exchange."""

    code = 15


class RecordTooLarge(SerializationError):
    """A record is over `record.max_size`."""

    code = 16


class SpillError(HeadgateError):
    """A large record could not be written to, or read from, its temporary file."""

    code = 17


class SelectorError(HeadgateError):
    """A user's partitioner answered with something that is not a channel number."""

    code = 18


class UnstableKey(HeadgateError):
    """A key has no hash that is the same in every process, so it cannot be partitioned by."""

    code = 19


def _classes(root: type[HeadgateError]) -> dict[int, type[HeadgateError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, cls in _classes(child).items():
            assert code not in found or found[code] is cls, f"wire code {code} is used twice"
            found[code] = cls
    return found


_BY_CODE = _classes(HeadgateError)


def error_class(code: int) -> type[HeadgateError]:
    """The class that stands for a wire code; `HeadgateError` for one this version does not know.

    >>> error_class(7).__name__
    'PartitionNotFound'
    """
    return _BY_CODE.get(code, HeadgateError)
