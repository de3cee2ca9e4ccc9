"""Every error headgate raises, as one tree. One class = one wire code.

A message says what happened, to which operator, subtask or channel, and what to do about it. A failure
that crosses the network travels as `code` plus capped text and is raised again on the other side as the
class of that code: never as a pickled object. Codes are part of the wire format: never reuse one.
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
    "UnstableKey",
    "UserCodeError",
    "error_class",
    "error_from_wire",
]


class HeadgateError(Exception):
    """The root of the tree: `except HeadgateError` catches all that headgate raises on purpose.

    >>> issubclass(ConfigError, HeadgateError)
    True
    """

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
    """This side used the exchange wrongly: a bug in headgate or in code that calls its internals.

    >>> from headgate.record.spanning import SpanningWriter
    >>> writer = SpanningWriter()
    >>> writer.begin((b"one record",)); writer.begin((b"another",))
    Traceback (most recent call last):
    headgate.errors.LocalProtocolError: a record is begun while another is unfinished
    """

    code = 3


class RemoteProtocolError(HeadgateError):
    """The peer broke the protocol; its connection is closed.

    >>> raise RemoteProtocolError("worker 3 sent a buffer without a credit")
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: worker 3 sent a buffer without a credit
    """

    code = 4


class AuthError(HeadgateError):
    """A peer did not prove who it is. Deliberately says nothing more.

    >>> raise AuthError("authentication failed")
    Traceback (most recent call last):
    headgate.errors.AuthError: authentication failed
    """

    code = 5


class TransportError(HeadgateError):
    """A connection failed or timed out.

    >>> TransportError("connection reset", peer="127.0.0.1:7077").peer
    '127.0.0.1:7077'
    """

    code = 6
    peer: str = "unknown peer"

    def __init__(self, message: str, *, peer: str = "unknown peer") -> None:
        super().__init__(f"{message} ({peer})")
        self.peer = peer


class PartitionNotFound(HeadgateError):
    """No such result partition on the worker that was asked, also after all retries.

    >>> from headgate.output import PartitionRegistry
    >>> from headgate.sync import ThreadSync
    >>> PartitionRegistry(ThreadSync().lock).attach_locked("etl#1/v3.0[7]", 0, listener=None)
    Traceback (most recent call last):
    headgate.errors.PartitionNotFound: partition etl#1/v3.0[7] is not on this worker, or not yet, or no more
    """

    code = 7


class ProducerFailed(HeadgateError):
    """The task that produces this input failed; `cause` is what it reported.

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
    """The network memory has too few segments for what was asked of it.

    >>> from headgate.worker import Environment
    >>> Environment(memory_bytes=1000)
    Traceback (most recent call last):
    headgate.errors.InsufficientBuffers: network memory holds no segment of 32768 bytes: raise memory.network.min ...
    """

    code = 9


class UserCodeError(HeadgateError):
    """A user's function raised.

    >>> print(UserCodeError("division by zero", operator="map", subtask=3))
    map, subtask 3: division by zero
    """

    code = 10
    operator: str = "unknown operator"
    subtask: int = -1
    trace: str = ""
    """The traceback where it was raised, which may have been in another process."""

    def __init__(self, message: str, *, operator: str, subtask: int, trace: str = "") -> None:
        super().__init__(f"{operator}, subtask {subtask}: {message}" + (f"\n\n{trace}" if trace else ""))
        self.operator = operator
        self.subtask = subtask
        self.trace = trace

    @classmethod
    def of(cls, error: BaseException, *, operator: str, subtask: int) -> "UserCodeError":
        """What a user's function has raised, with the part of its traceback that is the user's.

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
    """The exchange found itself in a state that must not exist: a bug, never bad input.

    >>> raise InvariantViolated("Segment(3) came back to the network pool twice")
    Traceback (most recent call last):
    headgate.errors.InvariantViolated: Segment(3) came back to the network pool twice
    """

    code = 11


class Cancelled(HeadgateError):
    """The partition, gate or pool was released while, or before, it was used.

    >>> from headgate.worker import Environment
    >>> worker = Environment(memory_bytes=2**20); worker.close()
    >>> worker.gate("words", channels=1)
    Traceback (most recent call last):
    headgate.errors.Cancelled: the worker is closed
    """

    code = 12


class RequestTimeout(HeadgateError):
    """A blocking request got no answer within its time.

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
    """A value cannot be written by, or read with, the serializer of its exchange.

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
    """A user's partitioner answered with something that is not a channel number.

    >>> from headgate.output import Custom
    >>> by_length = Custom(lambda word, channels: len(word), name="by_length"); by_length.connect(2)
    >>> by_length.choose("or")
    Traceback (most recent call last):
    headgate.errors.SelectorError: partitioner by_length answered 2 for a str: it must answer an int from 0 to 1
    """

    code = 18


class UnstableKey(HeadgateError):
    """A key has no hash that is the same in every process, so it cannot be partitioned by.

    >>> from headgate.record import stable_hash
    >>> stable_hash(["to", "be"])
    Traceback (most recent call last):
    headgate.errors.UnstableKey: list can change while it is a key: use a tuple
    """

    code = 19


class ChecksumMismatch(CorruptStream):
    """A buffer's bytes are not what its producer sent (`network.checksum`).

    >>> issubclass(ChecksumMismatch, CorruptStream)
    True
    """

    code = 20


class StorageError(HeadgateError):
    """Data on disk could not be written, read or found; `path` says where.

    >>> StorageError("cannot be read: Input/output error", path="/data/v0.0-3.partition")
    StorageError('/data/v0.0-3.partition: cannot be read: Input/output error')
    """

    code = 21
    path: str = "unknown path"

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class StorageFull(StorageError):
    """There is no room left on a disk, or within `batch.disk_quota`.

    >>> StorageFull("no space left on its disk", path="/data/v0.0-3.partition").path
    '/data/v0.0-3.partition'
    """

    code = 22


def _is_ours(module: str) -> bool:
    """Whether code is headgate's, which who reads a user's traceback does not want to see; examples are a user's."""
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
    """The error that a peer reported by code and text; its class is the code's, its text the peer's.

    >>> error_from_wire(10, "map, subtask 3: division by zero")
    UserCodeError('map, subtask 3: division by zero')
    """
    cls = error_class(code)
    error = cls.__new__(cls, text)
    Exception.__init__(error, text)  # not the class's own: the text is already whole
    return error


def error_class(code: int) -> type[HeadgateError]:
    """The class that stands for a wire code; `HeadgateError` for one this version does not know.

    >>> error_class(7).__name__
    'PartitionNotFound'
    """
    return _BY_CODE.get(code, HeadgateError)
