"""The tasks of the experiments, as a user would write them: a source at full speed or throttled, and its consumer.

Both run in workers and keep to one schedule, whose start is the time at which the first source of the run starts: all
sources of a run are in one worker, and their records carry the start to the consumers. A record has 100 bytes. The
first record of each batch is a stamp: when it was emitted, how many records were before it, and the measured full
speed. Every 20 ms the source emits a checkpoint barrier, an event that travels through the exchange in order with the
records; its number is the time of its emission. The consumer reports each barrier to the driver.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import headgate as hg
from headgate.record.element import CheckpointBarrier
from headgate.task.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.experiments.schedule import PhaseSchedule
    from headgate.functions.place import Place
    from headgate.record.element import Event
    from headgate.task.operator import Times, Values

__all__ = [
    "BATCH",
    "RECORD_BYTES",
    "BarrierNote",
    "ConsumeOperator",
    "FullSpeed",
    "NoteStore",
    "PhaseConsumer",
    "PhaseSource",
    "Throttle",
    "barrier_at",
    "stamped",
]

RECORD_BYTES: Final = 100
"""Of a record, before a serializer adds to it."""
BATCH: Final = 500
"""Records of one batch of a source; a throttle sleeps once for each."""

_PLAIN: Final = bytes(RECORD_BYTES)
_STAMP: Final = struct.Struct("<Bqqqd")  # 1; start of the run, time of emission; records before; full speed
_BARRIER_NS: Final = 20_000_000
_SHORTEST_S: Final = 0.0003  # a sleep takes longer than requested: shorter ones are added up
_LONGEST_S: Final = 0.05  # so that a cancelled task ends
_CATCH_UP_S: Final = 0.005  # a throttle makes up for at most this much lost time

_starts: dict[str, int] = {}  # of the runs whose sources are in this process
_starts_lock = threading.Lock()


def stamped(*, start_ns: int, sent_ns: int, before: int, full_per_s: float) -> bytes:
    """Return a record that carries a stamp."""
    return _STAMP.pack(1, start_ns, sent_ns, before, full_per_s).ljust(RECORD_BYTES, b"\0")


def barrier_at(sent_ns: int) -> CheckpointBarrier:
    """Return a barrier whose number is the time of its emission, in nanoseconds of the system's clock."""
    return CheckpointBarrier(checkpoint=sent_ns, timestamp_ms=sent_ns // 1_000_000)


class Throttle:
    """Limits records to a rate: sleeps for the time that they should take, and never spins."""

    __slots__ = ("_due_s", "_now", "_sleep")

    def __init__(
        self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._due_s: float | None = None

    def wait(self, records: int, per_s: float | None) -> None:
        """Take as long for these records as they take at this rate; None is no limit."""
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
    """Measures full speed in the lead: the mean of the faster half of its slices. A fresh job is slow at first."""

    __slots__ = ("_found", "_lead_s", "_seen_s", "_slice_s", "_written", "per_s")

    def __init__(self, slice_s: float, lead_s: float) -> None:
        self._slice_s = slice_s
        self._lead_s = lead_s
        self._seen_s = 0.0
        self._written = 0
        self._found: list[float] = []
        self.per_s = 0.0
        """0 during the lead."""

    def update(self, second: float, written: int) -> None:
        """Note the number of records written until a time."""
        if self.per_s:
            return
        passed_s = second - self._seen_s
        if passed_s >= self._slice_s - 1e-9:
            self._found.append((written - self._written) / passed_s)
            self._seen_s, self._written = second, written
        if second >= self._lead_s and self._found:
            fast = sorted(self._found)[len(self._found) // 2 :]
            self.per_s = sum(fast) / len(fast)


class BarrierNote(NamedTuple):
    """A consumer's report of a barrier. Times are nanoseconds of the system's clock."""

    consumer: str
    start_ns: int  # of the run
    sent_ns: int  # the barrier's
    came_ns: int
    seen: int  # records that have come so far
    in_flight: int  # the most records emitted and not yet come, since the barrier before
    full_per_s: float  # full speed as measured by the source; 0 during the lead


class NoteStore:
    """The notes that arrived in the driver: the sink's thread adds, other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, list[BarrierNote]] = {}

    def put_batch(self, values: list[Any]) -> None:
        """See `hg.CollectSink`."""
        with self._lock:
            for value in values:
                self._notes.setdefault(value[0], []).append(BarrierNote(*value))

    def notes(self, consumer: str) -> list[BarrierNote]:
        """Return the notes of a consumer so far."""
        with self._lock:
            return list(self._notes.get(consumer, ()))

    def last(self, consumer: str) -> BarrierNote | None:
        """Return a consumer's last note."""
        with self._lock:
            notes = self._notes.get(consumer)
            return notes[-1] if notes else None


class PhaseSource(hg.Source[bytes]):
    """Emits records as fast as the schedule allows; with `neighbour`, only in the phases that have one."""

    hint = bytes

    def __init__(self, run: str, schedule: PhaseSchedule, *, neighbour: bool = False) -> None:
        self._run = run
        self._schedule = schedule
        self._neighbour = neighbour

    def splits(self, parallelism: int) -> list[int]:
        """Return one split: the source has one subtask."""
        assert parallelism == 1, "a run has one source of a kind"
        return [0]

    def read(self, split: int, offset: int, place: Place) -> Iterator[list[bytes] | hg.Wait | Event]:  # noqa: ARG002
        """Yield all batches, and a barrier after one of them every 20 ms."""
        with _starts_lock:
            start_ns = _starts.setdefault(self._run, time.time_ns())
        try:
            yield from self._batches(start_ns)
        finally:
            with _starts_lock:
                _starts.pop(self._run, None)

    def _batches(self, start_ns: int) -> Iterator[list[bytes] | hg.Wait | Event]:
        schedule, throttle, plain = self._schedule, Throttle(), [_PLAIN] * (BATCH - 1)
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
            full.update(second, written)
            throttle.wait(BATCH, self._rate(second, full.per_s))
            stamp = stamped(start_ns=start_ns, sent_ns=time.time_ns(), before=written, full_per_s=full.per_s)
            yield [stamp, *plain]
            written += BATCH
            sent_ns = time.time_ns()
            if sent_ns - barrier_ns >= _BARRIER_NS:
                barrier_ns = sent_ns
                yield barrier_at(sent_ns)

    def _rate(self, second: float, full_per_s: float) -> float | None:
        share = self._schedule.at(second).producer
        return share * full_per_s if share < 1 and full_per_s else None


class PhaseConsumer:
    """Takes records as fast as the schedule allows, and makes a note of each barrier for the driver.

    `pause_s` makes it a slow neighbour: the time for every batch of its source, in the phases that have one.
    """

    def __init__(self, name: str, schedule: PhaseSchedule, *, pause_s: float = 0.0) -> None:
        self._name = name
        self._schedule = schedule
        self._pause_s = pause_s
        self._throttle = Throttle()
        self._seen = 0
        self._start_ns = 0
        self._full_per_s = 0.0
        self._most = 0  # in flight, since the last barrier
        self._history: deque[tuple[int, int]] = deque([(0, 0)])  # times, and the records that had come by then

    def __call__(self, records: list[bytes]) -> None:
        """Take a batch."""
        came_ns = time.time_ns()
        self._history.append((came_ns, self._seen + len(records)))
        for record in records:
            if record[0]:
                self._read_stamp(record)
        self._seen += len(records)
        self._throttle.wait(len(records), self._rate((came_ns - self._start_ns) / 1e9))

    def on_barrier(self, barrier: CheckpointBarrier) -> BarrierNote:
        """Return the note of a barrier, which comes after all records that were emitted before it."""
        most, self._most = self._most, 0
        sent_ns, came_ns = barrier.checkpoint, time.time_ns()
        return BarrierNote(self._name, self._start_ns, sent_ns, came_ns, self._seen, most, self._full_per_s)

    def _rate(self, second: float) -> float | None:
        phase = self._schedule.at(second)
        if self._pause_s:
            return BATCH / self._pause_s if phase.neighbour else None
        return phase.consumer * self._full_per_s if phase.consumer < 1 and self._full_per_s else None

    def _read_stamp(self, record: bytes) -> None:
        _, self._start_ns, sent_ns, before, self._full_per_s = _STAMP.unpack_from(record)
        history = self._history
        while len(history) > 1 and history[1][0] <= sent_ns:
            history.popleft()
        self._most = max(self._most, before - history[0][1])


class ConsumeOperator(Operator):
    """Passes records to a `PhaseConsumer` and emits its note of each barrier; barriers end here."""

    def __init__(self, consumer: PhaseConsumer) -> None:
        self._consumer = consumer

    def process(self, values: Values, times: Times) -> None:  # noqa: ARG002 - an Operator
        """Pass a batch on."""
        with self.user_code():
            self._consumer(values)

    def event(self, event: Event) -> None:
        """Emit the note of a barrier."""
        if isinstance(event, CheckpointBarrier):
            with self.user_code():
                note = self._consumer.on_barrier(event)
            self.out.emit([note])
