"""About how much memory values take: looked at once per batch, in a sample of it.

Operators that must stay within a limit ask, on the task's thread. The answer is an estimate, and rather too large: what
two values share is counted for both.
"""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["memory_of"]

_SAMPLE: Final = 32  # values of a batch that are looked at
_DEEPEST: Final = 8  # values in values in values ...
_WIDEST: Final = 4096  # how many of those are looked at
_UNKNOWN: Final = 256  # bytes of a value that will not say
_SHARED: Final = (type, ModuleType, FunctionType)  # what values point to and do not own


def memory_of(values: Sequence[Any], turn: int = 0) -> int:
    """About how many bytes these values take; `turn` says which of them are looked at.

    >>> memory_of([]), 100 < memory_of(["x" * 100]) < 200
    (0, True)
    >>> memory_of([("to", [1, 2])] * 1000) == 1000 * memory_of([("to", [1, 2])])
    True
    """
    count = len(values)
    if not count:
        return 0
    step = -(-count // _SAMPLE)
    sample = values[turn % step :: step]
    try:
        return _deep(list(sample)) * count // len(sample)
    except Exception:  # noqa: BLE001 - a class's own __sizeof__ may raise anything
        return _UNKNOWN * count


def _deep(level: list[Any]) -> int:
    """The bytes of values, with all that they hold."""
    total, size_of = 0, sys.getsizeof
    scale = 1.0  # for how many each of the level stands
    for _ in range(_DEEPEST):
        if len(level) > _WIDEST:
            scale *= len(level) / _WIDEST
            level = level[:_WIDEST]
        total += int(scale * sum(map(size_of, level)))
        level = [one for one in gc.get_referents(*level) if not isinstance(one, _SHARED)]
        if not level:
            break
    return total
