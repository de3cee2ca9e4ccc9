"""Records of a fixed layout, encoded by the standard library's `struct`.

Chosen by name (`struct:<qd`). Invariant: a batch has no header, so its length is a whole number of records, and
decoding it needs no other check.
"""

import re
import struct
from collections.abc import Sequence
from itertools import starmap
from typing import TypeVar, cast

from headgate.errors import ConfigError, SerializationError
from headgate.record.fidelity import change
from headgate.record.serializer import Encoded, Serializer

__all__ = ["StructSerializer"]

T = TypeVar("T")


class StructSerializer(Serializer[T]):
    r"""Encodes records of a fixed size, in the notation of the `struct` module; a batch is one after another.

    A format with one field is for bare values, one with several for tuples. It must begin with `<`, `>` or `!`, so that
    it means the same on every machine. `f` and `e` round, as `struct` documents; bytes for an `s` field must have its
    exact length (`struct` itself would truncate or pad them). A bool in an integer field, or a list instead of a tuple,
    is detected in the samples that `MsgpackSerializer` describes.

    >>> points = StructSerializer[tuple[int, float]]("<qd")
    >>> (data,) = points.encode_batch([(1, 0.5), (2, 1.5)])
    >>> len(data), points.decode_batch(memoryview(data))
    (32, [(1, 0.5), (2, 1.5)])
    >>> StructSerializer[int]("<q").encode(7)
    b'\x07\x00\x00\x00\x00\x00\x00\x00'
    """

    def __init__(self, format: str) -> None:  # noqa: A002 - what `struct` calls it
        self.name = f"struct:{format}"
        if not format.startswith(("<", ">", "!")):
            raise ConfigError(f"{self.name}: begin the format with '<', '>' or '!' for a fixed byte order")
        try:
            self._struct = struct.Struct(format)
        except struct.error as error:
            raise ConfigError(f"{self.name}: {error}") from error
        if "p" in format or not (fields := len(self._struct.unpack(bytes(self._struct.size)))):
            raise ConfigError(f"{self.name}: a format needs at least one field, and none of kind 'p'")
        self._single = fields == 1
        # One plain letter: a batch is one call, several times faster. ("<3s" is one field, not three.)
        self._letter = format[1] if len(format) == 2 and format[1] != "s" else None
        self._rounds = "f" in format or "e" in format
        self._lengths = _byte_fields(format)
        self._calls = 0

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._struct.format,)

    def encode(self, value: T) -> bytes:
        """Return the bytes of one record."""
        return self._pack([value])

    def decode(self, data: memoryview) -> T:
        """Return the record in these bytes."""
        values = self.decode_batch(data)
        if len(values) != 1:
            raise SerializationError(f"{self.name}: {len(data)} bytes are not one record of {self._struct.size}")
        return values[0]

    def encode_batch(self, values: Sequence[T]) -> Encoded:
        """Return the bytes of several records, one after another."""
        return (self._pack(values),)

    def decode_batch(self, data: memoryview) -> list[T]:
        """Return the records of a batch."""
        if len(data) % self._struct.size:
            raise SerializationError(f"{self.name}: {len(data)} bytes are not whole records of {self._struct.size}")
        if self._letter is not None:
            return list(struct.unpack(self._repeated(len(data) // self._struct.size), data))
        rows = self._struct.iter_unpack(data)
        return cast("list[T]", [value for (value,) in rows] if self._single else list(rows))

    def _pack(self, values: Sequence[T]) -> bytes:
        pack = self._struct.pack
        try:
            rows = cast("Sequence[Sequence[object]]", values)
            if self._letter is not None:
                data = struct.pack(self._repeated(len(values)), *values)
            else:
                data = b"".join(map(pack, values) if self._single else starmap(pack, rows))
        except (struct.error, TypeError, OverflowError) as error:
            raise self._refusal_in(values, error) from error
        for index, length in self._lengths:
            for value in values:
                if len(cast("bytes", value if self._single else cast("Sequence[object]", value)[index])) != length:
                    raise self._refusal(value, f"field {index} needs exactly {length} bytes")
        self._calls = calls = self._calls + 1
        if not calls & (calls - 1):
            self._compare(values, data)
        return data

    def _repeated(self, count: int) -> str:
        return f"{self._struct.format[0]}{count}{self._letter}"

    def _compare(self, values: Sequence[T], data: bytes) -> None:
        for value, got in zip(values, self.decode_batch(memoryview(data)), strict=True):
            sent = _rounded(value, got) if self._rounds else value
            if (why := change(sent, got)) is not None:
                raise self._refusal(value, f"{why}; write exactly what the format says, or choose another serializer")

    def _refusal_in(self, values: Sequence[T], error: Exception) -> SerializationError:
        for value in values:
            try:
                self._struct.pack(*((value,) if self._single else cast("Sequence[object]", value)))
            except (struct.error, TypeError, OverflowError) as its_error:
                return self._refusal(value, str(its_error))
        return SerializationError(f"{self.name} cannot write these records: {error}")


def _rounded(sent: object, got: object) -> object:
    """Return `sent` with the floats of `got`: the user chose to round by `f` or `e`, and nothing else may differ."""
    if isinstance(sent, tuple) and isinstance(got, tuple):
        return tuple(map(_rounded, sent, got))
    return got if type(got) is float and type(sent) in {int, float} else sent


def _byte_fields(format: str) -> list[tuple[int, int]]:  # noqa: A002
    """Return (index, length) of each `s` field of a format that `struct` has accepted."""
    found, index = [], 0
    for count, kind in re.findall(r"(\d*)([a-zA-Z?])", format):
        if kind == "s":
            found.append((index, int(count or 1)))
        index += 1 if kind == "s" else 0 if kind == "x" else int(count or 1)
    return found
