"""What comes into a worker, or leaves it, other than through exchanges: record batches of its host.

A host hands a worker one iterator of record batches for all its sources (`feeding`). It is read by a thread of its own,
which sorts the batches into one bounded queue per source; a source's subtask takes them from there (`take`). The other
way a sink's subtask puts batches into a bounded queue (`Outlet`) that the host's thread drains.

One worker per process has these: sources and sinks know theirs by a name.

Invariants: a queue holds at most so many batches; no thread is left when `feeding` is over; nobody waits for a feed
that is over.
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

__all__ = ["SOURCE_COLUMN", "Feed", "Outlet", "feed_of", "feeding", "outlet", "outlet_of"]

MOST_BATCHES: Final = 8
SOURCE_COLUMN: Final = "_headgate_source"
"""Where several sources share an iterator: rows of (number of the source, an Arrow stream as bytes)."""

_JOIN_S: Final = 2.0

_feeds: dict[str, Feed] = {}
_outlets: dict[str, Outlet] = {}


class Feed:
    """Record batches on their way to one source: a bounded queue.

    >>> feed = Feed()
    >>> feed.put("a batch"); feed.end()
    >>> feed.take(1.0), feed.take(1.0), feed.ended
    ('a batch', None, True)
    """

    def __init__(self, most: int = MOST_BATCHES) -> None:
        self._changed = threading.Condition()
        self._batches: deque[Any] = deque()
        self._most = most
        self._closed = False
        self._full = False
        self._unwanted = False
        self._error: BaseException | None = None
        self.before: list[Feed] = []
        """Feeds of the same iterator whose batches all come first, and which are read first, if at all."""

    @property
    def ended(self) -> bool:
        """Whether everything was put and taken, and no error is left to be raised."""
        return self._full and not self._batches and self._error is None

    def put(self, batch: Any) -> None:
        """Add a batch; waits while the queue is full.

        Raises:
            Cancelled: nobody is going to take it.
        """
        with self._changed:
            while len(self._batches) >= self._most and not (self._closed or self._unwanted):
                self._changed.wait()
            if self._closed:
                raise Cancelled("nobody takes any more")
            if not self._unwanted:
                self._batches.append(batch)
                self._changed.notify_all()

    def take(self, timeout_s: float | None) -> Any:
        """The next batch; None: there is none yet, or it has `ended`.

        Raises:
            Exception: what `end` was told.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._full or self._closed, timeout_s)
            if self._batches:
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is put, because of an error or because that was all."""
        with self._changed:
            self._full = True
            if not self._closed:
                self._error = self._error or error
            self._changed.notify_all()

    def drop(self) -> None:
        """Nothing more is taken, and what is put is forgotten: nobody waits for anybody."""
        with self._changed:
            self._unwanted = True
            self._batches.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is taken."""
        with self._changed:
            self._closed = self._full = True
            self._error = None
            self._batches.clear()
            self._changed.notify_all()


Outlet = Feed
"""Record batches on their way from a sink to the host: the same queue the other way."""


def feed_of(name: str) -> Feed:
    """The feed of a source.

    Raises:
        ConfigError: this worker's host has none.

    >>> feed_of("dataframe-1")
    Traceback (most recent call last):
    headgate.errors.ConfigError: a DataFrame can be read on Spark only: do not run this pipeline with local=True
    """
    if name not in _feeds:
        raise ConfigError("a DataFrame can be read on Spark only: do not run this pipeline with local=True")
    feed = _feeds[name]
    for one in feed.before:
        one.drop()
    return feed


@contextmanager
def feeding(sources: Sequence[str], batches: Iterator[pa.RecordBatch], *, in_turn: bool = False) -> Iterator[None]:
    """Feed these sources from one iterator, as long as the context lasts.

    One source gets the batches as they are. Of several each batch has two columns: the source's place in the list, and
    an Arrow stream. If they are read `in_turn`, as in BATCH, one after another or not at all, then the iterator has all
    that is for the first one first: a full queue of one that is not read yet would hold up the others.

    >>> with feeding([], iter([])):
    ...     print("no source wants anything")
    no source wants anything
    """
    if not sources:
        deque(batches, maxlen=0)  # Spark uses a process again only if that has read all its input
        yield
        return
    feeds = [_feeds.setdefault(name, Feed()) for name in sources]
    if in_turn:
        for number, feed in enumerate(feeds):
            feed.before = feeds[:number]
    thread = threading.Thread(target=_feed, args=(feeds, batches), name="headgate-feeder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for name, feed in zip(sources, feeds, strict=True):
            feed.close()
            _feeds.pop(name, None)
        thread.join(_JOIN_S)
    if thread.is_alive():  # an error ends this process, which cannot be used again while a thread reads its input
        raise Cancelled("the host's input did not end")


def _feed(feeds: list[Feed], batches: Iterator[pa.RecordBatch]) -> None:
    error: BaseException | None = None
    try:
        for batch in batches:
            if SOURCE_COLUMN in batch.schema.names:
                _sort(batch, feeds)
            else:
                feeds[0].put(batch)
    except Cancelled:
        pass
    except BaseException as caught:  # noqa: BLE001 - its source raises it
        error = caught
    for feed in feeds:
        feed.end(error)


def _sort(batch: pa.RecordBatch, feeds: list[Feed]) -> None:
    import pyarrow as pa  # noqa: PLC0415 - not before it is used

    for source, stream in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
        for before in feeds[source].before:
            before.end()
        with pa.ipc.open_stream(stream.as_buffer()) as reader:
            for one in reader:
                feeds[source].put(one)


@contextmanager
def outlet(name: str) -> Iterator[Outlet]:
    """A queue that the sink of this name fills, as long as the context lasts.

    >>> with outlet("words") as queue:
    ...     outlet_of("words") is queue
    True
    """
    made = _outlets[name] = Outlet()
    try:
        yield made
    finally:
        made.close()
        _outlets.pop(name, None)


def outlet_of(name: str) -> Outlet:
    """The queue of a sink.

    Raises:
        ConfigError: this worker's host has none.

    >>> outlet_of("words")
    Traceback (most recent call last):
    headgate.errors.ConfigError: a DataFrame is written only when Spark computes it: use to_dataframe, not execute
    """
    if name not in _outlets:
        raise ConfigError("a DataFrame is written only when Spark computes it: use to_dataframe, not execute")
    return _outlets[name]
