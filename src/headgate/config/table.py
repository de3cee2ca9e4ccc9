"""The table of settings: attribute, type, kind with limits, meaning, default.

The dotted key of a setting is the path of attributes that leads to it: `memory.segment_size` is
`settings.memory.segment_size`. Sizes are ints in bytes, times are `Duration`. To add a setting, add it here;
a new top section also goes into `Settings` and `load_settings`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from headgate.config.kinds import Address, Choice, Count, Flag, FlushTime, Fraction, Path, Size, Time, Word
from headgate.config.units import (
    GIB,
    KIB,
    MIB,
    NS_PER_HOUR,
    NS_PER_MS,
    NS_PER_SECOND,
    BufferTimeout,
    Duration,
)

__all__ = [
    "BackoffSettings",
    "BackpressureSettings",
    "BatchSettings",
    "Compression",
    "ExecutionSettings",
    "FlowControl",
    "MemorySettings",
    "MetricsSettings",
    "NetworkMemorySettings",
    "NetworkSettings",
    "RecordSettings",
    "RuntimeMode",
    "Section",
]

_MS, _SECOND, _HOUR = NS_PER_MS, NS_PER_SECOND, NS_PER_HOUR
_100_US = Duration(100_000)
_100_MS = Duration(100 * _MS)
_50_MS = Duration(50 * _MS)
_1_S = Duration(_SECOND)
_5_S = Duration(5 * _SECOND)
_10_S = Duration(10 * _SECOND)
_30_S = Duration(30 * _SECOND)
_60_S = Duration(60 * _SECOND)
_10_MIN = Duration(600 * _SECOND)
_AUTO = BufferTimeout.parse("auto")


class FlowControl(StrEnum):
    """How a sender is kept from sending more than its receiver can hold.

    >>> NetworkSettings().flow_control
    <FlowControl.CREDIT: 'credit'>
    """

    CREDIT = "credit"
    TCP = "tcp"


class RuntimeMode(StrEnum):
    """Whether tasks push records to each other while all run, or read what earlier ones have finished.

    >>> ExecutionSettings().runtime_mode
    <RuntimeMode.STREAMING: 'STREAMING'>
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTO = "AUTO"  # BATCH where all sources are bounded


class Compression(StrEnum):
    """How data on disk is compressed.

    >>> BatchSettings().compression
    <Compression.LZ4: 'lz4'>
    """

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One level of the table; its fields are settings or further sections.

    >>> issubclass(MemorySettings, Section)
    True
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMemorySettings(Section):
    """How much memory a worker gives to its buffers.

    >>> NetworkMemorySettings().max
    1073741824
    """

    fraction: Annotated[float, Fraction(), "Share of a worker's memory that becomes buffers."] = 0.1
    min: Annotated[int, Size(16, 1024 * GIB), "Least memory for buffers, whatever the share."] = 64 * MIB
    max: Annotated[int, Size(16, 1024 * GIB), "Most memory for buffers, whatever the share."] = 1 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(Section):
    """Buffers and the memory they are cut from.

    >>> MemorySettings().segment_size
    32768
    """

    segment_size: Annotated[int, Size(16, 64 * MIB), "Size of one buffer."] = 32 * KIB
    network: NetworkMemorySettings = field(default_factory=NetworkMemorySettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings(Section):
    """How long to wait before asking again for a partition that is not there yet.

    >>> BackoffSettings().max.seconds
    10.0
    """

    initial: Annotated[
        Duration, Time(_MS, _HOUR), "First wait before a missing partition is asked for again; then doubled."
    ] = _100_MS
    max: Annotated[
        Duration, Time(_MS, _HOUR), "Longest wait before asking again; a miss after it is a PartitionNotFound error."
    ] = _10_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Section):
    """Channels between tasks: their buffers, flow control and connections.

    >>> NetworkSettings().buffers_per_channel
    2
    """

    buffers_per_channel: Annotated[
        int, Count(1, 10_000), "Buffers a remote channel has to itself, which is also its first credit."
    ] = 2
    floating_buffers_per_gate: Annotated[
        int, Count(0, 100_000), "Buffers that a gate's channels share, handed out by backlog."
    ] = 8
    max_buffers_per_channel: Annotated[int, Count(1, 100_000), "Most buffers queued for one subpartition."] = 10
    max_overdraft_buffers: Annotated[
        int, Count(0, 100_000), "Buffers a writer may take past its pool to finish a record."
    ] = 5
    buffers_request_timeout: Annotated[
        Duration, Time(_MS, 24 * _HOUR), "How long a request for buffers may wait before it is an error."
    ] = _30_S
    partition_request_backoff: BackoffSettings = field(default_factory=BackoffSettings)
    flow_control: Annotated[FlowControl, Choice(FlowControl), "'credit', or 'tcp': the old way, kept to compare."] = (
        FlowControl.CREDIT
    )
    transport: Annotated[
        str,
        Word("'auto' or the name of a driver"),
        "Socket driver: 'auto' takes 'shared' where there is epoll, 'asyncio' is the portable one.",
    ] = "auto"
    connect_timeout: Annotated[Duration, Time(_MS, _HOUR), "How long a connection to another worker may take."] = _30_S
    handshake_timeout: Annotated[
        Duration, Time(_MS, _HOUR), "How long a peer may take to prove that it belongs to the job."
    ] = _5_S
    idle_timeout: Annotated[
        Duration, Time(10 * _MS, 24 * _HOUR), "A connection on which nothing arrives for so long has failed."
    ] = _60_S
    checksum: Annotated[bool, Flag(), "Send a CRC-32C with every buffer; a mismatch fails the connection."] = False
    keepalive: Annotated[bool, Flag(), "Let the kernel probe silent connections (SO_KEEPALIVE)."] = True
    send_buffer: Annotated[int, Size(0, GIB), "SO_SNDBUF of each connection; 0 leaves it to the kernel."] = 0
    receive_buffer: Annotated[int, Size(0, GIB), "SO_RCVBUF of each connection; 0 leaves it to the kernel."] = 0
    bind_address: Annotated[str, Address(), "Where a worker listens; beyond loopback, connections are encrypted."] = (
        "127.0.0.1"
    )
    port: Annotated[int, Count(0, 65_535), "Port a worker listens on; 0 takes a free one."] = 0
    max_half_open: Annotated[
        int, Count(1, 100_000), "Most connections at once whose peer has not proved itself yet."
    ] = 64
    max_channels_per_connection: Annotated[
        int, Count(1, 1_000_000), "Most channels that one peer may open over its connection."
    ] = 65_536
    insecure_plaintext: Annotated[
        bool, Flag(), "Allow connections beyond loopback without encryption. Anyone on the way can read them."
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings(Section):
    """How tasks run.

    >>> str(ExecutionSettings().buffer_timeout)
    'auto'
    """

    buffer_timeout: Annotated[
        BufferTimeout,
        FlushTime(_HOUR),
        "When a buffer that is not full is sent: 'auto' when the task has no more input at hand and after "
        "100 ms at the latest, a time for a fixed interval, 0 after every record, -1 only when full.",
    ] = _AUTO
    switch_interval: Annotated[
        Duration,
        Time(10_000, _SECOND),
        "How long a task may keep the interpreter from one that has slept (at most 40 us while only little goes over "
        "the network); from one that computes, some 50 us more, or 200 us if that mostly does so for long (Linux; "
        "elsewhere from all of them).",
    ] = _100_US
    time_slice: Annotated[
        Duration,
        Time(0, 100 * _MS),
        "Slices of a processor's time that the threads of tasks ask for which do not compute for long (Linux 6.12): "
        "short ones begin sooner; 0: as the system likes.",
    ] = _100_US
    long_run_nice: Annotated[
        int,
        Count(0, 19),
        "By how much the threads of tasks that mostly compute for long are nicer (Linux): others, which wait for the "
        "network, get a processor before them; 0: not at all.",
    ] = 5
    object_reuse: Annotated[bool, Flag(), "Hand the same object down a chain of operators instead of a copy."] = False
    max_parallelism: Annotated[
        int, Count(1, 32_768), "Number of key groups, so the most subtasks a keyed step can ever have."
    ] = 128
    runtime_mode: Annotated[
        RuntimeMode,
        Choice(RuntimeMode),
        "'STREAMING': all tasks at once, which push; 'BATCH': one after another, through disk; 'AUTO': BATCH where all "
        "sources are bounded.",
    ] = RuntimeMode.STREAMING


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings(Section):
    """What jobs in BATCH mode keep on disk, and how often they try.

    >>> BatchSettings().attempts
    3
    """

    directories: Annotated[
        str,
        Path("directories, separated by commas, or nothing"),
        "Where partitions and spilled groups go, spread over all of these; empty is the system's place for files.",
    ] = ""
    disk_quota: Annotated[
        int, Size(0, 1024 * 1024 * GIB), "Most bytes that a worker keeps on disk for a job; 0: no limit."
    ] = 0
    compression: Annotated[
        Compression, Choice(Compression), "How buffers on disk are compressed, each only where that makes it smaller."
    ] = Compression.LZ4
    read_ahead: Annotated[
        int, Count(1, 10_000), "Most buffers that are read from disk before the reader of a partition wants them."
    ] = 8
    group_memory: Annotated[
        int,
        Size(64 * KIB, 1024 * GIB),
        "Memory of a task for the values of its keys; what does not fit is sorted and merged on disk.",
    ] = 256 * MIB
    attempts: Annotated[
        int, Count(1, 1_000), "How often a part of the job is tried before the job fails of its failure."
    ] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings(Section):
    """Records on their way into and out of buffers.

    >>> RecordSettings().spill_threshold
    5242880
    """

    batch_size: Annotated[
        int, Count(1, 100_000), "Most records a writer collects for one channel before it serializes them."
    ] = 1_000
    # Lengths are 32 bits on the wire.
    max_size: Annotated[int, Size(1, 4095 * MIB), "Largest record; a larger one is an error."] = 1 * GIB
    spill_threshold: Annotated[
        int, Size(1, 4095 * MIB), "Records larger than this are gathered in a temporary file, not in memory."
    ] = 5 * MIB
    spill_directory: Annotated[
        str,
        Path("a directory, or nothing"),
        "Where files of large records go; empty is the system's place.",
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureSettings(Section):
    """Stack sampling, which runs only while somebody looks.

    >>> BackpressureSettings().delay.ms
    50.0
    """

    samples: Annotated[int, Count(1, 10_000), "Stack samples taken of each task for one verdict."] = 100
    delay: Annotated[Duration, Time(_MS, 10 * _SECOND), "Time between two samples."] = _50_MS
    refresh: Annotated[Duration, Time(0, _HOUR), "How long a verdict is reused before sampling again."] = _60_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(Section):
    """What a running job tells of itself, and how long that is kept.

    >>> MetricsSettings().interval.ms
    100.0
    """

    interval: Annotated[
        Duration, Time(0, 10 * _SECOND), "Length of the moments that a task's past is kept in; 0: no past is kept."
    ] = _100_MS
    history: Annotated[Duration, Time(_SECOND, _HOUR), "How much of the past the driver keeps."] = _10_MIN
    latency_interval: Annotated[
        Duration, Time(0, _HOUR), "Time between two latency markers of a source's subtask; 0: none are sent."
    ] = _1_S
    hot_keys: Annotated[bool, Flag(), "Whether to look for keys that many records have; they are shown as text."] = True
    keep: Annotated[int, Count(0, 10_000), "Finished jobs whose last status is kept in a file; 0: none."] = 20
