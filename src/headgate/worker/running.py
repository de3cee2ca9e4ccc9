"""A task that was set up, and what its reports are made from (B2).

Made by `setup`; asked by the worker, on the thread that serves the control connection, and at its end by the task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from headgate.worker.messages import ChannelReport, KeyReport, LatencyReport, SubtaskReport
from headgate.worker.processor import UNKNOWN_NS, ThreadClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.graph.plan import Vertex
    from headgate.input import InputChannel, InputGate, RemoteChannel
    from headgate.meters import TaskTimer
    from headgate.task.task import Task
    from headgate.worker.moments import TaskMeter

__all__ = ["Feed", "RunningTask"]

_MAX_CHANNELS: Final = 256  # of one task that a report speaks of
_MAX_KEYS: Final = 20  # likewise of an exchange
_MAX_KEY: Final = 80  # characters
_MAX_SOURCES: Final = 64
_MAX_COUNTERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Feed:
    """One channel of a task's input, and where it comes from: another worker (`remote`) or this one (None).

    >>> Feed.__match_args__
    ('exchange', 'producer', 'channel', 'remote')
    """

    exchange: int
    producer: int  # subtask
    channel: InputChannel
    remote: RemoteChannel | None

    def report(self, bytes_in: int) -> ChannelReport:
        """The channel at this moment; `bytes_in` were read from it."""
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
class RunningTask:
    """A task, and what its report is made from.

    >>> RunningTask.__match_args__
    ('vertex', 'subtask', 'task', 'timer', 'gates', 'feeds', 'outputs', 'counters', 'meter')
    """

    vertex: Vertex
    subtask: int
    task: Task
    timer: TaskTimer
    gates: tuple[InputGate, ...]
    feeds: tuple[Feed, ...]  # as its reader numbers them
    outputs: tuple[int, ...]  # the exchanges that its writers write to
    counters: dict[str, int]
    meter: TaskMeter
    _clock: ThreadClock | None = field(init=False, default=None)

    def began(self) -> None:
        """It runs; called on its thread."""
        self._clock = ThreadClock.of_this_thread()

    def ended(self, now_ms: int) -> None:
        """It is over; called on its thread. May be repeated."""
        self.meter.end(now_ms)
        if self._clock is not None:
            self._clock.close()

    def report(self) -> SubtaskReport:
        """What the task has done since its start, and its states since the report before (B2)."""
        task, meter, clock = self.task, self.meter, self._clock
        spent = meter.spent()
        sizes = [] if task.reader is None else task.reader.bytes_in[:]  # once: the task goes on reading
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
            buffers_in=0 if task.reader is None else task.reader.buffers_in.value,
            buffers_out=sum(one.buffers_out for one in partitions),
            busy_ns=spent.busy_ns,
            idle_ns=spent.idle_ns,
            back_pressured_ns=spent.back_pressured_ns,
            watermark_ms=min(watermarks, default=None),
            in_pool_used=in_pool[0],
            in_pool_size=in_pool[1],
            out_pool_used=out_pool[0],
            out_pool_size=out_pool[1],
            in_queued=queued,
            backlog=backlog,
            channels=self._channels(sizes),
            counters=dict(islice(dict(self.counters).items(), _MAX_COUNTERS)),  # the task adds to them meanwhile
            states=meter.drain(),
            states_at_ms=meter.ended_ms,
            cpu_ns=UNKNOWN_NS if clock is None else clock.cpu_ns(),
            run_queue_ns=UNKNOWN_NS if clock is None else clock.run_queue_ns(),
            latencies=self._latencies(),
            hot_keys=self._hot_keys(),
        )

    def _channels(self, sizes: Sequence[int]) -> list[ChannelReport]:
        return [feed.report(size) for feed, size in islice(zip(self.feeds, sizes, strict=True), _MAX_CHANNELS)]

    def _latencies(self) -> list[LatencyReport]:
        found = self.task.loop.latencies()[:_MAX_SOURCES]
        return [LatencyReport(one.source, one.count, one.p50_us, one.p99_us, one.max_us) for one in found]

    def _hot_keys(self) -> list[KeyReport]:
        return [
            KeyReport(exchange, one.key[:_MAX_KEY], one.share_permille)
            for exchange, writer in zip(self.outputs, self.task.writers, strict=True)
            for one in writer.hot_keys()[:_MAX_KEYS]
        ]
