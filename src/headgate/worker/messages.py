"""What workers and the coordinator say to each other: typed, small, over one connection per worker.

No message carries code or pickles: plans and functions reach workers through Spark. What there is very much of, and
holds numbers and text only, is not looked at by the garbage collector (`gc=False`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from headgate.errors import HeadgateError, UserCodeError, error_from_wire
from headgate.graph.plan import Partition

__all__ = [
    "Cancel",
    "ChannelReport",
    "ConnectionReport",
    "Deploy",
    "Done",
    "Failed",
    "FromCoordinator",
    "FromWorker",
    "KeyReport",
    "LatencyReport",
    "Partition",
    "PartitionConsumable",
    "Ping",
    "Register",
    "Report",
    "Sample",
    "Sampled",
    "StackCount",
    "State",
    "SubtaskReport",
    "SubtaskSamples",
    "TaskState",
    "TaskStateChanged",
    "Wire",
]

_MAX_TEXT: Final = 64 * 1024  # characters of an error's text, and of its traceback


class TaskState(StrEnum):
    """Where a task is in its life.

    >>> TaskState.RUNNING.over, TaskState.FAILED.over
    (False, True)
    """

    CREATED = "created"
    DEPLOYED = "deployed"  # its partitions and gates are there
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether it is one of the last states."""
        return self in {TaskState.FINISHED, TaskState.CANCELLED, TaskState.FAILED}


# From a worker.


class Register(msgspec.Struct, frozen=True, tag="register"):
    """The first message: this worker is there, and listens for others at this address.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Register("127.0.0.1", 7077, 4711, "0.1")))
    {'type': 'register', 'host': '127.0.0.1', 'port': 7077, 'pid': 4711, 'headgate': '0.1'}
    """

    host: str
    port: int
    pid: int
    headgate: str  # its version


class TaskStateChanged(msgspec.Struct, frozen=True, tag="task"):
    """A task is in another state.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(TaskStateChanged(3, 0, TaskState.RUNNING)))
    {'type': 'task', 'vertex': 3, 'subtask': 0, 'state': 'running'}
    """

    vertex: int
    subtask: int
    state: TaskState


class PartitionConsumable(msgspec.Struct, frozen=True, tag="consumable"):
    """There is something to read in a partition (P6).

    >>> PartitionConsumable(Partition(3, 0, 7))
    PartitionConsumable(partition=Partition(vertex=3, output=0, subtask=7))
    """

    partition: Partition


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A task has failed, or the worker itself: the job is over.

    >>> failed = Failed.of(UserCodeError("division by zero", operator="map", subtask=3))
    >>> failed.error()
    UserCodeError('map, subtask 3: division by zero')
    """

    code: int  # of the error's class
    text: str
    operator: str = ""  # of a UserCodeError
    subtask: int = -1
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """What to say of an error; of what is too long, the beginning of the text and the end of the traceback."""
        if isinstance(error, UserCodeError):
            text = str(error).removesuffix(f"\n\n{error.trace}").removeprefix(_place(error.operator, error.subtask))
            trace = error.trace[-_MAX_TEXT:]
            return cls(error.code, _said(text), _said(error.operator), error.subtask, _said(trace))
        if isinstance(error, HeadgateError):
            return cls(error.code, _said(str(error)))
        return cls(HeadgateError.code, _said(f"{type(error).__name__}: {error}"))

    def error(self) -> HeadgateError:
        """The error, as one of the same class."""
        if self.code == UserCodeError.code:
            text = self.text.removeprefix(_place(self.operator, self.subtask)).removesuffix(f"\n\n{self.trace}")
            return UserCodeError(text, operator=self.operator, subtask=self.subtask, trace=self.trace)
        return error_from_wire(self.code, self.text)


def _said(text: str) -> str:
    """A text that can be sent: not too long, and Unicode, which file names need not be."""
    return text[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


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
    """A connection to another worker: what was sent since its start, and how long its socket took nothing.

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


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Every task is over and everything was given back; the worker is about to leave.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Done()))
    {'type': 'done'}
    """


# From the coordinator.


class Deploy(msgspec.Struct, frozen=True, tag="deploy"):
    """Everybody is there: begin.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Deploy()))
    {'type': 'deploy'}
    """


class Wire(msgspec.Struct, frozen=True, tag="wire"):
    """A partition has become consumable: connect the channels that read it.

    >>> Wire(Partition(3, 0, 7), worker=1, host="127.0.0.1", port=7077).worker
    1
    """

    partition: Partition
    worker: int
    host: str
    port: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop all tasks.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Cancel("a task has failed")))
    {'type': 'cancel', 'reason': 'a task has failed'}
    """

    reason: str


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Sample the stacks of task threads, so often and so far apart (B1).

    >>> Sample(request=1, samples=100, delay_ms=50).vertices
    []
    """

    request: int
    samples: int
    delay_ms: int
    vertices: list[int] = []  # empty: all


# From either.


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Nothing was said for a while, and the sender is still there. The link keeps it to itself.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Ping()))
    {'type': 'ping'}
    """


FromWorker = Register | TaskStateChanged | PartitionConsumable | Failed | Report | Sampled | Done
"""What the coordinator hears."""

FromCoordinator = Deploy | Wire | Cancel | Sample
"""What workers hear."""


def _place(operator: str, subtask: int) -> str:
    """What a UserCodeError puts before its text."""
    return f"{operator}, subtask {subtask}: "
