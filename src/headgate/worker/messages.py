"""What workers and the coordinator say to each other: typed, small, over one connection per worker.

No message carries code or pickles: plans and functions reach workers through Spark. What reports are made of is in
`report_messages`.

In STREAMING a worker is told once to begin (`Deploy`), and then which partitions can be read (`Wire`). In BATCH it is
told of one region after another (`DeployRegion`), with all there is to know of its inputs, and answers each with one
`RegionOver`. A run is known by its region and its number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from headgate.errors import HeadgateError, UserCodeError, error_from_wire
from headgate.graph.plan import Partition
from headgate.worker.report_messages import (
    ChannelReport,
    ConnectionReport,
    KeyReport,
    LatencyReport,
    Report,
    Sampled,
    StackCount,
    State,
    SubtaskReport,
    SubtaskSamples,
)

__all__ = [
    "Adopt",
    "Cancel",
    "ChannelReport",
    "ConnectionReport",
    "Deploy",
    "DeployRegion",
    "Done",
    "Failed",
    "FromCoordinator",
    "FromWorker",
    "KeyReport",
    "LatencyReport",
    "Partition",
    "PartitionConsumable",
    "Ping",
    "RegionOver",
    "Register",
    "Release",
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
    {'type': 'register', 'host': '127.0.0.1', 'port': 7077, 'pid': 4711, 'headgate': '0.1', 'found': []}
    """

    host: str
    port: int
    pid: int
    headgate: str  # its version
    found: list[Partition] = []  # that earlier attempts of a BATCH job have left on its machine's disks


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
    """A task has failed, or the worker itself. In STREAMING the job is over.

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


class RegionOver(msgspec.Struct, frozen=True, tag="region-over"):
    """All tasks of a run have ended, and gave back what they held: it has finished, or failed of something.

    >>> RegionOver(stage=2, subtask=0, run=1, consumable=[Partition(2, 0, 0)]).failure is None
    True
    """

    stage: int
    subtask: int
    run: int
    consumable: list[Partition] = []  # its results, which can be read now (P6); of one that has failed there are none
    failure: Failed | None = None


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


class DeployRegion(msgspec.Struct, frozen=True, tag="deploy-region"):
    """Run a region: a task of each of these vertices. All its inputs can be read, and are where `inputs` says.

    >>> DeployRegion(stage=2, subtask=0, run=1, vertices=[3, 4]).inputs
    []
    """

    stage: int
    subtask: int
    run: int  # how often it was tried, from 1
    vertices: list[int]
    inputs: list[Wire] = []


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Let others read these partitions of earlier attempts, which this worker has found on its machine's disks.

    >>> Adopt([Partition(3, 0, 7)]).partitions
    [Partition(vertex=3, output=0, subtask=7)]
    """

    partitions: list[Partition]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Nobody wants these partitions any more: remove their files.

    >>> Release([Partition(3, 0, 7)]).partitions
    [Partition(vertex=3, output=0, subtask=7)]
    """

    partitions: list[Partition]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop all tasks. In BATCH that is also how a worker that has nothing more to do is told: its answer is `Done`.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Cancel("a task has failed")))
    {'type': 'cancel', 'reason': 'a task has failed', 'keep': False}
    """

    reason: str
    keep: bool = False  # the files of finished partitions, which the job's next attempt is going to read


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


FromWorker = Register | TaskStateChanged | PartitionConsumable | RegionOver | Failed | Report | Sampled | Done
"""What the coordinator hears."""

FromCoordinator = Deploy | DeployRegion | Wire | Adopt | Release | Cancel | Sample
"""What workers hear."""


def _place(operator: str, subtask: int) -> str:
    """What a UserCodeError puts before its text."""
    return f"{operator}, subtask {subtask}: "
