"""Compression of buffers on disk, if it saves at least an eighth.

A `Compressor` belongs to one writer of a file, and is used on that writer's thread; `decompress_into` has no state and
may be called by several threads at the same time. Both release the interpreter's lock while they work.

A buffer is stored compressed if that saves an eighth of it. After a buffer that does not, the next ones are stored
without an attempt: 1, then 3, 7 ... up to 63, until an attempt succeeds again. So data that cannot be compressed costs
one attempt in 64 buffers, and data that becomes compressible is detected after at most 63 buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headgate.config import Compression
from headgate.errors import CorruptStream

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CODECS", "Compressor", "Unpacker"]

CODECS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
"""The codecs by their numbers in files and frames."""

_NAMES: Final = {
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
}  # pyarrow's names; raw, because a frame would repeat the size
_MIN_BYTES: Final = 128  # smaller buffers are not compressed
_MAX_PAUSE: Final = 63


class _Codec(Protocol):
    """The part of `pyarrow.Codec` that is used here."""

    def compress(self, buf: memoryview, asbytes: bool) -> bytes: ...

    def decompress(self, buf: bytes | memoryview, decompressed_size: int, asbytes: bool) -> bytes: ...


class Compressor:
    """Compresses buffers if that saves an eighth, and decompresses those of the same setting.

    >>> compressor, back = Compressor(Compression.LZ4), bytearray(4000)
    >>> stored = compressor.compress(memoryview(b"to be or not to be, " * 200))
    >>> len(stored) < 100
    True
    >>> compressor.decompress_into(stored, memoryview(back)); bytes(back[:20])
    b'to be or not to be, '
    >>> compressor.compress(memoryview(bytes(range(256)))) is None   # it would not be smaller
    True
    """

    __slots__ = ("_codec", "_pause", "_skip", "compression")

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._codec = _codec(compression)
        self._pause = 0  # the number of skipped buffers after the last failed attempt
        self._skip = 0  # the number of buffers still to skip

    def compress(self, memory: memoryview) -> bytes | None:
        """Return the compressed bytes; None: store the buffer uncompressed."""
        size = len(memory)
        if self._codec is None or size < _MIN_BYTES:
            return None
        if self._skip:
            self._skip -= 1
            return None
        packed = self._codec.compress(memory, asbytes=True)
        if len(packed) <= size - (size >> 3):
            self._pause = 0
            return packed
        self._pause = self._skip = min(2 * self._pause + 1, _MAX_PAUSE)
        return None

    def decompress_into(self, stored: bytes | memoryview, memory: memoryview) -> None:
        """Fill `memory`, which has the original size, from compressed bytes.

        Raises:
            CorruptStream: The bytes are not compressed data of that size.
        """
        if self._codec is None:
            raise CorruptStream("compressed bytes where nothing is compressed")
        try:
            memory[:] = self._codec.decompress(stored, len(memory), asbytes=True)
        except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
            raise CorruptStream(f"not bytes that {self.compression} has compressed: {error}") from error


class Unpacker:
    """Decompresses bytes that another worker has sent, by the number of their codec. Invalid bytes are expected.

    >>> stored = Compressor(Compression.LZ4).compress(memoryview(b"to be or not to be, " * 200))
    >>> Unpacker().unpack(1, stored, 4000)[:20]
    b'to be or not to be, '
    >>> Unpacker().unpack(1, stored, 4001)
    Traceback (most recent call last):
    headgate.errors.CorruptStream: not 4001 bytes that lz4 has compressed: there are fewer
    """

    __slots__ = ("_codecs",)

    def __init__(self) -> None:
        self._codecs: dict[int, _Codec] = {}

    def unpack(self, codec: int, stored: bytes | memoryview, size: int) -> bytes:
        """Return exactly `size` decompressed bytes. Allocates memory for `size` bytes and no more.

        Raises:
            CorruptStream: There is no such codec, or `stored` is not compressed data of `size` bytes.
        """
        if not 0 < codec < len(CODECS):
            raise CorruptStream(f"compressed with a codec {codec}, which there is not")
        compression = CODECS[codec]
        found = self._codecs.get(codec)
        if found is None:
            made = _codec(compression)
            assert made is not None, "only the first codec is none"
            self._codecs[codec] = found = made
        try:
            unpacked = found.decompress(stored, size, asbytes=True)
        except (OSError, ValueError) as error:  # pyarrow's errors are kinds of these
            raise CorruptStream(f"not {size} bytes that {compression} has compressed: {error}") from error
        # If the bytes decompress to less, pyarrow raises for zstd. For lz4 it leaves the rest of the memory
        # uninitialized, which could expose data of this process. If one byte less is enough, there are fewer.
        if compression is Compression.LZ4 and _fits(found, stored, size - 1):
            raise CorruptStream(f"not {size} bytes that {compression} has compressed: there are fewer")
        return unpacked


def _fits(codec: _Codec, stored: bytes | memoryview, size: int) -> bool:
    try:
        codec.decompress(stored, size, asbytes=True)
    except (OSError, ValueError):
        return False
    return True


def _codec(compression: Compression) -> _Codec | None:
    if compression is Compression.NONE:
        return None
    from pyarrow import Codec  # noqa: PLC0415 - pyarrow is slow to import, and only BATCH needs it

    make: Callable[[str], _Codec] = Codec
    return make(_NAMES[compression])
