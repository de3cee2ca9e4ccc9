"""The network memory of a worker: one contiguous allocation, cut into equal segments.

Made once at start by whoever builds the worker. The pages come from the operating system only when they are
first written, and go back when the arena is closed.

Invariant: a segment is in exactly one place: on a free list, or behind one `Buffer`.
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
    """One fixed slice of the arena.

    >>> with Arena(segment_size=32, count=4) as arena:
    ...     arena.segments[3]
    Segment(3)
    """

    __slots__ = ("buffer", "index", "memory")

    def __init__(self, index: int, memory: memoryview) -> None:
        self.index = index
        self.memory = memory
        self.buffer: Buffer | None = None  # made by the first user, used again by the next: see `Buffer.over`

    def __repr__(self) -> str:
        return f"Segment({self.index})"


class Arena:
    """`count` segments of `segment_size` bytes in one allocation.

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
        self._lease_type = _lease_type(segment_size)

    def lend(self, segment: Segment, returned: Callable[[], object]) -> memoryview:
        """The segment's memory as a view that reports when nothing refers to it any more.

        `returned` is called by the garbage collector, on any thread, perhaps in the middle of anything: it
        must not take a lock.

        >>> with Arena(segment_size=32, count=1) as arena:
        ...     view = arena.lend(arena.segments[0], lambda: print("returned"))
        ...     part = view[3:4]
        ...     del view
        ...     del part
        returned
        """
        lease = self._lease_type.from_buffer(self._mapping, segment.index * self.segment_size)
        lease.returned = returned
        return memoryview(lease).cast("B")

    def close(self, keep: Container[Segment] = ()) -> None:
        """Give the memory back to the operating system, at once or when the last user of what is in use is gone.

        `keep`: segments that somebody may still touch.
        """
        for segment in self.segments:
            if segment in keep:
                continue
            with contextlib.suppress(BufferError):  # somebody still looks at a part of it
                segment.memory.release()
        self.segments = []
        self._whole.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Lease(ctypes.Array[ctypes.c_ubyte]):
    """Memory that somebody outside the exchange refers to; views and Arrow buffers made from it keep it alive.

    A ctypes array is the one pure-Python way to export memory and learn when the last user let go.
    """

    _type_ = ctypes.c_ubyte
    _length_ = 0

    returned: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.returned is not None:
            self.returned()


def _lease_type(segment_size: int) -> type[_Lease]:
    return type(f"Lease{segment_size}", (_Lease,), {"_length_": segment_size, "_type_": ctypes.c_ubyte})
