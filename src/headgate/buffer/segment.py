"""The network memory of a worker: one anonymous mapping, divided into segments of equal size.

`worker.environment` creates the arena once, when the worker starts. The operating system provides a page when it is
first written, and takes all pages back when the mapping is closed.

Exporting memory. Arrow can refer to the bytes of a record batch where they are, in a segment, instead of copying them.
The segment must then not be used again until the user's function has dropped the last array made from it, and Python
does not tell the exporter of a buffer when that happens. What it does: it keeps the exporting object alive as long as
any view of it exists, and calls its `__del__` afterwards. So `Arena.export` makes one small ctypes array per exported
segment (`_ExportedMemory`), which is the only pure-Python object that can export foreign memory and have a `__del__`.

Invariant: a segment is in exactly one place: in a free list, or behind one `Buffer`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import TYPE_CHECKING, Self

from headgate.errors import InsufficientBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from headgate.buffer.builder import Buffer

__all__ = ["Arena", "Segment"]

_MIB = 1024 * 1024


class Segment:
    """A fixed part of the arena, in which one buffer at a time is written.

    >>> with Arena(segment_size=32, count=4) as arena:
    ...     arena.segments[3]
    Segment(3)
    """

    __slots__ = ("buffer", "index", "memory")

    def __init__(self, index: int, memory: memoryview) -> None:
        self.index = index
        self.memory = memory
        self.buffer: Buffer | None = None  # allocated at the first use, then kept: see `Buffer.over`

    def __repr__(self) -> str:
        return f"Segment({self.index})"


class Arena:
    """`count` segments of `segment_size` bytes each, in one mapping.

    >>> with Arena(segment_size=1024, count=8) as arena:
    ...     len(arena.segments), arena.size_bytes
    (8, 8192)
    """

    def __init__(self, segment_size: int, count: int) -> None:
        assert segment_size > 0, "a segment holds at least a byte"
        if count < 1:
            raise InsufficientBuffers(
                f"network memory holds no segment of {segment_size} bytes: "
                "raise memory.network.min or lower memory.segment_size"
            )
        self.segment_size = segment_size
        self.size_bytes = segment_size * count
        try:
            self._mapping = mmap.mmap(-1, self.size_bytes)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            required_mib = self.size_bytes / _MIB
            raise InsufficientBuffers(
                f"could not allocate the network memory: required {required_mib:.1f} MiB, allocated 0.0 MiB, "
                f"missing {required_mib:.1f} MiB ({error}). Lower memory.network.max or memory.network.fraction, "
                "or give the worker more memory."
            ) from error
        self._whole = whole = memoryview(self._mapping)
        self.segments = [
            Segment(index, whole[index * segment_size : (index + 1) * segment_size]) for index in range(count)
        ]
        self._exported_type = _exported_type(segment_size)

    def lend(self, segment: Segment, returned: Callable[[], object]) -> memoryview:
        """Return the segment's memory as a view, and call `returned` when nothing refers to that memory any more.

        `returned` is called by the interpreter, on any thread and between any two instructions, also while that
        thread holds a lock: it must not block on one.

        >>> with Arena(segment_size=32, count=1) as arena:
        ...     view = arena.lend(arena.segments[0], lambda: print("returned"))
        ...     part = view[3:4]
        ...     del view
        ...     del part
        returned
        """
        exported = self._exported_type.from_buffer(self._mapping, segment.index * self.segment_size)
        exported.returned = returned
        return memoryview(exported).cast("B")

    def close(self, keep: Container[Segment] = ()) -> None:
        """Unmap the memory: now, or when the last view of it is gone.

        Args:
            keep: Segments that are still in use; their views stay valid.
        """
        for segment in self.segments:
            if segment in keep:
                continue
            with contextlib.suppress(BufferError):  # an exported view of the segment exists
                segment.memory.release()
        self.segments = []
        self._whole.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _ExportedMemory(ctypes.Array[ctypes.c_ubyte]):
    """Memory of a segment that views and Arrow buffers outside the exchange refer to, and so keep alive."""

    _type_ = ctypes.c_ubyte
    _length_ = 0

    returned: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.returned is not None:
            self.returned()


def _exported_type(segment_size: int) -> type[_ExportedMemory]:
    return type(f"Exported{segment_size}", (_ExportedMemory,), {"_length_": segment_size, "_type_": ctypes.c_ubyte})
