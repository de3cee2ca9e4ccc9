"""The plan of a simulation: its workers, tasks and channels, and all sizes, mostly at their limits.

It is drawn once from the seed, and does not change afterwards.

Invariant: a plan can run: a worker has at least the memory that its partitions and gates require.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headgate.buffer import Limits
from headgate.buffer.budget import GateDemand, PartitionDemand
from headgate.config import Duration, FlowControl, NetworkSettings
from headgate.config.table import BackoffSettings, RecordSettings
from headgate.testing.simstream import Cut, Weather
from headgate.wire.flow import MAX_UNREAD_EVENT_BYTES

if TYPE_CHECKING:
    import random

__all__ = ["ProducerPlan", "SimPlan", "draw_plan"]

_MS = 1_000_000
_SIZES = (16, 16, 17, 24, 32, 33, 64, 100, 256, 1024, 4096, 32 * 1024)
_MOST_WRITES = 150
_TINY = 7  # a stream with a capacity of so many bytes gets few short writes: it is slow as it is
_FRAME_BYTES = 40  # of frames per buffer, in both directions
_HANDSHAKE_BYTES = 200  # of both sides, at most
_LONG_IDLE_MS = 60_000
_GOOD_PEERS = 8  # most connections of workers at once: four workers, two connection groups
_TYPICAL_BUFFERS = 100  # per simulation: more would make it slow


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producing task."""

    worker: int
    lengths: tuple[tuple[int, ...], ...]  # of the records, by subpartition; broadcast: the same for all
    broadcast: bool
    through_writer: bool  # by a `RecordWriter`, in batches; otherwise record by record
    fed_by: int | None = None  # the consumer that is the reading half of the same task

    @property
    def records(self) -> int:
        """The number of records that it writes."""
        return sum(map(len, self.lengths[:1] if self.broadcast else self.lengths))


@dataclass(frozen=True, slots=True)
class SimPlan:
    """The sizes and limits of one simulation."""

    workers: int
    segment_size: int
    spare_segments: int  # beyond what is required, per worker
    limits: Limits
    checksum: bool
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[int, ...]  # the worker of each
    channels: int  # between one producer and one consumer
    union: bool  # each consumer reads two gates as one
    events: float  # probability per record that a producer sends one
    flushes: float
    task_events: float  # probability per record that a consumer sends one to its producer
    max_record_bytes: int
    spill_bytes: int
    idle_timeout_ms: int
    handshake_timeout_ms: int
    connect_timeout_ms: int
    backoff_ms: tuple[int, int]
    flush_every_ns: int
    weather: Weather = field(repr=False)
    high_mark: int = 16  # in segments
    low_mark: int = 1
    max_event_bytes: int = MAX_UNREAD_EVENT_BYTES  # of one channel, unread
    max_half_open: int = 64  # connections of one worker that are not authenticated yet
    late_latencies: int = 0  # longest delay before a consumer connects its channels, in latencies

    @property
    def relayed(self) -> bool:
        """True if there are two exchanges, one behind the other."""
        return any(one.fed_by is not None for one in self.producers)

    def producers_of(self, consumer: int) -> list[int]:
        """Return the producers that a consumer reads: all of its exchange."""
        behind = self.relayed and consumer >= self._relays
        return [number for number, one in enumerate(self.producers) if (one.fed_by is not None) is behind]

    def consumers_of(self, producer: int) -> range:
        """Return the consumers that read a producer."""
        if not self.relayed:
            return range(len(self.consumers))
        behind = self.producers[producer].fed_by is not None
        return range(self._relays, len(self.consumers)) if behind else range(self._relays)

    def lane(self, producer: int) -> int:
        """Return the connection group of a producer's channels: the number of exchanges before it."""
        return 0 if self.producers[producer].fed_by is None else 1

    def subpartitions(self, producer: int) -> int:
        """Return the number of subpartitions of a producer."""
        return len(self.consumers_of(producer)) * self.channels

    @property
    def _relays(self) -> int:
        return sum(one.fed_by is not None for one in self.producers)

    @property
    def credited(self) -> bool:
        """True with credit-based flow control."""
        return self.limits.credit_based

    @property
    def last_try_ms(self) -> int:
        """The time of a consumer's last request for a missing partition, if the first one is at 0."""
        delay_ms, longest_ms = self.backoff_ms
        total_ms = delay_ms
        while delay_ms < longest_ms:
            delay_ms = min(delay_ms * 2, longest_ms)
            total_ms += delay_ms
        return total_ms

    def short_ns(self, amount: float) -> int:
        """Return a time below every time limit; `amount`, from 0 to 1, scales it."""
        limit_ms = min(self.idle_timeout_ms, self.handshake_timeout_ms, self.connect_timeout_ms)
        return int(amount * limit_ms * _MS / 8)

    def long_ns(self, amount: float) -> int:
        """Return a time above every time limit."""
        limit_ms = max(self.idle_timeout_ms, self.handshake_timeout_ms, self.connect_timeout_ms)
        return int((2 + amount) * limit_ms * _MS)

    def gate_sizes(self, consumer: int) -> list[int]:
        """Return the number of channels of each gate of a consumer: one gate, or two that it reads as one."""
        channels = len(self.producers_of(consumer)) * self.channels
        return [channels // 2, channels - channels // 2] if self.union and channels > 1 else [channels]

    def record_settings(self) -> RecordSettings:
        """Return the settings of every worker's records."""
        return RecordSettings(max_size=self.max_record_bytes, spill_threshold=self.spill_bytes)

    def network_settings(self) -> NetworkSettings:
        """Return the settings of every worker's network, without its address."""
        limits = self.limits
        return NetworkSettings(
            buffers_per_channel=limits.buffers_per_channel,
            floating_buffers_per_gate=limits.floating_buffers_per_gate,
            max_buffers_per_channel=limits.max_buffers_per_channel,
            max_overdraft_buffers=limits.max_overdraft_buffers,
            flow_control=FlowControl.CREDIT if self.credited else FlowControl.TCP,
            checksum=self.checksum,
            idle_timeout=_duration(self.idle_timeout_ms),
            handshake_timeout=_duration(self.handshake_timeout_ms),
            connect_timeout=_duration(self.connect_timeout_ms),
            max_half_open=self.max_half_open,
            write_high_mark=self.high_mark,
            write_low_mark=self.low_mark,
            partition_request_backoff=BackoffSettings(
                initial=_duration(self.backoff_ms[0]), max=_duration(self.backoff_ms[1])
            ),
        )

    def segments(self, worker: int) -> int:
        """Return the number of segments of a worker: what its tasks require, and the spare ones."""
        limits, count = self.limits, self.spare_segments
        for number, producer in enumerate(self.producers):
            if producer.worker == worker:
                count += PartitionDemand(self.subpartitions(number)).required(limits)
        for number, place in enumerate(self.consumers):
            if place != worker:
                continue
            there = [self.producers[one].worker != worker for one in self.producers_of(number)]
            remote = [one for one in there for _ in range(self.channels)]  # by channel
            for size in self.gate_sizes(number):
                mine, remote = remote[:size], remote[size:]
                count += GateDemand(sum(mine), size - sum(mine)).required(limits)
        return max(1, count)


def _duration(milliseconds: int) -> Duration:
    return Duration(milliseconds * _MS)


def draw_plan(chance: random.Random) -> SimPlan:
    """Draw a plan, with most sizes at their limits."""
    workers = chance.choice((2, 2, 2, 3, 3, 4))
    segment_size = chance.choice(_SIZES)
    channels = chance.choice((1, 1, 2, 3, 8))
    most_tasks = 2 if channels > 2 else 3
    producers = chance.randint(1, most_tasks)
    consumers = tuple(chance.randrange(workers) for _ in range(chance.randint(1, most_tasks)))
    limits = Limits(
        buffers_per_channel=chance.choice((1, 1, 2, 3, 4)),
        floating_buffers_per_gate=chance.choice((0, 1, 2, 8)),
        max_buffers_per_channel=chance.choice((1, 2, 10)),
        max_overdraft_buffers=chance.choice((0, 1, 5)),
        credit_based=chance.random() < 0.8,
    )
    max_record = 16 * max(64, 6 * segment_size)  # 16: a batch of so many must be below the limit
    relayed = chance.random() < (0.15 if limits.credit_based else 0.4)
    sinks = tuple(chance.randrange(workers) for _ in range(chance.randint(1, 2))) if relayed else ()
    # Without credit, two workers that relay to each other could block each other if all buffers are full.
    crossed = relayed and not limits.credit_based and chance.random() < 0.7
    if crossed:
        producers, consumers, sinks = 2, (0, 1), (0, 1)
    most_buffers = 4 * _TYPICAL_BUFFERS if crossed else _TYPICAL_BUFFERS
    share = max(1, most_buffers // ((producers + 2 * len(sinks)) * len(consumers) * channels))
    skewed = chance.random() < 0.25
    first_backoff_ms = chance.choice((1, 10, 100))
    drawn = tuple(
        _draw_producer(chance, workers, len(consumers) * channels, share, segment_size, skewed=skewed)
        for _ in range(producers)
    )
    if crossed:
        drawn = tuple(replace(one, worker=number) for number, one in enumerate(drawn))
    drawn += tuple(
        replace(
            _draw_producer(chance, workers, len(sinks) * channels, share, segment_size, skewed=skewed),
            worker=worker,
            through_writer=False,
            fed_by=number,
        )
        for number, worker in enumerate(consumers if relayed else ())
    )
    sizes = [length + 5 for one in drawn for lengths in one.lengths for length in lengths]
    total_bytes = sum(sizes) + _FRAME_BYTES * (sum(sizes) // segment_size + len(sizes))
    weather = _draw_weather(chance, segment_size, total_bytes)
    plan = SimPlan(
        workers=workers,
        segment_size=segment_size,
        spare_segments=chance.choice((0, 0, 1, 3, 20)),
        limits=limits,
        checksum=chance.random() < 0.3,
        producers=drawn,
        consumers=consumers + sinks,
        channels=channels,
        union=chance.random() < 0.35,
        events=chance.choice((0.0, 0.05, 0.3)),
        flushes=chance.choice((0.0, 0.1, 0.5)),
        task_events=chance.choice((0.0, 0.0, 0.2)),
        max_record_bytes=max_record,
        spill_bytes=chance.choice((3 * segment_size, 1 << 20)),
        idle_timeout_ms=chance.choice((500, 5_000, 60_000)),
        handshake_timeout_ms=max(chance.choice((500, 5_000)), 4 * _handshake_ms(weather)),
        connect_timeout_ms=chance.choice((1_000, 30_000)),
        backoff_ms=(first_backoff_ms, first_backoff_ms * chance.choice((1, 5, 100))),
        flush_every_ns=chance.choice((1, 10, 100)) * _MS,
        weather=weather,
        late_latencies=chance.choice((0, 0, 20)),
    )
    if chance.random() < 0.1 and not relayed:
        plan = _brief(plan, chance)
    high_mark = chance.choice((1, 2, 16))
    # A channel with more unread events than the limit stops the reading of its connection. So no task that relays has a
    # low limit: it would block another task. And the peer drops a connection that accepts nothing for the idle
    # time-out, so that is longer than any task is stuck.
    event_bytes = MAX_UNREAD_EVENT_BYTES if relayed else chance.choice((300, 1000, MAX_UNREAD_EVENT_BYTES))
    return replace(
        plan,
        high_mark=high_mark,
        low_mark=chance.choice((1, high_mark)),
        max_event_bytes=event_bytes,
        idle_timeout_ms=plan.idle_timeout_ms if event_bytes == MAX_UNREAD_EVENT_BYTES else _LONG_IDLE_MS,
        max_half_open=chance.choice((_GOOD_PEERS, 2 * _GOOD_PEERS)),
    )


def _brief(plan: SimPlan, chance: random.Random) -> SimPlan:
    """Return a plan in which two workers read very little from each other, many times: connections open and close."""
    consumers = chance.choice((6, 12, 30))
    lengths = tuple((1,) * chance.choice((0, 0, 1)) for _ in range(consumers))
    producer = ProducerPlan(0, lengths, broadcast=False, through_writer=False)
    return replace(
        plan,
        workers=2,
        producers=(producer, replace(producer, worker=1)),
        consumers=(0, 1) * (consumers // 2),
        channels=1,
        union=False,
        weather=Weather(latency_ns=(0, 2 * _MS), loop_delay_ns=chance.choice((0, 50_000))),
        late_latencies=3 * consumers,  # some connections open while others end
    )


def _draw_producer(
    chance: random.Random, workers: int, subpartitions: int, share: int, segment_size: int, *, skewed: bool
) -> ProducerPlan:
    """Draw a producer whose records fill about `share` buffers of each subpartition; skewed: most of one."""
    broadcast = chance.random() < 0.15
    favourite = chance.randrange(subpartitions)
    lengths = []
    for subpartition in range(1 if broadcast else subpartitions):
        most = share if not skewed else share * 2 if subpartition == favourite else max(1, share // 8)
        budget_bytes = chance.randint(0, most) * segment_size
        drawn: list[int] = []
        while budget_bytes > 0 and len(drawn) < 60:
            drawn.append(_draw_length(chance, segment_size))
            budget_bytes -= drawn[-1] + 5
        lengths.append(tuple(drawn))
    if broadcast:
        lengths *= subpartitions
    through_writer = not broadcast and chance.random() < 0.3
    return ProducerPlan(chance.randrange(workers), tuple(lengths), broadcast, through_writer)


def _draw_length(chance: random.Random, segment_size: int) -> int:
    """Draw the bytes of one record: none, a few, about a buffer, several buffers."""
    kind = chance.random()
    if kind < 0.15:
        return 0
    if kind < 0.5:
        return chance.randint(1, max(1, segment_size // 4))
    if kind < 0.85:
        return max(0, segment_size - 5 + chance.randint(-2, 2))  # 5: its length and its tag
    return chance.randint(segment_size, 4 * segment_size)


def _draw_weather(chance: random.Random, segment_size: int, total_bytes: int) -> Weather:
    slowest_ns = chance.choice((1_000, 50_000, 2 * _MS))
    capacity_bytes = chance.choice((1, 7, 64, segment_size, 4 * segment_size, 64 * 1024))
    return Weather(
        latency_ns=(chance.randint(0, slowest_ns), slowest_ns),
        loop_delay_ns=chance.choice((0, 5_000, 500_000)),
        capacity_bytes=max(capacity_bytes, total_bytes // _MOST_WRITES),  # or the simulation would take too long
        cut=chance.choice((Cut.WHOLE, Cut.WHOLE, Cut.RANDOM, Cut.TINY, Cut.BYTES)),
        short_writes=chance.choice((0.0, 0.0, 0.2, 0.8)) if capacity_bytes > _TINY else chance.choice((0.0, 0.2)),
    )


def _handshake_ms(weather: Weather) -> int:
    """Return the longest time of a handshake: each write takes a latency, and the answer another."""
    writes = 1 + _HANDSHAKE_BYTES // weather.capacity_bytes
    return (writes * 3 * weather.latency_ns[1] + _HANDSHAKE_BYTES * weather.loop_delay_ns) // _MS
