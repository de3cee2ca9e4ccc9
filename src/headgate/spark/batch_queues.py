"""Bounded queues of record batches between Spark's thread and the DataFrame sources and sinks of a worker.

Spark gives a worker one iterator of record batches for all its sources. `filling_source_queues` reads it on a thread of
its own and distributes the batches to one queue per source; a source's subtask takes them from there. In the other
direction a sink's subtask puts batches into a queue that Spark's thread drains.

One worker per process has these queues: sources and sinks find theirs by name.

Invariants: a queue holds at most `MAX_BATCHES` batches; no thread is left after `filling_source_queues`; no thread
blocks on a queue that is closed.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import Cancelled, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

__all__ = ["SOURCE_COLUMN", "BatchQueue", "filling_source_queues", "open_sink_queue", "sink_queue", "source_queue"]

MAX_BATCHES: Final = 8
SOURCE_COLUMN: Final = "_headgate_source"
"""The first column if several sources share the iterator: rows of (number of the source, an Arrow stream)."""

_JOIN_S: Final = 2.0

_source_queues: dict[str, BatchQueue] = {}
_sink_queues: dict[str, BatchQueue] = {}


class BatchQueue:
    """A bounded queue of record batches between two threads.

    >>> queue = BatchQueue()
    >>> queue.put("a batch"); queue.end()
    >>> queue.take(1.0), queue.take(1.0), queue.ended
    ('a batch', None, True)
    """

    def __init__(self, limit: int = MAX_BATCHES) -> None:
        self._changed = threading.Condition()
        self._batches: deque[Any] = deque()
        self._limit = limit
        self._closed = False
        self._complete = False
        self._dropping = False
        self._error: BaseException | None = None
        self.before: list[BatchQueue] = []
        """Queues of the same iterator whose batches all arrive earlier; they are read earlier, or not at all."""

    @property
    def ended(self) -> bool:
        """Return True if all batches were put and taken, and no error is left to raise."""
        return self._complete and not self._batches and self._error is None

    def put(self, batch: Any) -> None:
        """Add a batch; block while the queue is full.

        Raises:
            Cancelled: the queue is closed.
        """
        with self._changed:
            while len(self._batches) >= self._limit and not (self._closed or self._dropping):
                self._changed.wait()
            if self._closed:
                raise Cancelled("the queue of record batches is closed")
            if not self._dropping:
                self._batches.append(batch)
                self._changed.notify_all()

    def take(self, timeout_s: float | None) -> Any:
        """Return the next batch; None if there is none after `timeout_s`, or the queue has `ended`.

        Raises:
            Exception: the error passed to `end`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._complete or self._closed, timeout_s)
            if self._batches:
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def end(self, error: BaseException | None = None) -> None:
        """Mark the queue as complete, with an error or (None) because that was all."""
        with self._changed:
            self._complete = True
            if not self._closed:
                self._error = self._error or error
            self._changed.notify_all()

    def drop(self) -> None:
        """Discard all batches, present and future; `put` does not block any more."""
        with self._changed:
            self._dropping = True
            self._batches.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Discard all batches; `put` raises Cancelled from now on."""
        with self._changed:
            self._closed = self._complete = True
            self._error = None
            self._batches.clear()
            self._changed.notify_all()


def source_queue(name: str) -> BatchQueue:
    """Return the queue of a source. Queues before it are dropped: their sources are not read any more.

    Raises:
        ConfigError: this worker's host has none.

    >>> source_queue("dataframe-1")
    Traceback (most recent call last):
    headgate.errors.ConfigError: a DataFrame can be read on Spark only: do not run this pipeline with local=True
    """
    if name not in _source_queues:
        raise ConfigError("a DataFrame can be read on Spark only: do not run this pipeline with local=True")
    queue = _source_queues[name]
    for one in queue.before:
        one.drop()
    return queue


@contextmanager
def filling_source_queues(
    sources: Sequence[str], batches: Iterator[pa.RecordBatch], *, in_turn: bool = False
) -> Iterator[None]:
    """Fill the queues of these sources from one iterator while the context lasts.

    With one source, the batches are passed on unchanged. With several, each batch has two columns: the source's index
    in the list, and an Arrow stream. `in_turn`: the sources are read one after another or not at all, as in BATCH, and
    the iterator has all batches of the first source first. Otherwise a full queue of an unread source would block the
    others.

    >>> with filling_source_queues([], iter([])):
    ...     print("no sources")
    no sources
    """
    if not sources:
        deque(batches, maxlen=0)  # Spark reuses a process only if it has read all its input
        yield
        return
    queues = [_source_queues.setdefault(name, BatchQueue()) for name in sources]
    if in_turn:
        for number, queue in enumerate(queues):
            queue.before = queues[:number]
    thread = threading.Thread(target=_fill, args=(queues, batches), name="headgate-feeder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for name, queue in zip(sources, queues, strict=True):
            queue.close()
            _source_queues.pop(name, None)
        thread.join(_JOIN_S)
    if thread.is_alive():  # the error ends this process, which Spark cannot reuse while a thread reads its input
        raise Cancelled("the host's input did not end")


def _fill(queues: list[BatchQueue], batches: Iterator[pa.RecordBatch]) -> None:
    error: BaseException | None = None
    try:
        for batch in batches:
            if SOURCE_COLUMN in batch.schema.names:
                _distribute(batch, queues)
            else:
                queues[0].put(batch)
    except Cancelled:
        pass
    except BaseException as caught:  # noqa: BLE001 - its source raises it
        error = caught
    for queue in queues:
        queue.end(error)


def _distribute(batch: pa.RecordBatch, queues: list[BatchQueue]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - imported when first needed

    for source, stream in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
        for before in queues[source].before:
            before.end()
        with pa.ipc.open_stream(stream.as_buffer()) as reader:
            for one in reader:
                queues[source].put(one)


@contextmanager
def open_sink_queue(name: str) -> Iterator[BatchQueue]:
    """Make the queue of the sink of this name, for as long as the context lasts.

    >>> with open_sink_queue("words") as queue:
    ...     sink_queue("words") is queue
    True
    """
    made = _sink_queues[name] = BatchQueue()
    try:
        yield made
    finally:
        made.close()
        _sink_queues.pop(name, None)


def sink_queue(name: str) -> BatchQueue:
    """Return the queue of a sink.

    Raises:
        ConfigError: this worker's host has none.

    >>> sink_queue("words")
    Traceback (most recent call last):
    headgate.errors.ConfigError: a DataFrame is written only when Spark computes it: use to_dataframe, not execute
    """
    if name not in _sink_queues:
        raise ConfigError("a DataFrame is written only when Spark computes it: use to_dataframe, not execute")
    return _sink_queues[name]
