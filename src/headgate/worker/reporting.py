"""What a worker reports to the coordinator, and when (B2).

`DeployedTask` makes the report of one task, `reports_of` those of the worker, and `ReportTimer` calls both in time. All
of it runs on the control thread, except `DeployedTask.began` and `ended` (the task's thread).

Invariants: each report fits into one control message, however many tasks and channels there are; a message that takes
long to handle delays a measurement by no more than that message.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from headgate.clock import wall_ms
from headgate.control.messages import TaskState
from headgate.control.reports import (
    ChannelReport,
    ConnectionReport,
    HotKey,
    LatencyProgress,
    OperatorMeters,
    ProcessMeters,
    SubtaskReport,
    WorkerReport,
)
from headgate.worker.task_meter import UNKNOWN_NS, ThreadClock, process_cpu_ns, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headgate.graph.plan import Vertex
    from headgate.input import InputChannel, InputGate, RemoteChannel
    from headgate.meters import TaskTimer
    from headgate.net import ConnectionStatistics
    from headgate.task.runtime.task import Task
    from headgate.worker.environment import Environment
    from headgate.worker.task_meter import TaskMeter

__all__ = ["REPORT_S", "ChannelMeter", "DeployedTask", "ReportTimer", "connection_reports", "reports_of"]

_MAX_CHANNELS: Final = 256  # in the report of one task
_MAX_KEYS: Final = 20  # of one exchange
_MAX_KEY: Final = 80  # characters
_MAX_SOURCES: Final = 64
_MAX_COUNTERS: Final = 1000
_MAX_OPERATORS: Final = 1000
_MAX_TAGS: Final = 100  # side outputs of all its operators
_MAX_TAG: Final = 200  # characters


@dataclass(frozen=True, slots=True)
class ChannelMeter:
    """One input channel of a task, as its reports show it; `remote` is None if the producer is in this worker.

    >>> ChannelMeter.__match_args__
    ('exchange', 'producer', 'channel', 'remote')
    """

    exchange: int
    producer: int  # subtask
    channel: InputChannel
    remote: RemoteChannel | None

    def report(self, bytes_in: int) -> ChannelReport:
        """Return the channel's report; `bytes_in` were read from it."""
        remote, polled = self.remote, self.channel.polled
        if remote is not None:
            now = remote.statistics()
            return ChannelReport(
                exchange=self.exchange,
                producer=self.producer,
                local=False,
                backlog=now.backlog,
                queued=now.queued,
                exclusive=now.ready - now.floating,
                floating=now.floating,
                credit=max(0, now.ready - now.unannounced) if remote.credited else 0,
                bytes_in=bytes_in,
            )
        backlog, queued = (0, 0) if polled is None else (polled.backlog, polled.readable)
        return ChannelReport(self.exchange, self.producer, True, backlog, queued, 0, 0, 0, bytes_in)


@dataclass(slots=True, eq=False)
class DeployedTask:
    """A task that was set up, and what its report is made from.

    >>> DeployedTask.__match_args__
    ('vertex', 'subtask', 'task', 'timer', 'gates', 'channels', 'outputs', 'counters', 'meter')
    """

    vertex: Vertex
    subtask: int
    task: Task
    timer: TaskTimer
    gates: tuple[InputGate, ...]
    channels: tuple[ChannelMeter, ...]  # in the order of its reader
    outputs: tuple[int, ...]  # the exchange of each writer
    counters: dict[str, int]
    meter: TaskMeter
    last_state: TaskState = field(init=False, default=TaskState.FINISHED)
    """The state in which it ends; changed when it fails, before other tasks are notified."""
    _clock: ThreadClock | None = field(init=False, default=None)

    def began(self) -> None:
        """Begin to measure its thread; on that thread."""
        self._clock = ThreadClock.of_this_thread()

    def ended(self, now_ms: int) -> None:
        """Freeze its figures; on its thread, last. May be repeated."""
        self.meter.end(now_ms)
        if self._clock is not None:
            self._clock.close()

    def report(self) -> SubtaskReport:
        """Return the task's counters since its start, and its intervals since the report before."""
        task, meter, clock = self.task, self.meter, self._clock
        spent = meter.spent()
        sizes = [] if task.reader is None else task.reader.bytes_in[:]  # a copy: the task continues to read
        partitions = [writer.partition for writer in task.writers]
        watermarks = [link.watermark_ms for link in task.chain.links if link.watermark_ms is not None]
        queued, backlog = meter.queues()
        in_pool, out_pool = meter.in_pool(), meter.out_pool()
        return SubtaskReport(
            vertex=self.vertex.id,
            subtask=self.subtask,
            records_in=task.loop.records_in,
            records_out=sum(writer.records_out.value for writer in task.writers),
            bytes_in=sum(sizes),
            bytes_out=sum(one.bytes_out for one in partitions),
            busy_ns=spent.busy_ns,
            idle_ns=spent.idle_ns,
            back_pressured_ns=spent.back_pressured_ns,
            waiting_ns=spent.waiting_ns,
            watermark_ms=min(watermarks, default=None),
            in_pool_used=in_pool[0],
            in_pool_size=in_pool[1],
            out_pool_used=out_pool[0],
            out_pool_size=out_pool[1],
            in_queued=queued,
            backlog=backlog,
            channels=self._channels(sizes),
            counters=dict(islice(dict(self.counters).items(), _MAX_COUNTERS)),  # a copy: the task adds to them
            intervals=meter.drain(),
            intervals_end_ms=meter.ended_ms,
            cpu_ns=UNKNOWN_NS if clock is None else clock.cpu_ns(),
            run_queue_ns=UNKNOWN_NS if clock is None else clock.run_queue_ns(),
            latencies=self._latencies(),
            hot_keys=self._hot_keys(),
            operators=self._operators(),
        )

    def _operators(self) -> tuple[OperatorMeters, ...]:
        found, left = [], _MAX_TAGS
        for one in self.task.chain.counts(self.task.loop.records_in)[:_MAX_OPERATORS]:
            sides = {tag[:_MAX_TAG]: records for tag, records in islice(one.side_outputs.items(), left)}
            left -= len(sides)
            found.append(OperatorMeters(records_in=one.records_in, records_out=one.records_out, side_outputs=sides))
        return tuple(found)

    def _channels(self, sizes: Sequence[int]) -> list[ChannelReport]:
        return [channel.report(size) for channel, size in islice(zip(self.channels, sizes, strict=True), _MAX_CHANNELS)]

    def _latencies(self) -> tuple[LatencyProgress, ...]:
        return tuple(
            LatencyProgress(
                source=one.source,
                count=one.count,
                p50_ms=one.p50_us / 1000,
                p99_ms=one.p99_us / 1000,
                max_ms=one.max_us / 1000,
            )
            for one in self.task.loop.latencies()[:_MAX_SOURCES]
        )

    def _hot_keys(self) -> tuple[HotKey, ...]:
        return tuple(
            HotKey(exchange=exchange, key=one.key[:_MAX_KEY], share=one.share_permille / 1000)
            for exchange, writer in zip(self.outputs, self.task.writers, strict=True)
            for one in writer.hot_keys()[:_MAX_KEYS]
        )


_MAX_BYTES: Final = 512 * 1024  # of one message, as `_estimate_bytes` counts
_MAX_CONNECTIONS: Final = 1024


def reports_of(environment: Environment, subtasks: Sequence[SubtaskReport], at_ms: int) -> list[WorkerReport]:
    """Return the reports of a worker: one, or several with the same figures of the worker and a part of its tasks each.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     report, = reports_of(environment, [], at_ms=1000)
    >>> report.process.segments_total, report.process.segments_free, report.connections
    (32, 32, [])
    """
    memory = environment.memory.statistics()
    process = ProcessMeters(memory_bytes=resident_bytes(), segments_total=memory.total, segments_free=memory.free)
    cpu_ns = process_cpu_ns()
    connections = connection_reports(environment.connections())[:_MAX_CONNECTIONS]
    return [
        WorkerReport(at_ms=at_ms, subtasks=some, process=process, cpu_ns=cpu_ns, connections=connections)
        for some in _split(subtasks)
    ]


def connection_reports(connections: Iterable[ConnectionStatistics]) -> list[ConnectionReport]:
    """Return one report per peer that has proved itself.

    The connections to one worker are added up: there may be several in tcp mode, and a new one while one closes.

    >>> connection_reports([])
    []
    """
    by_peer: dict[int, list[ConnectionStatistics]] = {}
    for one in connections:
        if one.worker >= 0:
            by_peer.setdefault(one.worker, []).append(one)
    return [
        ConnectionReport(
            peer=peer,
            bytes_out=sum(one.written_bytes for one in some),
            waiting_bytes=sum(one.waiting_bytes for one in some),
            blocked_ns=max(one.blocked_ns for one in some),
            round_trip_ms=some[-1].path.round_trip_us / 1000 if some[-1].path.round_trip_us >= 0 else None,
            unsent_bytes=sum(known) if (known := [n for one in some if (n := one.path.unsent_bytes) >= 0]) else None,
        )
        for peer, some in sorted(by_peer.items())
    ]


def _split(subtasks: Sequence[SubtaskReport]) -> Iterator[list[SubtaskReport]]:
    some: list[SubtaskReport] = []
    total = 0
    for one in subtasks:
        size = _estimate_bytes(one)
        if some and total + size > _MAX_BYTES:
            yield some
            some, total = [], 0
        some.append(one)
        total += size
    yield some


def _estimate_bytes(one: SubtaskReport) -> int:
    """Return at least as many bytes as the encoded report takes."""
    keys = sum(len(key.key) * 4 + 50 for key in one.hot_keys)
    counters = sum(len(name) * 4 + 20 for name in one.counters)
    tags = sum(len(tag) * 4 + 20 for operator in one.operators for tag in operator.side_outputs)
    arrays, maps = len(one.channels) + len(one.intervals), len(one.latencies) + len(one.operators)
    return 1000 + 50 * arrays + 100 * maps + keys + counters + tags


REPORT_S: Final = 1.0
"""The time between two reports."""

_IDLE_S: Final = 10.0  # to wait for a message before tasks run


class ReportTimer:
    """Calls `measure` at the end of each interval and sends `reports` once a second; nothing before `begin`.

    The control thread calls `run_due` before it waits for a message, and waits no longer than `wait_s`. If it is late,
    it measures once: the meters spread the figures over the intervals that were missed (`task_meter`).

    >>> now = [100.0]
    >>> timer = ReportTimer(print, lambda: print("report"), 100, now_s=lambda: now[0], now_ms=int)
    >>> timer.begin(); timer.wait_s()
    0.1
    >>> now[0] += 1.0; timer.run_due()
    report
    """

    __slots__ = ("_interval", "_length_ms", "_measure", "_now_ms", "_now_s", "_report", "_report_at_s")

    def __init__(
        self,
        measure: Callable[[], object],
        report: Callable[[], object],
        length_ms: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._measure = measure
        self._report = report
        self._length_ms = length_ms  # of an interval; 0: nothing is measured between reports
        self._now_s = now_s
        self._now_ms = now_ms
        self._interval = 0  # at the last measurement
        self._report_at_s: float | None = None  # None before `begin`

    def begin(self) -> None:
        """Start: tasks run."""
        self._report_at_s = self._now_s() + REPORT_S
        if self._length_ms:
            self._interval = self._now_ms() // self._length_ms

    def wait_s(self) -> float:
        """Return how long the caller may wait for a message."""
        if self._report_at_s is None:
            return _IDLE_S
        left_s = self._report_at_s - self._now_s()
        if self._length_ms:
            now_ms = self._now_ms()
            ended = now_ms // self._length_ms != self._interval
            left_s = min(left_s, 0.0 if ended else (self._length_ms - now_ms % self._length_ms) / 1000)
        return max(0.0, left_s)

    def run_due(self) -> None:
        """Measure and report, if that is due."""
        if self._report_at_s is None:
            return
        now_s = self._now_s()
        interval = self._now_ms() // self._length_ms if self._length_ms else 0
        if now_s >= self._report_at_s:
            self._interval = interval  # reports are made of a new measurement
            # A late report does not make the next one early: two in a row contain less than one.
            self._report_at_s = max(self._report_at_s, now_s - REPORT_S / 2) + REPORT_S
            self._report()
        elif interval != self._interval:
            self._interval = interval
            self._measure()
