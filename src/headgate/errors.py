"""The errors that headgate raises, as one tree. Each class has one wire code.

A message says what happened, to which operator, subtask or channel, and what to do. An error is sent to another process
as `code` and a text of limited length, never as a pickled object, and raised there as the class of that code. Codes are
part of the wire format: a code is never used again for another class.
"""

from typing import ClassVar

__all__ = [
    "AuthError",
    "Cancelled",
    "ChecksumMismatch",
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
    "StorageError",
    "StorageFull",
    "TransportError",
    "UnknownReceiver",
    "UnstableKey",
    "UserCodeError",
    "error_class",
    "error_from_wire",
]


class HeadgateError(Exception):
    """The base class of all errors that headgate raises on purpose."""

    code: ClassVar[int] = 1


class ConfigError(HeadgateError):
    """A setting is unknown, malformed, out of its limits, or contradicts another.

    >>> from headgate.config import Settings
    >>> Settings().value("memory.segmentsize")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown setting memory.segmentsize: did you mean memory.segment_size? ...
    """

    code = 2


class LocalProtocolError(HeadgateError):
    """This process violated the rules of the exchange: a bug in headgate, or in code that calls its internals.

    >>> from headgate.record.spanning import SpanningWriter
    >>> writer = SpanningWriter()
    >>> writer.begin((b"one record",)); writer.begin((b"another",))
    Traceback (most recent call last):
    headgate.errors.LocalProtocolError: a record is begun while another is unfinished
    """

    code = 3


class RemoteProtocolError(HeadgateError):
    """The peer violated the protocol; its connection is closed."""

    code = 4


class AuthError(HeadgateError):
    """A peer did not prove its identity. The text gives no details, which would help an attacker."""

    code = 5


class TransportError(HeadgateError):
    """A connection failed or timed out."""

    code = 6
    peer: str = "unknown peer"

    def __init__(self, message: str, *, peer: str = "unknown peer") -> None:
        super().__init__(f"{message} ({peer})")
        self.peer = peer


class PartitionNotFound(HeadgateError):
    """The worker has no such result partition, also after all retries."""

    code = 7


class ProducerFailed(HeadgateError):
    """The task that produces this input failed; `cause` is the error that it reported.

    >>> error = ProducerFailed("its producer failed: disk full", cause=OSError("disk full"))
    >>> error.cause
    OSError('disk full')
    """

    code = 8
    cause: BaseException | None = None

    def __init__(self, message: str, *, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause


class InsufficientBuffers(HeadgateError):
    """The network memory has too few segments for a pool or channel.

    >>> from headgate.worker import Environment
    >>> Environment(memory_bytes=1000)
    Traceback (most recent call last):
    headgate.errors.InsufficientBuffers: network memory holds no segment of 32768 bytes: raise memory.network.min ...
    """

    code = 9


class UserCodeError(HeadgateError):
    """A user's function raised an exception.

    >>> print(UserCodeError("division by zero", operator="map", subtask=3))
    map, subtask 3: division by zero
    """

    code = 10
    operator: str = "unknown operator"
    subtask: int = -1
    trace: str = ""
    """The traceback of the user's code, perhaps from another process."""

    def __init__(self, message: str, *, operator: str, subtask: int, trace: str = "") -> None:
        super().__init__(f"{operator}, subtask {subtask}: {message}" + (f"\n\n{trace}" if trace else ""))
        self.operator = operator
        self.subtask = subtask
        self.trace = trace

    @classmethod
    def of(cls, error: BaseException, *, operator: str, subtask: int) -> "UserCodeError":
        """Return the error for an exception of a user's function, with the user's part of its traceback.

        >>> try:
        ...     1 / 0
        ... except ZeroDivisionError as error:
        ...     print(str(UserCodeError.of(error, operator="map", subtask=3)).splitlines()[0])
        map, subtask 3: ZeroDivisionError: division by zero
        """
        import traceback  # noqa: PLC0415 - only a failure pays for it

        where = error.__traceback__
        while where is not None and _is_ours(where.tb_frame.f_globals.get("__name__", "")):
            where = where.tb_next
        trace = "".join(traceback.format_exception(type(error), error, where or error.__traceback__)).rstrip()
        text = "".join(traceback.format_exception_only(error)).strip()
        return cls(text, operator=operator, subtask=subtask, trace=trace)


class InvariantViolated(HeadgateError):
    """The exchange detected a state that must not exist: a bug in headgate, never bad input."""

    code = 11


class Cancelled(HeadgateError):
    """The partition, gate or pool was released before or during its use.

    >>> from headgate.worker import Environment
    >>> worker = Environment(memory_bytes=2**20); worker.close()
    >>> worker.gate("words", channels=1)
    Traceback (most recent call last):
    headgate.errors.Cancelled: the worker is closed
    """

    code = 12


class RequestTimeout(HeadgateError):
    """A blocking request was not granted in time.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     worker.memory.create_pool("map", required=0, maximum=0).request(timeout_s=0)
    Traceback (most recent call last):
    headgate.errors.RequestTimeout: map got no network buffer within 0 s: its 0 buffers, ... are all in use. ...
    """

    code = 13


class CorruptStream(HeadgateError):
    """The bytes of a channel are not a sequence of stream elements.

    >>> from headgate.record.element import decode_event
    >>> decode_event(b"junk", "gate words, channel 0")
    Traceback (most recent call last):
    headgate.errors.CorruptStream: gate words, channel 0: not an event: ...
    """

    code = 14


class SerializationError(HeadgateError):
    """The serializer of an exchange cannot encode or decode a value.

    >>> from headgate.record import MsgpackSerializer
    >>> MsgpackSerializer(int).encode("seven")
    Traceback (most recent call last):
    headgate.errors.SerializationError: msgpack:int cannot write a record of type str: Expected `int`, got `str`; ...
    """

    code = 15


class RecordTooLarge(SerializationError):
    """A record is over `record.max_size`.

    >>> from headgate.record.spanning import RecordLimits
    >>> RecordLimits(max_size_bytes=1000).check(1001)
    Traceback (most recent call last):
    headgate.errors.RecordTooLarge: a record or batch takes 1001 bytes; the limit is 1000 (record.max_size)
    """

    code = 16


class SpillError(HeadgateError):
    """A large record could not be written to, or read from, its temporary file.

    >>> from headgate.record.spanning import LENGTH, RecordLimits, SpanningReader
    >>> limits = RecordLimits(spill_threshold_bytes=4, spill_directory="/nonesuch")
    >>> reader = SpanningReader(limits, "channel 0")
    >>> reader.feed(memoryview(LENGTH.pack(5) + b"he")); reader.next()
    Traceback (most recent call last):
    headgate.errors.SpillError: a record of ... bytes could not be gathered in /nonesuch: ...
    """

    code = 17


class SelectorError(HeadgateError):
    """A user's partitioner returned something that is not a channel number.

    >>> from headgate.output import Custom
    >>> by_length = Custom(lambda word, channels: len(word), name="by_length"); by_length.connect(2)
    >>> by_length.choose("or")
    Traceback (most recent call last):
    headgate.errors.SelectorError: partitioner by_length answered 2 for a str: it must answer an int from 0 to 1
    """

    code = 18


class UnstableKey(HeadgateError):
    """A key has no hash that is the same in every process, so no exchange can partition by it.

    >>> from headgate.record import stable_hash
    >>> stable_hash(["to", "be"])
    Traceback (most recent call last):
    headgate.errors.UnstableKey: list can change while it is a key: use a tuple
    """

    code = 19


class ChecksumMismatch(CorruptStream):
    """A received buffer differs from the one that its producer sent (`network.checksum`)."""

    code = 20


class StorageError(HeadgateError):
    """The file or directory `path` could not be written, read or found.

    >>> StorageError("cannot be read: Input/output error", path="/data/v0.0-3.partition")
    StorageError('/data/v0.0-3.partition: cannot be read: Input/output error')
    """

    code = 21
    path: str = "unknown path"

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class StorageFull(StorageError):
    """A disk is full, or `batch.disk_quota` is used up."""

    code = 22


class UnknownReceiver(HeadgateError):
    """A task event has no receiver: its producer has ended, or subscribes to no event of that name.

    It fails no task: the worker that sent the event logs and counts it.
    """

    code = 23


def _is_ours(module: str) -> bool:
    """Return True for headgate's own modules, which a user's traceback leaves out; examples count as user code."""
    return module.startswith("headgate.") and not module.startswith("headgate.examples")


def _classes(root: type[HeadgateError]) -> dict[int, type[HeadgateError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, cls in _classes(child).items():
            assert code not in found or found[code] is cls, f"wire code {code} is used twice"
            found[code] = cls
    return found


_BY_CODE = _classes(HeadgateError)


def error_from_wire(code: int, text: str) -> HeadgateError:
    """Return the error that a peer reported by code and text: an instance of the code's class with that text.

    >>> error_from_wire(10, "map, subtask 3: division by zero")
    UserCodeError('map, subtask 3: division by zero')
    """
    cls = error_class(code)
    error = cls.__new__(cls, text)
    Exception.__init__(error, text)  # not cls.__init__: the text is already complete
    return error


def error_class(code: int) -> type[HeadgateError]:
    """Return the class of a wire code; `HeadgateError` for a code that this version does not know."""
    return _BY_CODE.get(code, HeadgateError)
