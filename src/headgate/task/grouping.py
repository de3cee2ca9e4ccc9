"""Values by key, however many there are: in memory as long as they fit, beyond that sorted on disk and merged.

Operators in BATCH mode add what comes in and, when their input has ended, get one key after the other with all of its
values, in the order in which they came. On the task's thread only.

In memory that is a dict of lists. When it is full, all of it becomes a run on disk, sorted by a hash of the key, and
the dict begins again. In the end the runs are merged, a block of each in memory; if there are many, the first become
larger ones before. Keys whose hashes are equal are told apart by comparing them, as a dict does.

Invariants: each key is given out once, with each of its values once; the memory of what is kept is about the limit at
most, if no single value is larger; all files are closed by `close`, whatever happened.
"""

from __future__ import annotations

import sys
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from headgate.record import stable_hash
from headgate.task.key_by_key import Entries
from headgate.task.runs import Run, RunWriter, merged
from headgate.task.sizes import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from headgate.task.operator import Times, Values
    from headgate.task.spill import SpillSpace

__all__ = ["Grouping", "key_hash"]

_KEY_BYTES: Final = 240  # what a key takes by itself: in the dict, and its list
_ENTRY_BYTES: Final = 28  # what a value takes in the list, with its time and its tag
_TIME_BYTES: Final = 32
_LARGEST_BLOCK: Final = 2**20


def key_hash(key: Hashable) -> int:
    """What keys are sorted by, in [0, 2**64): first what all processes agree on, then what tells nearly all apart.

    >>> key_hash("to") == key_hash("t" + "o"), key_hash(1) == key_hash(1.0), key_hash("to") == key_hash("be")
    (True, True, False)
    """
    return stable_hash(key) << 32 | hash(key) & 0xFFFF_FFFF


class Grouping:
    """Gathers values by key.

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
        spilled: Callable[[int], object] = abs,  # told of each run, with its size on disk
        check: Callable[[], object] = lambda: None,  # called now and then; what it raises ends everything
        hash_of: Callable[[Hashable], int] = key_hash,
        most_runs: int = 32,  # that are merged at once
    ) -> None:
        self._space = space
        self._limit: float = float("inf")
        if space is not None:
            self._limit = space.memory_bytes if memory_bytes is None else memory_bytes
        self._spilled = spilled
        self._check = check
        self._hash_of = hash_of
        self._most_runs = most_runs
        self._groups: dict[Any, list[Any]] = {}  # of each key: value, time, tag, value, time, tag ...
        self._memory = 0  # bytes, about
        self._count = 0  # values in memory
        self._batches = 0
        self._block_values = 1
        self._levels: list[list[Run]] = []
        """Runs by how often they were merged: what is in the first level came last."""

    @property
    def memory_bytes(self) -> int:
        """About how much memory is taken."""
        return self._memory

    def add(self, keys: list[Any], values: Values, times: Times = None, tags: int | list[int] = 0) -> None:
        """Take a batch: a key for each value, a time for each if they have times, and a tag for each or for all."""
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
            self._look_at(keys, values, len(groups) - before, timed=times is not None)

    def _look_at(self, keys: list[Any], values: Values, new: int, *, timed: bool) -> None:
        """Estimate what a batch takes, and make room if it is too much."""
        self._batches += 1
        self._count += len(values)
        of_each = _ENTRY_BYTES + (_TIME_BYTES if timed else 0)
        self._memory += memory_of(values, self._batches) + len(values) * of_each
        if new:
            self._memory += new * (_KEY_BYTES + sys.getsizeof(keys[-1]))
        if self._memory > self._limit:
            self.spill()

    def spill(self) -> None:
        """Move everything to disk."""
        space, groups = self._space, self._groups
        if space is None or not groups:
            return
        block_bytes = min(max(space.memory_bytes // (2 * self._most_runs), 1), _LARGEST_BLOCK)
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
        self._keep(run, 0)

    def _keep(self, run: Run, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        self._spilled(run.bytes_on_disk)
        if len(runs) == self._most_runs:
            self._keep(self._as_one(runs), level + 1)

    def _as_one(self, runs: list[Run]) -> Run:
        """Merge runs that came one after the other."""
        assert self._space is not None, "there are none without it"
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
        """Each key with its values, in parts; once. What a key has left when the next is asked for is skipped."""
        if not self._levels:
            groups = self._groups
            for key in list(groups):
                group = groups.pop(key)
                yield key, (Entries(group[::3], group[1::3], group[2::3]),)
            return
        self.spill()
        while sum(map(len, self._levels)) > self._most_runs:
            self._levels[1].append(self._as_one(self._levels[0]))
            del self._levels[0]
        for _, key, several in merged([run for runs in reversed(self._levels) for run in runs]):
            yield key, several

    def close(self) -> None:
        """Let go of everything; may be repeated."""
        self._groups = {}
        for runs in self._levels:
            for run in runs:
                run.close()
        self._levels = []
