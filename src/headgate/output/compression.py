"""Bytes made smaller for the disk, where that pays, and back.

One `Compressor` belongs to one writer of a file, and is used on that writer's thread; `decompress_into` keeps no state
and may be called by several threads at once. Neither holds the interpreter's lock while it works.

What pays is found out by trying: a buffer is kept compressed if that saves an eighth of it. After one that does not,
some are stored as they are without a try, 1, then 3, 7 ... up to 63, until one pays again. So data that cannot be
compressed costs one try in 64 buffers, and data that begins to be compressible is noticed after 63 at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headgate.config import Compression
from headgate.errors import CorruptStream

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Compressor"]

_NAMES: Final = {
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
}  # of pyarrow; raw: a frame says nothing we do not
_SMALLEST: Final = 128  # below it there is little to save
_LONGEST_PAUSE: Final = 63


class _Codec(Protocol):
    """The part of `pyarrow.Codec` that is used here."""

    def compress(self, buf: memoryview, asbytes: bool) -> bytes: ...

    def decompress(self, buf: bytes | memoryview, decompressed_size: int, asbytes: bool) -> bytes: ...


class Compressor:
    """Compresses what pays, and decompresses what was compressed with the same setting.

    >>> compressor, back = Compressor(Compression.LZ4), bytearray(4000)
    >>> stored = compressor.compress(memoryview(b"to be or not to be, " * 200))
    >>> len(stored) < 100
    True
    >>> compressor.decompress_into(stored, memoryview(back)); bytes(back[:20])
    b'to be or not to be, '
    >>> compressor.compress(memoryview(bytes(range(256)))) is None   # it would be no smaller
    True
    """

    __slots__ = ("_codec", "_pause", "_skip", "compression")

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._codec = _codec(compression)
        self._pause = 0  # how many were left out after the last failure
        self._skip = 0  # how many are still to be left out

    def compress(self, memory: memoryview) -> bytes | None:
        """The bytes to store instead of these; None: these."""
        size = len(memory)
        if self._codec is None or size < _SMALLEST:
            return None
        if self._skip:
            self._skip -= 1
            return None
        packed = self._codec.compress(memory, asbytes=True)
        if len(packed) <= size - (size >> 3):
            self._pause = 0
            return packed
        self._pause = self._skip = min(2 * self._pause + 1, _LONGEST_PAUSE)
        return None

    def decompress_into(self, stored: bytes | memoryview, memory: memoryview) -> None:
        """Fill `memory`, which has the size that the bytes had, from what `compress` gave.

        Raises:
            CorruptStream: they are not what `compress` gave.
        """
        if self._codec is None:
            raise CorruptStream("compressed bytes where nothing is compressed")
        try:
            memory[:] = self._codec.decompress(stored, len(memory), asbytes=True)
        except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
            raise CorruptStream(f"not bytes that {self.compression} has compressed: {error}") from error


def _codec(compression: Compression) -> _Codec | None:
    if compression is Compression.NONE:
        return None
    from pyarrow import Codec  # noqa: PLC0415 - pyarrow is slow to import, and STREAMING does without

    make: Callable[[str], _Codec] = Codec
    return make(_NAMES[compression])
