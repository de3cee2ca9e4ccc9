"""What workers report of their tasks: meters once a second, and samples of stacks when they are asked for.

A part of `messages`, which is where everybody finds these. What there is very much of, and holds numbers and text only,
is not looked at by the garbage collector (`gc=False`).
"""

from __future__ import annotations

import msgspec

__all__ = [
    "ChannelReport",
    "ConnectionReport",
    "KeyReport",
    "LatencyReport",
    "Report",
    "Sampled",
    "StackCount",
    "State",
    "SubtaskReport",
    "SubtaskSamples",
]


class ChannelReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One channel of a task's input (B2).

    >>> ChannelReport(0, 1, False, backlog=3, queued=1, exclusive=2, floating=4, credit=5, bytes_in=0).credit
    5
    """

    exchange: int
    producer: int  # subtask
    local: bool  # it comes from this worker: it has no credit, and no buffers of its own
    backlog: int  # buffers that wait at its producer
    queued: int  # that have come and wait to be read
    exclusive: int  # of its own that are set aside for what comes
    floating: int  # likewise of those that the gate's channels share
    credit: int  # of all these, how many the producer knows of
    bytes_in: int


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a subtask did in a moment, `metrics.interval` long: one of the ring that the driver keeps.

    Times are in thousandths of the moment.

    >>> State(busy=900, idle=0, back_pressured=100, records_in=5, records_out=5, in_queued=1, backlog=2).busy
    900
    """

    busy: int
    idle: int
    back_pressured: int
    records_in: int  # in this moment
    records_out: int
    in_queued: int  # at its end
    backlog: int
    in_pool: int = 0  # share of the buffers in use, in thousandths
    out_pool: int = 0


class LatencyReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long the markers of a source took to a subtask, of the last minute.

    >>> LatencyReport(source=0, count=2, p50_us=900, p99_us=1500, max_us=1500).count
    2
    """

    source: int  # vertex
    count: int
    p50_us: int
    p99_us: int
    max_us: int


class KeyReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key that many records of an exchange have.

    >>> KeyReport(exchange=0, key="'london'", share_permille=610).key
    "'london'"
    """

    exchange: int
    key: str
    share_permille: int


class ConnectionReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The connections to another worker: what was sent since their start, and how long a socket took nothing.

    >>> ConnectionReport(peer=1, bytes_out=10, waiting_bytes=0, blocked_ns=0, round_trip_us=80).peer
    1
    """

    peer: int
    bytes_out: int
    waiting_bytes: int
    blocked_ns: int
    round_trip_us: int = -1  # -1: the system does not say
    unsent_bytes: int = -1  # that the system has taken and not put on the network yet; likewise


class StackCount(msgspec.Struct, frozen=True, array_like=True):
    """A stack of a task's thread, and how often it was seen.

    >>> StackCount("map(slow)", ["slow (job.py:7)"], 90, 0, 0).count
    90
    """

    operator: str  # whose code it is in; "": of none
    frames: list[str]  # the user's, outermost first: 'function (file:line)'
    count: int  # how often it was seen
    idle: int = 0  # of these, how often waiting for input
    back_pressured: int = 0  # likewise for an output buffer


class SubtaskSamples(msgspec.Struct, frozen=True):
    """The samples of one task's thread (B1).

    >>> SubtaskSamples(vertex=0, subtask=0, taken=100, idle=0, back_pressured=30, stacks=[]).back_pressured
    30
    """

    vertex: int
    subtask: int
    taken: int
    idle: int
    back_pressured: int
    stacks: list[StackCount]


class SubtaskReport(msgspec.Struct, frozen=True):
    """What one subtask has done since its start (B2).

    >>> SubtaskReport(0, 0, 10, 20, 0, 0, 0, 0, busy_ns=1, idle_ns=2, back_pressured_ns=3).records_out
    20
    """

    vertex: int
    subtask: int
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    buffers_in: int
    buffers_out: int
    busy_ns: int
    idle_ns: int
    back_pressured_ns: int
    watermark_ms: int | None = None
    in_pool_used: int = 0  # buffers of its gates' pools in use, and how many there are
    in_pool_size: int = 0
    out_pool_used: int = 0
    out_pool_size: int = 0
    in_queued: int = 0  # buffers that wait to be read
    backlog: int = 0  # buffers that wait at its producers
    channels: list[ChannelReport] = []  # the first ones if there are very many
    counters: dict[str, int] = {}
    states: list[State] = []  # since the report before, one per `metrics.interval`
    states_at_ms: int = 0  # when the last of these ended, by the worker's clock; 0: when it reported
    cpu_ns: int = -1  # that its thread was on a CPU; -1: the system does not say
    run_queue_ns: int = -1  # that it waited for one
    latencies: list[LatencyReport] = []
    hot_keys: list[KeyReport] = []


class Report(msgspec.Struct, frozen=True, tag="report"):
    """All meters of a worker, once a second.

    >>> Report(at_ms=1000, subtasks=[]).memory_bytes
    0
    """

    at_ms: int
    subtasks: list[SubtaskReport]
    memory_bytes: int = 0  # of its process
    cpu_ns: int = -1  # of its process; -1: the system does not say
    segments_total: int = 0
    segments_free: int = 0
    connections: list[ConnectionReport] = []


class Sampled(msgspec.Struct, frozen=True, tag="sampled"):
    """The answer to `Sample`.

    >>> Sampled(request=1, subtasks=[]).request
    1
    """

    request: int
    subtasks: list[SubtaskSamples]
