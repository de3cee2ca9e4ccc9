"""Grouping: values by key, in memory while they fit, otherwise sorted on disk and merged.

Operators in BATCH mode add their input and, at its end, read one key after the other with all of its values in the
order of arrival. Used on the task's thread only.

In memory, groups are a dict of lists. When the memory is full, all groups become a run on disk, sorted by a hash of the
key, and the dict is empty again. At the end the runs are merged, with one block of each in memory; if there are too
many runs, the oldest are merged into larger ones first. Keys with equal hashes are compared, as in a dict.

Invariants: each key is returned once, with each of its values once. The memory does not exceed the limit by much,
unless a single value is larger. `close` closes all files, also after a failure.
"""

from __future__ import annotations

import sys
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from headgate.record import stable_hash
from headgate.task.batch.key_by_key import Entries
from headgate.task.batch.runs import Run, RunWriter, merged
from headgate.task.batch.sizes import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from headgate.task.batch.spill import SpillSpace
    from headgate.task.operator import Times, Values

__all__ = ["Grouping", "key_hash"]

_KEY_BYTES: Final = 240  # a key's entry in the dict, and its list
_ENTRY_BYTES: Final = 28  # a value's entry in the list, with its time and its tag
_TIME_BYTES: Final = 32
_MAX_BLOCK_BYTES: Final = 2**20


def key_hash(key: Hashable) -> int:
    """Return the sort value of a key, in [0, 2**64): 32 bits of the stable hash, then 32 of Python's hash.

    >>> key_hash("to") == key_hash("t" + "o"), key_hash(1) == key_hash(1.0), key_hash("to") == key_hash("be")
    (True, True, False)
    """
    return stable_hash(key) << 32 | hash(key) & 0xFFFF_FFFF


class Grouping:
    """Collects values by key.

    >>> grouping = Grouping(None)
    >>> grouping.add(["t", "b", "t"], ["to", "be", "tie"])
    >>> for key, several in grouping.groups():
    ...     print(key, [entries.values for entries in several])
    t [['to', 'tie']]
    b [['be']]
    """

    def __init__(
        self,
        space: SpillSpace | None,  # None: everything stays in memory
        memory_bytes: int | None = None,  # None: all that the space allows
        *,
        spilled: Callable[[int], object] = abs,  # called with each run's size on disk
        check: Callable[[], object] = lambda: None,  # called between keys; raises if the job is cancelled
        hash_of: Callable[[Hashable], int] = key_hash,
        max_runs: int = 32,  # that are merged at once
    ) -> None:
        self._space = space
        self._limit: float = float("inf")
        if space is not None:
            self._limit = space.memory_bytes if memory_bytes is None else memory_bytes
        self._spilled = spilled
        self._check = check
        self._hash_of = hash_of
        self._max_runs = max_runs
        self._groups: dict[Any, list[Any]] = {}  # of each key: value, time, tag, value, time, tag ...
        self._memory = 0  # estimated bytes
        self._count = 0  # values in memory
        self._batches = 0
        self._block_values = 1
        self._levels: list[list[Run]] = []
        """Runs by the number of merges: the first level has the newest values."""

    @property
    def memory_bytes(self) -> int:
        """The estimated memory of the groups."""
        return self._memory

    def add(self, keys: list[Any], values: Values, times: Times = None, tags: int | list[int] = 0) -> None:
        """Add a batch: a key for each value, a time for each or None, and a tag for each or one for all."""
        groups = self._groups
        get, before = groups.get, len(groups)
        if times is None and isinstance(tags, int):
            for key, value in zip(keys, values, strict=True):
                group = get(key)
                if group is None:
                    groups[key] = [value, 0, tags]
                else:
                    group += (value, 0, tags)
        else:
            several = repeat(tags) if isinstance(tags, int) else tags
            for key, value, time, tag in zip(keys, values, times or repeat(0), several, strict=False):
                group = get(key)
                if group is None:
                    groups[key] = [value, time, tag]
                else:
                    group += (value, time, tag)
        if self._space is not None:
            self._count_memory(keys, values, len(groups) - before, timed=times is not None)

    def _count_memory(self, keys: list[Any], values: Values, new: int, *, timed: bool) -> None:
        """Add the estimated memory of a batch, and spill above the limit."""
        self._batches += 1
        self._count += len(values)
        of_each = _ENTRY_BYTES + (_TIME_BYTES if timed else 0)
        self._memory += memory_of(values, self._batches) + len(values) * of_each
        if new:
            self._memory += new * (_KEY_BYTES + sys.getsizeof(keys[-1]))
        if self._memory > self._limit:
            self.spill()

    def spill(self) -> None:
        """Move all groups to disk."""
        space, groups = self._space, self._groups
        if space is None or not groups:
            return
        block_bytes = min(max(space.memory_bytes // (2 * self._max_runs), 1), _MAX_BLOCK_BYTES)
        self._block_values = max(1, block_bytes * self._count // max(1, self._memory))
        hashes = list(map(self._hash_of, groups))
        keys = list(groups)
        order = sorted(range(len(keys)), key=hashes.__getitem__)
        with RunWriter(space, self._block_values) as writer:
            for index in order:
                self._check()
                group = groups.pop(keys[index])
                writer.add(hashes[index], keys[index], Entries(group[::3], group[1::3], group[2::3]))
            run = writer.finish()
        self._memory = self._count = 0
        self._add_run(run, 0)

    def _add_run(self, run: Run, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        self._spilled(run.bytes_on_disk)
        if len(runs) == self._max_runs:
            self._add_run(self._merge(runs), level + 1)

    def _merge(self, runs: list[Run]) -> Run:
        """Merge consecutive runs into one."""
        assert self._space is not None, "a run without a space"
        with RunWriter(self._space, self._block_values) as writer:
            for hash_, key, several in merged(runs):
                self._check()
                for entries in several:
                    writer.add(hash_, key, entries)
            run = writer.finish()
        while runs:
            runs.pop().close()
        return run

    def groups(self) -> Iterator[tuple[Any, Iterable[Entries]]]:
        """Yield each key with its values, in parts. Called once. The next key skips unread values of the last."""
        if not self._levels:
            groups = self._groups
            for key in list(groups):
                group = groups.pop(key)
                yield key, (Entries(group[::3], group[1::3], group[2::3]),)
            return
        self.spill()
        while sum(map(len, self._levels)) > self._max_runs:
            self._levels[1].append(self._merge(self._levels[0]))
            del self._levels[0]
        for _, key, several in merged([run for runs in reversed(self._levels) for run in runs]):
            yield key, several

    def close(self) -> None:
        """Close all files and drop the groups. May be called more than once."""
        self._groups = {}
        for runs in self._levels:
            for run in runs:
                run.close()
        self._levels = []
