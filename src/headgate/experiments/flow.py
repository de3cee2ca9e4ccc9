"""The tasks of the experiments, as a user would write them: a source at full speed or throttled, and its consumer.

Both run in workers and keep to one schedule by the clock, whose start is the moment at which the first source of a run
begins: all sources of a run are in one worker, and their records tell their consumers. A record is 100 bytes. The first
of each batch is a stamp: when it was given out, how many records were before it, and full speed as it was measured.
Some stamps are barriers, like those that a checkpoint would send: a consumer reports each of them to the driver.

Invariants: a throttle sleeps and does not spin; records are not changed, lost or reordered by anything here.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.experiments.schedule import Schedule
    from headgate.task.operator import Place

__all__ = ["BATCH", "RECORD_BYTES", "Consumer", "FullSpeed", "Note", "Notebook", "Pace", "Producer", "stamped"]

RECORD_BYTES: Final = 100
"""The size of a record, before a serializer adds anything."""
BATCH: Final = 500
"""Records that a source gives out at once, and a throttle waits for."""

_PLAIN: Final = bytes(RECORD_BYTES)
_STAMP: Final = struct.Struct("<Bqqqd")  # 1, or 2 for a barrier; start, moment; records before; full speed
_BARRIER_NS: Final = 20_000_000
_SHORTEST_S: Final = 0.0003  # a sleep takes longer than it is asked to: short ones are put together
_LONGEST_S: Final = 0.05  # so that a task that is to end does
_CATCH_UP_S: Final = 0.005  # how much of what was missed may be caught up with

_starts: dict[str, int] = {}  # of the runs whose sources are in this process
_starts_lock = threading.Lock()


def _start_ns(run: str) -> int:
    """The moment at which the first source of a run asked for it."""
    with _starts_lock:
        return _starts.setdefault(run, time.time_ns())


def _forget(run: str) -> None:
    with _starts_lock:
        _starts.pop(run, None)


def stamped(*, barrier: bool, start_ns: int, sent_ns: int, before: int, full_per_s: float) -> bytes:
    """A record that carries a stamp.

    >>> len(stamped(barrier=False, start_ns=0, sent_ns=0, before=0, full_per_s=0.0))
    100
    """
    return _STAMP.pack(1 + barrier, start_ns, sent_ns, before, full_per_s).ljust(RECORD_BYTES, b"\0")


class Pace:
    """Lets records pass at a rate: sleeps for what they should take.

    >>> slept = []
    >>> pace = Pace(now=lambda: 0.0, sleep=slept.append)
    >>> pace.wait(500, per_s=None); pace.wait(500, per_s=50_000.0)
    >>> slept
    [0.01]
    """

    __slots__ = ("_due_s", "_now", "_sleep")

    def __init__(
        self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._due_s: float | None = None

    def wait(self, records: int, per_s: float | None) -> None:
        """Take as long for so many records as they would at this rate; None: as fast as may be."""
        if per_s is None:
            self._due_s = None
            return
        now_s = self._now()
        due_s = now_s if self._due_s is None else max(self._due_s, now_s - _CATCH_UP_S)
        self._due_s = due_s = due_s + records / per_s
        while (left_s := due_s - self._now()) >= _SHORTEST_S:
            self._sleep(min(left_s, _LONGEST_S))
            if left_s <= _LONGEST_S:
                return


class FullSpeed:
    """Finds full speed: cuts a lead into stretches, and takes the mean of the faster half of them.

    The slower half is left out because what has just been started is slow at first.

    >>> speed = FullSpeed(slice_s=0.5, lead_s=2.0)
    >>> for second, written in ((0.0, 0), (0.5, 10), (1.0, 300), (1.5, 600), (2.0, 750), (2.5, 9000)):
    ...     speed.look(second, written)
    >>> speed.per_s
    590.0
    """

    __slots__ = ("_found", "_lead_s", "_seen_s", "_slice_s", "_written", "per_s")

    def __init__(self, slice_s: float, lead_s: float) -> None:
        self._slice_s = slice_s
        self._lead_s = lead_s
        self._seen_s = 0.0
        self._written = 0
        self._found: list[float] = []
        self.per_s = 0.0
        """0: the lead is not over."""

    def look(self, second: float, written: int) -> None:
        """So many records were written until then."""
        if self.per_s:
            return
        passed_s = second - self._seen_s
        if passed_s >= self._slice_s - 1e-9:
            self._found.append((written - self._written) / passed_s)
            self._seen_s, self._written = second, written
        if second >= self._lead_s and self._found:
            fast = sorted(self._found)[len(self._found) // 2 :]
            self.per_s = sum(fast) / len(fast)


class Note(NamedTuple):
    """What a consumer tells the driver when a barrier has come. Moments are nanoseconds of the system's clock.

    >>> Note("fast", 0, 1, 2, seen=500, in_flight=500, full_per_s=0.0).came_ns
    2
    """

    consumer: str
    start_ns: int  # of the run
    sent_ns: int  # the barrier's
    came_ns: int
    seen: int  # records that have come so far
    in_flight: int  # the most records that were given out and had not come, since the barrier before
    full_per_s: float  # full speed as the source has measured it; 0: not yet


class Notebook:
    """Notes as they arrive in the driver: written by the sink's thread, read by others.

    >>> book = Notebook()
    >>> book.put_batch([Note("fast", 0, 1, 2, 500, 500, 0.0)])
    >>> book.notes("fast")[0].seen, book.notes("slow")
    (500, [])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, list[Note]] = {}

    def put_batch(self, values: list[Any]) -> None:
        """See `hg.CollectSink`."""
        with self._lock:
            for value in values:
                self._notes.setdefault(value[0], []).append(Note(*value))

    def notes(self, consumer: str) -> list[Note]:
        """What a consumer has told so far."""
        with self._lock:
            return list(self._notes.get(consumer, ()))

    def last(self, consumer: str) -> Note | None:
        """The last of that."""
        with self._lock:
            notes = self._notes.get(consumer)
            return notes[-1] if notes else None


class Producer(hg.Source[bytes]):
    """Gives out records as fast as it can, or as the schedule says; a neighbour, only in the phases that have one.

    >>> from headgate.experiments.schedule import Phase, Schedule
    >>> source = Producer("run-1", Schedule((Phase("all"),), phase_s=0.01, lead_s=0.01))
    >>> batches = [batch for batch in source.read(0, 0, None)]
    >>> {len(batch) for batch in batches}, {len(record) for record in batches[0]}
    ({500}, {100})
    """

    hint = bytes

    def __init__(self, run: str, schedule: Schedule, *, neighbour: bool = False) -> None:
        self._run = run
        self._schedule = schedule
        self._neighbour = neighbour

    def splits(self, parallelism: int) -> list[int]:
        """One: a run has one producer of a kind."""
        assert parallelism == 1, "it is the only one"
        return [0]

    def read(self, split: int, offset: int, place: Place) -> Iterator[list[bytes] | hg.Wait]:  # noqa: ARG002
        """All batches."""
        try:
            yield from self._batches(_start_ns(self._run))
        finally:
            _forget(self._run)

    def _batches(self, start_ns: int) -> Iterator[list[bytes] | hg.Wait]:
        schedule, pace, plain = self._schedule, Pace(), [_PLAIN] * (BATCH - 1)
        written, barrier_ns, full = 0, 0, FullSpeed(schedule.slice_s, schedule.lead_s)
        while True:
            second = (time.time_ns() - start_ns) / 1e9
            if schedule.is_over(second):
                return
            if self._neighbour and (wait_s := schedule.until_neighbour_s(second)) != 0:
                if wait_s is None:
                    return
                yield hg.Wait(min(wait_s, _LONGEST_S))
                continue
            full.look(second, written)
            share = schedule.at(second).producer
            pace.wait(BATCH, share * full.per_s if full.per_s and share < 1 else None)
            sent_ns = time.time_ns()
            barrier = sent_ns - barrier_ns >= _BARRIER_NS
            if barrier:
                barrier_ns = sent_ns
            stamp = stamped(barrier=barrier, start_ns=start_ns, sent_ns=sent_ns, before=written, full_per_s=full.per_s)
            yield [stamp, *plain]
            written += BATCH


class Consumer:
    """Takes records as fast as it can or as the schedule says, and tells the driver of barriers.

    `pause_s` is what a slow neighbour takes for every batch of its source, in the phases that have one.

    >>> from headgate.experiments.schedule import Phase, Schedule
    >>> consumer = Consumer("fast", Schedule((Phase("all"),), phase_s=1.0, lead_s=1.0))
    >>> stamp = stamped(barrier=True, start_ns=0, sent_ns=5, before=0, full_per_s=0.0)
    >>> [(note.consumer, note.in_flight) for note in consumer([stamp, bytes(100)])]
    [('fast', 0)]
    """

    def __init__(self, name: str, schedule: Schedule, *, pause_s: float = 0.0) -> None:
        self._name = name
        self._schedule = schedule
        self._pause_s = pause_s
        self._pace = Pace()
        self._seen = 0
        self._start_ns = 0
        self._full_per_s = 0.0
        self._most = 0  # in flight, since the last barrier
        self._history: deque[tuple[int, int]] = deque([(0, 0)])  # moments, and what had come then

    def __call__(self, records: list[bytes]) -> list[Note]:
        """Take a batch, in its time."""
        came_ns = time.time_ns()
        self._history.append((came_ns, self._seen + len(records)))
        notes = [note for record in records if record[0] and (note := self._read_stamp(record, came_ns))]
        self._seen += len(records)
        self._pace.wait(len(records), self._rate((came_ns - self._start_ns) / 1e9))
        return notes

    def _rate(self, second: float) -> float | None:
        """How fast it may be at that moment; None: as fast as it can."""
        phase = self._schedule.at(second)
        if self._pause_s:
            return BATCH / self._pause_s if phase.neighbour else None
        return phase.consumer * self._full_per_s if phase.consumer < 1 and self._full_per_s else None

    def _read_stamp(self, record: bytes, came_ns: int) -> Note | None:
        kind, self._start_ns, sent_ns, before, self._full_per_s = _STAMP.unpack_from(record)
        history = self._history
        while len(history) > 1 and history[1][0] <= sent_ns:
            history.popleft()
        self._most = max(self._most, before - history[0][1])
        if kind == 1:
            return None
        most, self._most = self._most, 0
        return Note(self._name, self._start_ns, sent_ns, came_ns, self._seen, most, self._full_per_s)
