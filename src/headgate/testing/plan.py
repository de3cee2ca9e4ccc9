"""What one seed simulates: how many workers, tasks and channels, and every size, drawn at the edges.

Drawn once at the start of a simulation from the seed's concern `plan`; nothing here changes afterwards.

Invariant: what is drawn can run: memory is never below what the partitions and gates of a worker require.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headgate.buffer import Limits
from headgate.config import Duration, FlowControl, NetworkSettings
from headgate.config.table import BackoffSettings
from headgate.testing.simstream import Cut, Weather

if TYPE_CHECKING:
    import random

__all__ = ["Plan", "ProducerPlan", "draw_plan"]

_MS = 1_000_000
_SIZES = (16, 16, 17, 24, 32, 33, 64, 100, 256, 1024, 4096, 32 * 1024)
_MOST_WRITES = 150
_TINY = 7  # bytes of a stream that is slow enough as it is
_FRAME_BYTES = 40  # around a buffer, there and back
_HANDSHAKE_BYTES = 200  # said by both sides, at most
_TYPICAL_BUFFERS = 100  # that one simulation moves: more would make it slow


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producing task.

    >>> ProducerPlan(worker=0, lengths=((0, 5),), broadcast=False, through_writer=False).records
    2
    """

    worker: int
    lengths: tuple[tuple[int, ...], ...]  # of the records, by subpartition; broadcast: of all of them alike
    broadcast: bool
    through_writer: bool  # by a `RecordWriter`, in batches; else record by record
    fed_by: int | None = None  # the consumer whose records it passes on: one task reads and writes

    @property
    def records(self) -> int:
        """How many it writes."""
        return sum(map(len, self.lengths[:1] if self.broadcast else self.lengths))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a seed decides before anything moves.

    >>> from headgate.testing.simulator import fork
    >>> plan = draw_plan(fork(7, "plan"))
    >>> 2 <= plan.workers <= 4, plan.segment_size >= 16
    (True, True)
    """

    workers: int
    segment_size: int
    spare_segments: int  # past what is required, per worker
    limits: Limits
    checksum: bool
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[int, ...]  # the worker of each
    channels: int  # between one producer and one consumer
    union: bool  # each consumer reads two gates as one
    events: float  # how often a producer sends one, per record
    flushes: float
    task_events: float  # how often a consumer sends one back, per record
    max_record_bytes: int
    spill_bytes: int
    idle_timeout_ms: int
    handshake_timeout_ms: int
    connect_timeout_ms: int
    backoff_ms: tuple[int, int]
    flush_every_ns: int
    weather: Weather = field(repr=False)
    late_latencies: int = 0  # most that a consumer learns late of its producers, in times that bytes take

    @property
    def relayed(self) -> bool:
        """Whether there are two exchanges, one behind the other."""
        return any(one.fed_by is not None for one in self.producers)

    def producers_of(self, consumer: int) -> list[int]:
        """Whom a consumer reads: everybody in its exchange."""
        behind = self.relayed and consumer >= self._relays
        return [number for number, one in enumerate(self.producers) if (one.fed_by is not None) is behind]

    def consumers_of(self, producer: int) -> range:
        """Who reads a producer."""
        if not self.relayed:
            return range(len(self.consumers))
        behind = self.producers[producer].fed_by is not None
        return range(self._relays, len(self.consumers)) if behind else range(self._relays)

    def lane(self, producer: int) -> int:
        """Of what a producer writes: how many exchanges it is behind."""
        return 0 if self.producers[producer].fed_by is None else 1

    def subpartitions(self, producer: int) -> int:
        """Of a producer's partition."""
        return len(self.consumers_of(producer)) * self.channels

    @property
    def _relays(self) -> int:
        return sum(one.fed_by is not None for one in self.producers)

    @property
    def credited(self) -> bool:
        """Whether flow is controlled by credit."""
        return self.limits.credit_based

    @property
    def last_try_ms(self) -> int:
        """When a consumer asks for a missing partition for the last time, if it first asks at 0."""
        delay_ms, longest_ms = self.backoff_ms
        total_ms = delay_ms
        while delay_ms < longest_ms:
            delay_ms = min(delay_ms * 2, longest_ms)
            total_ms += delay_ms
        return total_ms

    def short_ns(self, amount: float) -> int:
        """A while, the longer the larger `amount` (0 to 1), that no time limit notices."""
        limit_ms = min(self.idle_timeout_ms, self.handshake_timeout_ms, self.connect_timeout_ms)
        return int(amount * limit_ms * _MS / 8)

    def long_ns(self, amount: float) -> int:
        """A while that every time limit notices."""
        limit_ms = max(self.idle_timeout_ms, self.handshake_timeout_ms, self.connect_timeout_ms)
        return int((2 + amount) * limit_ms * _MS)

    def settings(self) -> NetworkSettings:
        """The settings of every worker's network, but for its address."""
        return NetworkSettings(
            flow_control=FlowControl.CREDIT if self.credited else FlowControl.TCP,
            checksum=self.checksum,
            idle_timeout=_duration(self.idle_timeout_ms),
            handshake_timeout=_duration(self.handshake_timeout_ms),
            connect_timeout=_duration(self.connect_timeout_ms),
            partition_request_backoff=BackoffSettings(
                initial=_duration(self.backoff_ms[0]), max=_duration(self.backoff_ms[1])
            ),
        )

    def segments(self, worker: int) -> int:
        """How many segments a worker has."""
        limits, required = self.limits, self.spare_segments
        for number, producer in enumerate(self.producers):
            if producer.worker == worker:
                required += limits.partition_pool(self.subpartitions(number), bounded=True).required
        for number, place in enumerate(self.consumers):
            if place == worker:
                sources = [self.producers[one].worker for one in self.producers_of(number)]
                remote = sum(source != worker for source in sources) * self.channels
                required += limits.exclusive(remote) + limits.gate_pool(remote).required
        return max(1, required)


def _duration(milliseconds: int) -> Duration:
    return Duration(milliseconds * _MS)


def draw_plan(chance: random.Random) -> Plan:
    """A plan, most of it at the edges.

    >>> from headgate.testing.simulator import fork
    >>> draw_plan(fork(7, "plan")) == draw_plan(fork(7, "plan"))
    True
    """
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
    max_record = 16 * max(64, 6 * segment_size)  # 16: a batch of them must not be over the limit
    relayed = chance.random() < (0.15 if limits.credit_based else 0.4)
    sinks = tuple(chance.randrange(workers) for _ in range(chance.randint(1, 2))) if relayed else ()
    # Without credit two workers that relay to each other could stop each other, if all is full.
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
    plan = Plan(
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
    return _brief(plan, chance) if chance.random() < 0.1 and not relayed else plan


def _brief(plan: Plan, chance: random.Random) -> Plan:
    """The same, but two workers read next to nothing from each other, again and again: connections come and go."""
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
        late_latencies=3 * consumers,  # some of the connections are still being made when others end
    )


def _draw_producer(
    chance: random.Random, workers: int, subpartitions: int, share: int, segment_size: int, *, skewed: bool
) -> ProducerPlan:
    """A task whose records fill about `share` buffers of each subpartition; skewed: most go to one."""
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
    """The bytes of one record: none, a few, just about a buffer, several buffers."""
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
        capacity_bytes=max(capacity_bytes, total_bytes // _MOST_WRITES),  # or it would take for ever
        cut=chance.choice((Cut.WHOLE, Cut.WHOLE, Cut.RANDOM, Cut.TINY, Cut.BYTES)),
        short_writes=chance.choice((0.0, 0.0, 0.2, 0.8)) if capacity_bytes > _TINY else chance.choice((0.0, 0.2)),
    )


def _handshake_ms(weather: Weather) -> int:
    """How long a handshake may take in bad weather: each write takes its time to arrive, and to be followed."""
    writes = 1 + _HANDSHAKE_BYTES // weather.capacity_bytes
    return (writes * 3 * weather.latency_ns[1] + _HANDSHAKE_BYTES * weather.loop_delay_ns) // _MS
