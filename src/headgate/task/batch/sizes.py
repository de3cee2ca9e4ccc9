"""An estimate of the memory of values, by a sample of each batch.

Used on the task's thread by operators with a memory limit. The estimate is rather too large: an object that two values
share is counted for both.
"""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["memory_of"]

_SAMPLE: Final = 32  # values per batch
_MAX_DEPTH: Final = 8  # of nested objects
_MAX_WIDTH: Final = 4096  # objects per level
_UNKNOWN: Final = 256  # bytes of a value whose size cannot be measured
_SHARED: Final = (type, ModuleType, FunctionType)  # referenced, but not owned, by values


def memory_of(values: Sequence[Any], shift: int = 0) -> int:
    """Return the estimated memory of values in bytes; `shift` varies the sample from batch to batch.

    >>> memory_of([]), 100 < memory_of(["x" * 100]) < 200
    (0, True)
    >>> memory_of([("to", [1, 2])] * 1000) == 1000 * memory_of([("to", [1, 2])])
    True
    """
    count = len(values)
    if not count:
        return 0
    step = -(-count // _SAMPLE)
    sample = values[shift % step :: step]
    try:
        return _deep(list(sample)) * count // len(sample)
    except Exception:  # noqa: BLE001 - a user's __sizeof__ may raise anything
        return _UNKNOWN * count


def _deep(level: list[Any]) -> int:
    """Return the bytes of values and of the objects they refer to."""
    total, size_of = 0, sys.getsizeof
    scale = 1.0  # the number of objects that each one of the level represents
    for _ in range(_MAX_DEPTH):
        if len(level) > _MAX_WIDTH:
            scale *= len(level) / _MAX_WIDTH
            level = level[:_MAX_WIDTH]
        total += int(scale * sum(map(size_of, level)))
        level = [one for one in gc.get_referents(*level) if not isinstance(one, _SHARED)]
        if not level:
            break
    return total
