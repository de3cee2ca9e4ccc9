"""The table of settings: attribute, type, kind with limits, meaning, default.

The dotted key of a setting is the path of its attributes: `memory.segment_size` is `settings.memory.segment_size`.
Sizes are ints in bytes, times are `Duration`. A new setting is added here only; a new top-level section also to
`Settings` and `load_settings`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from headgate.config.kinds import (
    AddressKind,
    ChoiceKind,
    CountKind,
    FlagKind,
    FlushTimeKind,
    FractionKind,
    PathKind,
    SizeKind,
    TimeKind,
    WordKind,
)
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
_5_MIN = Duration(300 * _SECOND)
_10_MIN = Duration(600 * _SECOND)
_AUTO = BufferTimeout.parse("auto")


class FlowControl(StrEnum):
    """The mechanism that keeps a producer from sending more than its consumer has buffers for.

    >>> NetworkSettings().flow_control
    <FlowControl.CREDIT: 'credit'>
    """

    CREDIT = "credit"
    TCP = "tcp"


class RuntimeMode(StrEnum):
    """The way tasks exchange records: pushed while all tasks run, or read from the finished files of earlier tasks.

    >>> ExecutionSettings().runtime_mode
    <RuntimeMode.STREAMING: 'STREAMING'>
    """

    STREAMING = "STREAMING"
    BATCH = "BATCH"
    AUTO = "AUTO"  # BATCH if all sources are bounded


class Compression(StrEnum):
    """The compression of data on disk.

    >>> BatchSettings().compression
    <Compression.LZ4: 'lz4'>
    """

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One level of the table; its fields are settings or sections.

    >>> issubclass(MemorySettings, Section)
    True
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMemorySettings(Section):
    """The size of a worker's network memory.

    >>> NetworkMemorySettings().max
    1073741824
    """

    fraction: Annotated[
        float,
        FractionKind(),
        "Share of a worker's memory for buffers; unless this or max is set, of at most 1 GiB of that memory.",
    ] = 0.1
    min: Annotated[int, SizeKind(16, 1024 * GIB), "Smallest network memory of a worker; applies after fraction."] = (
        64 * MIB
    )
    max: Annotated[int, SizeKind(16, 1024 * GIB), "Largest network memory of a worker; applies after fraction."] = (
        1 * GIB
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(Section):
    """Buffers, and the memory that they are part of.

    >>> MemorySettings().segment_size
    32768
    """

    segment_size: Annotated[int, SizeKind(16, 64 * MIB), "Size of one buffer."] = 32 * KIB
    network: NetworkMemorySettings = field(default_factory=NetworkMemorySettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings(Section):
    """The delays between requests for a partition that does not exist yet.

    >>> BackoffSettings().max.seconds
    10.0
    """

    initial: Annotated[
        Duration, TimeKind(_MS, _HOUR), "First delay before a missing partition is requested again; doubled each time."
    ] = _100_MS
    max: Annotated[
        Duration,
        TimeKind(_MS, _HOUR),
        "Longest delay between requests; PartitionNotFound is raised if the request after it fails.",
    ] = _10_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Section):
    """Channels between tasks: their buffers, flow control and connections.

    >>> NetworkSettings().buffers_per_channel
    2
    """

    buffers_per_channel: Annotated[
        int, CountKind(1, 10_000), "Exclusive buffers of a remote channel: its initial credit."
    ] = 2
    floating_buffers_per_gate: Annotated[
        int,
        CountKind(0, 100_000),
        "Buffers that a gate's channels share; a channel requests them according to its backlog.",
    ] = 8
    max_buffers_per_channel: Annotated[
        int, CountKind(1, 100_000), "Largest number of buffers in use for one subpartition."
    ] = 10
    max_overdraft_buffers: Annotated[
        int, CountKind(0, 100_000), "Buffers beyond its pool's size that a writer may request to finish a record."
    ] = 5
    buffers_request_timeout: Annotated[
        Duration,
        TimeKind(_MS, 24 * _HOUR),
        "How long the set-up of a remote channel may block for its exclusive buffers. Back pressure has no time limit.",
    ] = _30_S
    partition_request_backoff: BackoffSettings = field(default_factory=BackoffSettings)
    flow_control: Annotated[
        FlowControl,
        ChoiceKind(FlowControl),
        "'credit', or 'tcp': no credit, only TCP's own flow control, for comparison.",
    ] = FlowControl.CREDIT
    transport: Annotated[
        str,
        WordKind("'auto', 'shared' or 'asyncio'"),
        "Event loop: 'shared' (Linux) is polled by waiting tasks too, 'asyncio' runs everywhere; 'auto': 'shared' on "
        "Linux.",
    ] = "auto"
    connect_timeout: Annotated[
        Duration,
        TimeKind(_MS, _HOUR),
        "How long connecting to another worker or to the coordinator may take, including retries.",
    ] = _30_S
    handshake_timeout: Annotated[Duration, TimeKind(_MS, _HOUR), "How long the handshake with a peer may take."] = _5_S
    idle_timeout: Annotated[
        Duration, TimeKind(10 * _MS, 24 * _HOUR), "A connection fails if it receives nothing for so long."
    ] = _60_S
    checksum: Annotated[bool, FlagKind(), "Send a CRC-32C with every buffer; a mismatch fails the connection."] = False
    keepalive: Annotated[bool, FlagKind(), "Let the kernel probe connections that receive nothing (SO_KEEPALIVE)."] = (
        True
    )
    send_buffer: Annotated[int, SizeKind(0, GIB), "SO_SNDBUF of each connection; 0: the kernel's default."] = 0
    receive_buffer: Annotated[int, SizeKind(0, GIB), "SO_RCVBUF of each connection; 0: the kernel's default."] = 0
    write_high_mark: Annotated[
        int,
        CountKind(1, 10_000),
        "Channels stop passing buffers to a connection while so many wait to be written to its socket.",
    ] = 16
    write_low_mark: Annotated[
        int,
        CountKind(1, 10_000),
        "After the high mark was reached, channels continue when fewer than so many buffers wait.",
    ] = 1
    bind_address: Annotated[
        str,
        AddressKind(),
        "IP address on which a worker listens; connections are encrypted unless it is a loopback address.",
    ] = "127.0.0.1"
    port: Annotated[int, CountKind(0, 65_535), "Port on which a worker listens; 0: any free port."] = 0
    max_half_open: Annotated[
        int,
        CountKind(1, 100_000),
        "Largest number of connections in the handshake; a further one closes the oldest.",
    ] = 64
    max_channels_per_connection: Annotated[
        int, CountKind(1, 1_000_000), "Largest number of channels that a peer may open on its connection."
    ] = 65_536
    insecure_plaintext: Annotated[
        bool,
        FlagKind(),
        "Allow unencrypted connections on other than loopback addresses. Anyone on the network path can read them.",
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings(Section):
    """The execution of tasks.

    >>> str(ExecutionSettings().buffer_timeout)
    'auto'
    """

    buffer_timeout: Annotated[
        BufferTimeout,
        FlushTimeKind(_HOUR),
        "When a buffer that is not full is flushed. 'auto': when the task has no input to read, and every 100 ms; "
        "a time: at this interval; 0: after every record; -1: only when full.",
    ] = _AUTO
    switch_interval: Annotated[
        Duration,
        TimeKind(10_000, _SECOND),
        "How long a thread may keep the interpreter while another thread needs it (`sys.setswitchinterval`); for all "
        "threads of a process that has workers.",
    ] = _100_US
    object_reuse: Annotated[
        bool, FlagKind(), "Pass the objects that functions return to the next operator without copying them."
    ] = False
    max_parallelism: Annotated[
        int, CountKind(1, 32_768), "Number of key groups: the largest parallelism that a keyed operator can have."
    ] = 128
    runtime_mode: Annotated[
        RuntimeMode,
        ChoiceKind(RuntimeMode),
        "'STREAMING': all tasks run at once and push records; 'BATCH': stages run one after another and exchange "
        "files; 'AUTO': BATCH if all sources are bounded.",
    ] = RuntimeMode.STREAMING


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings(Section):
    """The files and the attempts of jobs in BATCH mode.

    >>> BatchSettings().attempts
    3
    """

    directories: Annotated[
        str,
        PathKind("directories, separated by commas, or nothing"),
        "Directories for partitions and spilled groups, used in turn; empty: the system's temporary directory.",
    ] = ""
    disk_quota: Annotated[
        int,
        SizeKind(0, 1024 * 1024 * GIB),
        "Largest number of bytes that a worker may have on disk for a job; 0: no limit.",
    ] = 0
    compression: Annotated[
        Compression,
        ChoiceKind(Compression),
        "Compression of buffers on disk; a buffer that would not become smaller is written as it is.",
    ] = Compression.LZ4
    read_ahead: Annotated[
        int, CountKind(1, 10_000), "Largest number of buffers that are read from disk ahead of a partition's reader."
    ] = 8
    group_memory: Annotated[
        int,
        SizeKind(64 * KIB, 1024 * GIB),
        "Memory of a task for grouping values by key; values that do not fit are sorted and merged on disk.",
    ] = 256 * MIB
    attempts: Annotated[
        int, CountKind(1, 1_000), "How often a region is attempted before its failure fails the job."
    ] = 3
    slots_timeout: Annotated[
        Duration,
        TimeKind(0, 24 * _HOUR),
        "How long a job that lost workers waits for Spark's slots before the next attempt, and for an attempt in which "
        "a task runs; attempts in which none runs are not counted.",
    ] = _5_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings(Section):
    """The batching and the size of records.

    >>> RecordSettings().spill_threshold
    5242880
    """

    batch_size: Annotated[
        int,
        CountKind(1, 100_000),
        "Largest number of records that a writer collects for one channel before it serializes them.",
    ] = 1_000
    # Lengths are 32 bits on the wire.
    max_size: Annotated[int, SizeKind(1, 4095 * MIB), "Largest record; a larger one is an error."] = 1 * GIB
    spill_threshold: Annotated[
        int, SizeKind(1, 4095 * MIB), "Records larger than this are gathered in a temporary file, not in memory."
    ] = 5 * MIB
    spill_directory: Annotated[
        str,
        PathKind("a directory, or nothing"),
        "Directory for the files of large records; empty: the system's temporary directory.",
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureSettings(Section):
    """Stack sampling, which runs only while a client requests it.

    >>> BackpressureSettings().delay.ms
    50.0
    """

    samples: Annotated[int, CountKind(1, 10_000), "Stack samples of each task for one verdict."] = 100
    delay: Annotated[Duration, TimeKind(_MS, 10 * _SECOND), "Time between two samples."] = _50_MS
    refresh: Annotated[
        Duration, TimeKind(0, _HOUR), "How long a verdict is reused before the tasks are sampled again."
    ] = _60_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings(Section):
    """The metrics of a running job, and how long they are kept.

    >>> MetricsSettings().interval.ms
    100.0
    """

    interval: Annotated[
        Duration, TimeKind(0, 10 * _SECOND), "Time between two samples of a task's state in the history; 0: no history."
    ] = _100_MS
    history: Annotated[Duration, TimeKind(_SECOND, _HOUR), "How long the driver keeps samples."] = _10_MIN
    latency_interval: Annotated[
        Duration, TimeKind(0, _HOUR), "Time between two latency markers that a source's subtask sends; 0: none."
    ] = _1_S
    hot_keys: Annotated[bool, FlagKind(), "Detect keys with many records, and show them as text."] = True
    keep: Annotated[
        int, CountKind(0, 10_000), "Number of finished jobs whose last status is kept in a file; 0: none."
    ] = 20
