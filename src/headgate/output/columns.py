"""ColumnWriter: the writer of streams of Arrow record batches, which are partitioned by key columns.

Used on its task's thread. `HashColumns` selects the same channel for a row as `Hash` for its key, so that the two sides
of a join may be rows and record batches. Other selectors send each batch as a whole.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.errors import SelectorError
from headgate.output.selector import Selector
from headgate.output.writer import RecordWriter
from headgate.record.element import encode_aligned
from headgate.record.key_columns import hash_columns
from headgate.record.keys import group_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headgate.output.hot_keys import HotKeys

__all__ = ["ColumnWriter", "HashColumns"]


class HashColumns(Selector["pa.RecordBatch"]):
    """Selects by the key group of one or several columns.

    >>> import pyarrow as pa
    >>> by_word = HashColumns(["word"]); by_word.connect(2)
    >>> batch = pa.record_batch({"word": ["to", "be", "or"], "n": [1, 2, 3]})
    >>> sum(part.num_rows for _, part in by_word.scatter(batch))
    3
    """

    def __init__(self, columns: Sequence[str], max_parallelism: int = 128) -> None:
        if not columns:
            raise SelectorError("name at least one column to partition by")
        self._columns = list(columns)
        self._groups = max_parallelism
        self._channel_of = np.zeros(max_parallelism, np.uint16)

    def watch_keys(self, hot: HotKeys) -> None:
        """See `Selector`."""
        self._hot = hot

    def connect(self, channels: int) -> None:
        """Assign the key groups to the channels."""
        super().connect(channels)
        # numpy sorts 8- and 16-bit integers in linear time: the type of this table decides the speed of `scatter`.
        kind = np.uint8 if channels <= 256 else np.uint16
        self._channel_of = np.array(group_channels(self._groups, channels), kind)

    def choose(self, value: pa.RecordBatch) -> int:
        """Return the channel of all rows; raise if they have several."""
        parts = self.scatter(value)
        if len(parts) != 1:
            raise SelectorError(f"a batch of {value.num_rows} rows belongs to {len(parts)} channels: scatter it")
        return parts[0][0]

    def scatter(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of a batch by channel, in order, without empty channels."""
        try:
            keys = [batch.column(name) for name in self._columns]
        except KeyError as error:
            raise SelectorError(
                f"cannot partition by {self._columns}: the batch has the columns {batch.schema.names}"
            ) from error
        hot = self._hot
        if hot is not None and hot.count(batch.num_rows):
            hot.sample(batch.num_rows, partial(_keys_of_rows, keys))
        channels = self._channel_of[hash_columns(keys) % self._groups]
        counts = np.bincount(channels, minlength=self.channels)
        used = np.flatnonzero(counts)
        if len(used) <= 1:
            return [(int(used[0]), batch)] if len(used) else []
        ordered = batch.take(pa.array(np.argsort(channels, kind="stable")))
        ends = np.cumsum(counts)
        return [
            (channel, ordered.slice(int(ends[channel] - counts[channel]), int(counts[channel])))
            for channel in used.tolist()
        ]


def _keys_of_rows(columns: list[pa.Array], rows: slice) -> list[Hashable]:
    """Return the keys of some rows as Python values: of one column, or tuples of several."""
    values: list[list[Hashable]] = [column[rows].to_pylist() for column in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


class ColumnWriter(RecordWriter["pa.RecordBatch"]):
    """Writes record batches without collecting them in lists.

    A batch that fits into a buffer, but not into the rest of the current one, starts a new buffer, so that its reader
    need not copy it together.

    >>> from headgate.ids import AttemptId, JobId, PartitionId
    >>> from headgate.record.arrow import ArrowSerializer
    >>> from headgate.worker import Environment
    >>> batch = pa.record_batch({"word": ["to", "be", "or"]})
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     partition = worker.partition(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), subpartitions=2)
    ...     writer = worker.writer(partition, HashColumns(["word"]), ArrowSerializer())
    ...     writer.emit(batch); writer.finish()
    ...     type(writer).__name__, writer.records_out.value
    ('ColumnWriter', 3)
    """

    def _make_emit(self) -> Callable[[pa.RecordBatch], None]:
        return self._emit

    def _emit(self, value: pa.RecordBatch) -> None:
        """Write each row of a batch to its channel."""
        selector = self._selector
        parts = selector.scatter(value) if isinstance(selector, HashColumns) else [(selector.choose(value), value)]
        with self._mutex:
            self._raise_earlier_error()
            for channel, part in parts:
                self._put_columns(channel, part)
        if self._always:
            self.partition.flush()

    def emit_batch(self, values: list[pa.RecordBatch], timestamps_ms: list[int] | None = None) -> None:
        """Write several batches. Event times are columns, so timestamps raise SelectorError."""
        if timestamps_ms is not None:
            raise SelectorError("a stream of record batches carries event times in a column, not beside the batches")
        for value in values:
            self.emit(value)

    def emit_at(self, value: pa.RecordBatch, timestamp_ms: int) -> None:
        """Raise SelectorError: event times are columns."""
        self.emit_batch([value], [timestamp_ms])

    def _put_columns(self, channel: int, batch: pa.RecordBatch) -> None:
        queue = self._queues[channel]
        if queue.spanning.unfinished:
            self._copy(queue, wait=True)
        body = self._serializer.pieces(batch)
        position = 0 if queue.buffer is None else queue.buffer.position
        pieces = encode_aligned(body, self._serializer.alignment, position, self._limits)
        size_bytes = sum(map(len, pieces))
        if position + size_bytes > self._target_bytes >= size_bytes:
            self._end_buffer(queue)
            pieces = encode_aligned(body, self._serializer.alignment, 0, self._limits)
        self.records_out.value += self._serializer.records_in(batch)
        self._put(queue, pieces, wait=True)
