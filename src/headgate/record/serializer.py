"""Values to bytes and back: the base class of serializers, and those made by msgspec (msgpack, str, bytes).

The element codec calls `encode_batch` with the values that a writer collected for one channel, on the producer's task
thread or the flusher thread, and `decode_batch` with the bytes of one batch, on the consumer's task thread.

Invariants: a value is decoded equal and of the same type, or encoding it raises `SerializationError` (a class that only
checks samples says so); any bytes decode to values or raise `SerializationError`, nothing else; time and memory are
bounded by `len(data)`. A serializer that does not fit the declared type raises `ConfigError` when it is created.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, islice, pairwise
from typing import Generic, TypeVar, cast

import msgspec

from headgate.errors import ConfigError, SerializationError
from headgate.record.fidelity import change, closed_to, type_name

__all__ = [
    "Buffer",
    "BytesSerializer",
    "Encoded",
    "MsgpackSerializer",
    "Serializer",
    "StrSerializer",
]

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview
"""The types of memory that the spanning writer copies from."""

Encoded = tuple[Buffer, ...]
"""Pieces that are written one after another; joining them would be one more copy."""

_MAX_U32 = 0xFFFF_FFFF
_COMPARED = 16  # values compared in a sampled batch
_JOIN_BELOW_BYTES = 4096  # copying fewer bytes costs less than one more piece for the writer

_encode = msgspec.msgpack.Encoder().encode
_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, AttributeError, RecursionError, msgspec.MsgspecError)
_DECODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


class Serializer(ABC, Generic[T]):
    """Encodes values as bytes and decodes them. Derive from it with `encode` and `decode`; the rest has defaults.

    An exception raised by `encode` or `decode` is reported as a `SerializationError` that names this serializer.

    >>> class Celsius(Serializer[float]):
    ...     def encode(self, value: float) -> bytes:
    ...         return f"{value:.1f}".encode()
    ...     def decode(self, data: memoryview) -> float:
    ...         return float(bytes(data))
    >>> data = b"".join(Celsius().encode_batch([21.5, -3.0]))
    >>> Celsius().decode_batch(memoryview(data))
    [21.5, -3.0]
    """

    name: str = "serializer"
    """The name in error texts and in `explain()`; by default the name of the class."""

    alignment: int = 1
    """Encoded bytes begin at an address divisible by this number."""

    lends: bool = False
    """True if decoded values may refer to `data` after the call: its buffer is then not used again while they exist."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Return the bytes of one value."""

    @abstractmethod
    def decode(self, data: memoryview) -> T:
        """Return the value in these bytes. It must not refer to `data`, or a part of it, unless `lends` is True."""

    def records_in(self, value: T) -> int:  # noqa: ARG002 - 1 for every value
        """Return the number of records that a value counts as in the meters of producer and consumer."""
        return 1

    def pieces(self, value: T) -> Encoded:
        """Return the bytes of one value, in several pieces if joining them would be a copy."""
        return (self._encoded(value),)

    def encode_batch(self, values: Sequence[T]) -> Encoded:
        """Return the bytes of several values: u32 count, u32 length of each, then the bodies; little-endian."""
        bodies = [self._encoded(value) for value in values]
        lengths = list(map(len, bodies))
        if len(bodies) > _MAX_U32 or max(lengths, default=0) > _MAX_U32:
            raise SerializationError(f"{self.name}: a batch of 4 GiB or more cannot be written; send less at once")
        head = struct.pack(f"<I{len(lengths)}I", len(lengths), *lengths)
        if sum(lengths) < _JOIN_BELOW_BYTES * len(lengths):
            return (b"".join((head, *bodies)),)
        return (head, *bodies)

    def decode_batch(self, data: memoryview) -> list[T]:
        """Return the values of a batch that `encode_batch` wrote."""
        size = len(data)
        count = int.from_bytes(data[:4], "little")
        start = 4 + 4 * count
        if size < 4 or start > size:
            raise SerializationError(f"{self.name}: a batch of {size} bytes cannot hold {count} values")
        ends = list(accumulate(struct.unpack_from(f"<{count}I", data, 4), initial=start))
        if ends[-1] != size:
            raise SerializationError(f"{self.name}: a batch of {size} bytes claims to have {ends[-1]}")
        return [self._decoded(data[begin:end]) for begin, end in pairwise(ends)]

    def _encoded(self, value: T) -> bytes:
        try:
            body = self.encode(value)
            if not isinstance(body, bytes):
                raise TypeError(f"encode() returned a {type_name(body)} instead of bytes")  # noqa: TRY301
        except SerializationError:
            raise
        except Exception as error:  # the user's encode() may raise anything
            raise self._refusal(value, f"{type_name(error)}: {error}") from error
        return body

    def _decoded(self, data: memoryview) -> T:
        try:
            value = self.decode(data)
            if not self.lends:
                # If the value refers to it, this raises now; otherwise the value would change with the next record.
                data.release()
        except SerializationError:
            raise
        except BufferError as error:
            raise SerializationError(f"{self.name}: decode() kept its data; copy it, or set `lends`") from error
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def _refusal(self, value: object, why: str) -> SerializationError:
        return SerializationError(f"{self.name} cannot write a record of type {type_name(value)}: {why}")

    def _unreadable(self, error: Exception) -> SerializationError:
        return SerializationError(f"{self.name} cannot read these bytes: {str(error)[:200] or type_name(error)}")


class MsgpackSerializer(Serializer[T]):
    """Encodes as MessagePack, by msgspec: compact, fast, and safe to decode from any peer.

    Typed (`MsgpackSerializer(tuple[str, int])`, a `msgspec.Struct`, a dataclass, a TypedDict, ...): every decoded value
    has exactly the declared type. A value that does not fit is an error, in the producer or in the consumer.

    Untyped (`MsgpackSerializer()`): for None, bool, int (64 bits), float, str, bytes, and lists and dicts of these.
    msgpack has no tuples, sets, dates in local time, decimals, UUIDs, enums or classes: without a type, a tuple would
    be decoded as a list, a Struct as a dict. With a declared type they are decoded as they were.

    What is checked: ints over 64 bits, unknown classes and subclasses of str, int, float and bytes are always refused.
    Comparing every value would cost more than encoding it, so the other differences (an untyped tuple, a subclass of
    the declared dataclass, an extra key of a TypedDict, a datetime in a zone other than UTC) are detected in the 1st,
    2nd, 4th, 8th, 16th ... call of `encode` or `encode_batch`, by decoding and comparing strictly. A job that always
    emits the wrong type fails at its first record; a single wrong value in a later batch is decoded differently or, if
    typed, fails in the consumer. An int where a float is declared is decoded as a float.

    >>> words = MsgpackSerializer(tuple[str, int])
    >>> words.name
    'msgpack:tuple[str, int]'
    >>> (data,) = words.encode_batch([("to", 1), ("be", 1)])
    >>> words.decode_batch(memoryview(data))
    [('to', 1), ('be', 1)]
    >>> MsgpackSerializer().encode(("to", 1))
    Traceback (most recent call last):
    headgate.errors.SerializationError: msgpack cannot write a record of type tuple: a tuple would come back as
    a list; declare the type of the records, or choose another serializer
    """

    name = "msgpack"

    def __init__(self, record_type: type[T] | None = None) -> None:
        if record_type is not None:
            self.name = f"msgpack:{_hint_name(record_type)}"
            if (why := closed_to(record_type)) is not None:
                raise ConfigError(f"{self.name}: {why}; choose another serializer, such as 'pickle'")
        self._type = record_type
        one, many = (object, list) if record_type is None else (record_type, list[record_type])  # type: ignore[valid-type]
        self._decode_one = cast("Callable[[memoryview], T]", _decoder(one))
        self._decode_many = cast("Callable[[memoryview], list[T]]", _decoder(many))
        self._calls = 0  # not locked: a race between threads only changes which call is sampled

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), () if self._type is None else (self._type,)

    def encode(self, value: T) -> bytes:
        """Return the bytes of one value."""
        try:
            data = _encode(value)
            self._calls = calls = self._calls + 1
            if not calls & (calls - 1):
                self._compare(value, self._decode_one(memoryview(data)))
        except _ENCODE_ERRORS as error:
            raise self._refusal(value, f"{error}; {_ADVICE}") from error
        return data

    def decode(self, data: memoryview) -> T:
        """Return the value in these bytes."""
        try:
            return self._decode_one(data)
        except _DECODE_ERRORS as error:
            raise self._unreadable(error) from error

    def encode_batch(self, values: Sequence[T]) -> Encoded:
        """Return the bytes of several values: one msgpack array."""
        try:
            data = _encode(values if isinstance(values, list) else list(values))
            self._calls = calls = self._calls + 1
            if not calls & (calls - 1):
                first = list(islice(values, _COMPARED))
                for value, got in zip(first, self._decode_many(memoryview(_encode(first))), strict=True):
                    self._compare(value, got)
        except _ENCODE_ERRORS as error:
            raise self._refusal_in(values, error) from error
        return (data,)

    def decode_batch(self, data: memoryview) -> list[T]:
        """Return the values of a batch that `encode_batch` wrote."""
        try:
            return self._decode_many(data)
        except _DECODE_ERRORS as error:
            raise self._unreadable(error) from error

    def _compare(self, value: T, got: T) -> None:
        if (why := change(value, got)) is not None:
            raise self._refusal(value, f"{why}; {_ADVICE}")

    def _refusal_in(self, values: Sequence[T], error: Exception) -> SerializationError:
        """Return an error that names the type of the record that failed, which msgspec does not."""
        for value in values:
            try:
                self._decode_one(memoryview(_encode(value)))
            except _ENCODE_ERRORS as its_error:
                return self._refusal(value, f"{its_error}; {_ADVICE}")
        return SerializationError(f"{self.name} cannot write a batch of {len(values)} records: {error}; {_ADVICE}")


class StrSerializer(MsgpackSerializer[str]):
    r"""Encodes strings as UTF-8. A batch is one msgpack array: several times faster than lengths and a join.

    >>> StrSerializer().encode("größer")
    b'gr\xc3\xb6\xc3\x9fer'
    """

    name = "str"

    def __init__(self) -> None:
        super().__init__(str)
        self.name = "str"

    def __reduce__(self) -> tuple[object, ...]:
        return StrSerializer, ()

    def encode(self, value: str) -> bytes:
        """Return the value in UTF-8."""
        if type(value) is not str:
            raise self._refusal(value, f"it is not a str; {_ADVICE}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise self._refusal(value, str(error)) from error

    def decode(self, data: memoryview) -> str:
        """Return the text in these bytes."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self._unreadable(error) from error


class BytesSerializer(MsgpackSerializer[bytes]):
    """Encodes byte strings as they are. A batch is one msgpack array.

    >>> BytesSerializer().encode(b"as it is")
    b'as it is'
    """

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(bytes)
        self.name = "bytes"

    def __reduce__(self) -> tuple[object, ...]:
        return BytesSerializer, ()

    def encode(self, value: bytes) -> bytes:
        """Return the value itself."""
        if type(value) is not bytes:
            raise self._refusal(value, f"it is not bytes; {_ADVICE}")
        return value

    def decode(self, data: memoryview) -> bytes:
        """Return a copy of these bytes."""
        return bytes(data)


_ADVICE = "declare the type of the records, or choose another serializer"


def _decoder(hint: object) -> Callable[[memoryview], object]:
    return msgspec.msgpack.Decoder(hint, ext_hook=_no_extensions).decode


def _no_extensions(code: int, _data: memoryview) -> object:
    raise ValueError(f"unknown msgpack extension {code}")


def _hint_name(hint: object) -> str:
    plain = isinstance(hint, type) and not getattr(hint, "__args__", ())
    return getattr(hint, "__qualname__", "") if plain else repr(hint).replace("typing.", "")
