"""Run: groups of values on disk, sorted by the hash of their key, written once and merged.

`batch.grouping` writes a run whenever its memory is full, and reads all of them, merged, at the end; on the task's
thread. A run is a file of blocks. A block contains some groups, or a part of a large one: their hashes, keys and
numbers of values, then the values of all groups as one batch per serializer, so that small groups are cheap.

Invariants: hashes never decrease within a run. The groups of one key are in the order of arrival, and so are the runs.
So a key's values, read run by run, are in the order of arrival.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from headgate.errors import SerializationError
from headgate.task.batch.key_by_key import OWN, SECOND, Entries

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from headgate.task.batch.spill import Piece, SpillFile, SpillSpace

__all__ = ["Run", "RunWriter", "merged"]

_SIDE: Final = SECOND | OWN  # the bits that select a value's serializer
_SIDES: Final = 3
_PARTS: Final = 5 + _SIDES
_HEAD: Final = Struct(f"<{_PARTS}Q")


class RunWriter:
    """Writes a run, group by group, with about `block_values` values in a block.

    >>> import tempfile
    >>> from headgate.record import StrSerializer
    >>> from headgate.task.batch.spill import SpillSpace
    >>> space = SpillSpace(tempfile.gettempdir, memory_bytes=2**20, serializers=(StrSerializer(),))
    >>> with RunWriter(space, block_values=2) as writer:
    ...     writer.add(7, "t", Entries(["to", "tie", "too"], [1, 2, 3], [0, 0, 0]))
    ...     run = writer.finish()
    >>> [(key, [entries.values for entries in several]) for _, key, several in merged([run])]
    [('t', [['to', 'tie'], ['too']])]
    >>> run.close()
    """

    __slots__ = ("_block_values", "_blocks", "_counts", "_file", "_hashes", "_keys", "_space", "_tags", "_times",
                 "_values")  # fmt: skip

    def __init__(self, space: SpillSpace, block_values: int) -> None:
        self._space = space
        self._block_values = block_values
        self._file = space.file()
        self._blocks: list[Piece] = []
        self._begin()

    def _begin(self) -> None:
        self._hashes = array("Q")
        self._counts = array("Q")
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._times: list[int] = []
        self._tags: list[int] = []

    def add(self, hash_: int, key: Hashable, entries: Entries) -> None:
        """Append values of a key, whose hash is not below that of the key before."""
        values, times, tags = entries
        while True:
            room = self._block_values - len(self._values)
            count = min(room, len(values))
            self._hashes.append(hash_)
            self._counts.append(count)
            self._keys.append(key)
            if count < len(values):
                self._values += values[:count]
                self._times += times[:count]
                self._tags += tags[:count]
            else:
                self._values += values
                self._times += times
                self._tags += tags
            if count == room:
                self._write()
            if count == len(values):
                return
            values, times, tags = values[count:], times[count:], tags[count:]

    def finish(self) -> Run:
        """Write the last block. Return the run."""
        if self._values:
            self._write()
        return Run(self._space, self._file, self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._file.close()

    def _write(self) -> None:
        tags, values, space = self._tags, self._values, self._space
        packed_tags, packed_times = array("q", tags), array("q", self._times)
        parts: list[Sequence[Any]] = [
            (self._hashes,), (self._counts,), space.objects.encode_batch(self._keys),
            (packed_tags[:1] if tags.count(tags[0]) == len(tags) else packed_tags,),
            (packed_times if any(packed_times) else b"",),
        ]  # fmt: skip
        sides = {tag & _SIDE for tag in set(tags)}
        for side in range(_SIDES):
            if side in sides:
                of_side = values if len(sides) == 1 else _of_side(values, tags, side)
                parts.append(_serializer(space, side).encode_batch(of_side))
            else:
                parts.append(())
        pieces = [[memoryview(piece).cast("B") for piece in part] for part in parts]
        head = _HEAD.pack(*(sum(map(len, part)) for part in pieces))
        self._blocks.append(self._file.append([head, *(piece for part in pieces for piece in part)]))
        self._begin()


def _of_side(values: list[Any], tags: list[int], side: int) -> list[Any]:
    return [value for value, tag in zip(values, tags, strict=True) if tag & _SIDE == side]


def _serializer(space: SpillSpace, side: int) -> Any:
    return space.objects if side == OWN or side >= len(space.serializers) else space.serializers[side]


class _Block(NamedTuple):
    """A block in memory."""

    hashes: array[int]
    keys: list[Any]
    begins: list[int]  # the begin of each group, and the end of the last
    entries: Entries

    def group(self, index: int) -> Entries:
        begin, end = self.begins[index], self.begins[index + 1]
        values, times, tags = self.entries
        return Entries(values[begin:end], times[begin:end], tags[begin:end])


class Run:
    """A finished run. `close` deletes its file."""

    __slots__ = ("_file", "_space", "blocks")

    def __init__(self, space: SpillSpace, file: SpillFile, blocks: list[Piece]) -> None:
        self._space = space
        self._file = file
        self.blocks = blocks

    @property
    def bytes_on_disk(self) -> int:
        """The size of the file."""
        return self._file.bytes_on_disk

    def load(self, number: int) -> _Block:
        """Read and return a block."""
        data = self._file.read(self.blocks[number])
        try:
            return self._decoded(data)
        except (SerializationError, ValueError, IndexError) as error:
            raise self._file.damaged(error) from error

    def _decoded(self, data: memoryview) -> _Block:
        ends = accumulate(_HEAD.unpack_from(data), initial=_HEAD.size)
        parts = [data[begin:end] for begin, end in pairwise(ends)]
        hashes, counts = array("Q", bytes(parts[0])), array("Q", bytes(parts[1]))
        begins = list(accumulate(counts, initial=0))
        count = begins[-1]
        keys = self._space.objects.decode_batch(parts[2])
        tags = array("q", bytes(parts[3])).tolist()
        if len(tags) == 1:
            tags *= count
        times = array("q", bytes(parts[4])).tolist() or [0] * count
        sides = [
            _serializer(self._space, side).decode_batch(part) if part else [] for side, part in enumerate(parts[5:])
        ]
        values = next((one for one in sides if len(one) == count), None)
        if values is None:  # values of several serializers: restore the order of arrival
            iterators = [iter(one) for one in sides]
            values = [next(iterators[tag & _SIDE]) for tag in tags]
        return _Block(hashes, keys, begins, Entries(values, times, tags))

    def close(self) -> None:
        """Close the file. May be called more than once."""
        self._file.close()


class _Cursor:
    """Iterates over a run, group by group; `hash` is that of the current group, None at the end."""

    __slots__ = ("_at", "_next", "block", "hash", "number", "run")

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self.number = number
        self._next = 0  # the number of the next block
        self._load_next()

    def _load_next(self) -> None:
        """Read the next block."""
        self.hash: int | None = None
        self.block: _Block | None = None  # before the next one is read: memory is planned for one block
        self._at = 0
        if self._next < len(self.run.blocks):
            self.block = self.run.load(self._next)
            self._next += 1
            self.hash = self.block.hashes[0]

    @property
    def last(self) -> int | None:
        """The last hash of this block, if the run has more blocks."""
        return None if self.block is None or self._next == len(self.run.blocks) else self.block.hashes[-1]

    @property
    def key(self) -> Any:
        """The key of the current group."""
        assert self.block is not None, "a cursor at the end"
        return self.block.keys[self._at]

    @property
    def position(self) -> _Position:
        """The position of the current group."""
        return self.run, self._next - 1, self._at

    def entries(self) -> Entries:
        """Return the values of the current group."""
        assert self.block is not None, "a cursor at the end"
        return self.block.group(self._at)

    def skip(self) -> None:
        """Move to the next group."""
        assert self.block is not None, "a cursor at the end"
        self._at += 1
        if self._at == len(self.block.keys):
            self._load_next()
        else:
            self.hash = self.block.hashes[self._at]

    def take_below(self, bound: int, found: dict[Any, _Group]) -> None:
        """Move past the groups of this block with hashes below `bound`, and add their values to `found`."""
        block = self.block
        assert block is not None, "a cursor at the end"
        end = bisect_left(block.hashes, bound, self._at)
        hashes, keys, begins, (values, times, tags) = block
        for index in range(self._at, end):
            key, begin, stop = keys[index], begins[index], begins[index + 1]
            group = found.get(key)
            if group is None:
                found[key] = hashes[index], Entries(values[begin:stop], times[begin:stop], tags[begin:stop])
            else:
                group[1].values.extend(values[begin:stop])
                group[1].times.extend(times[begin:stop])
                group[1].tags.extend(tags[begin:stop])
        self._at = end
        if end == len(keys):
            self._load_next()
        else:
            self.hash = hashes[end]


_Group = tuple[int, Entries]
_Position = tuple[Run, int, int]  # a run, and the numbers of a block and of a group of it


def merged(runs: Iterable[Run]) -> Iterator[tuple[int, Any, Iterable[Entries]]]:
    """Yield hash, key and values of each key once, in the order of the hashes; the values in the order of arrival.

    The next key skips unread values of the last.
    """
    cursors = [_Cursor(run, number) for number, run in enumerate(runs)]
    while cursors := [one for one in cursors if one.hash is not None]:
        # All groups below the last hash of every block are in memory: most keys are merged here, together.
        bound = min((one.last for one in cursors if one.last is not None), default=2**64)
        found: dict[Any, _Group] = {}
        for one in cursors:
            one.take_below(bound, found)
        for key, (hash_, entries) in sorted(found.items(), key=_hash_of):
            yield hash_, key, (entries,)
        found.clear()
        yield from _at_hash([one for one in cursors if one.hash == bound], bound)


def _hash_of(item: tuple[Any, _Group]) -> int:
    return item[1][0]


def _at_hash(cursors: list[_Cursor], hash_: int) -> Iterator[tuple[int, Any, Iterator[Entries]]]:
    """Yield the keys of one hash whose values span blocks; the values are read from disk on demand."""
    if not cursors:
        return
    others: dict[Any, list[_Position]] = {}
    key = cursors[0].key
    entries = _of_key(cursors, hash_, key, others)
    yield hash_, key, entries
    for _ in entries:
        pass
    while others:
        other = next(iter(others))
        yield hash_, other, _at(others.pop(other))


def _of_key(cursors: list[_Cursor], hash_: int, key: Any, others: dict[Any, list[_Position]]) -> Iterator[Entries]:
    """Yield the values of a key; store the positions of other keys with the same hash in `others`."""
    for cursor in cursors:
        while cursor.hash == hash_:
            found = cursor.key
            if found is key or found == key:
                yield cursor.entries()
            else:
                others.setdefault(found, []).append(cursor.position)
            cursor.skip()


def _at(positions: list[_Position]) -> Iterator[Entries]:
    for run, block, group in positions:
        yield run.load(block).group(group)
