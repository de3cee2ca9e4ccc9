"""The messages between workers and the coordinator: typed, small, over one control link per worker.

No message carries code or pickles: plans and functions reach workers through Spark. `reports` has the parts of reports.

In STREAMING the coordinator sends `Deploy` once, and a `PartitionLocation` for each consumable partition. In BATCH it
sends one `DeployRegion` after another, with the locations of all inputs, and the worker answers each with one
`RegionOver`. A run is identified by its region and its number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from headgate.control.reports import StackSamples, WorkerReport
from headgate.errors import HeadgateError, UserCodeError, error_from_wire
from headgate.graph.plan import Partition  # noqa: TC001 - msgspec needs it when messages are decoded

__all__ = [
    "Adopt",
    "Cancel",
    "Deploy",
    "DeployRegion",
    "Done",
    "Failed",
    "FromCoordinator",
    "FromWorker",
    "PartitionConsumable",
    "PartitionLocation",
    "Ping",
    "RegionOver",
    "Register",
    "Release",
    "SampleStacks",
    "TaskState",
    "TaskStateChanged",
]

_MAX_TEXT: Final = 64 * 1024  # characters of an error's text, and of its traceback


class TaskState(StrEnum):
    """The state of a task, from its deployment to its end.

    >>> TaskState.RUNNING.over, TaskState.FAILED.over
    (False, True)
    """

    CREATED = "created"
    DEPLOYED = "deployed"  # its partitions and gates exist
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Return True for a final state."""
        return self in {TaskState.FINISHED, TaskState.CANCELLED, TaskState.FAILED}


# From a worker.


class Register(msgspec.Struct, frozen=True, tag="register"):
    """The first message of a worker: its process, and the address of its port.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Register("127.0.0.1", 7077, 4711, "0.1", segments=2048)))
    {'type': 'register', 'host': '127.0.0.1', 'port': 7077, 'pid': 4711, 'headgate': '0.1', 'found': [], \
'segments': 2048}
    """

    host: str
    port: int
    pid: int
    headgate: str  # version
    found: list[Partition] = []  # partitions of earlier attempts of a BATCH job on its disks
    segments: int = 0  # buffers of its network memory


class TaskStateChanged(msgspec.Struct, frozen=True, tag="task"):
    """A task has changed its state.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(TaskStateChanged(3, 0, TaskState.RUNNING)))
    {'type': 'task', 'vertex': 3, 'subtask': 0, 'state': 'running'}
    """

    vertex: int
    subtask: int
    state: TaskState


class PartitionConsumable(msgspec.Struct, frozen=True, tag="consumable"):
    """A partition has become consumable: it has data to read (P6).

    >>> PartitionConsumable(Partition(3, 0, 7))
    PartitionConsumable(partition=Partition(vertex=3, output=0, subtask=7))
    """

    partition: Partition


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A task, or the worker itself, has failed. In STREAMING this ends the job.

    >>> failed = Failed.of(UserCodeError("division by zero", operator="map", subtask=3))
    >>> failed.error()
    UserCodeError('map, subtask 3: division by zero')
    """

    code: int  # the error class
    text: str
    operator: str = ""  # of a UserCodeError
    subtask: int = -1
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Return the message for an error. A long text keeps its beginning, a long traceback its end."""
        if isinstance(error, UserCodeError):
            text = str(error).removesuffix(f"\n\n{error.trace}").removeprefix(_place(error.operator, error.subtask))
            trace = error.trace[-_MAX_TEXT:]
            return cls(error.code, _sendable(text), _sendable(error.operator), error.subtask, _sendable(trace))
        if isinstance(error, HeadgateError):
            return cls(error.code, _sendable(str(error)))
        return cls(HeadgateError.code, _sendable(f"{type(error).__name__}: {error}"))

    def error(self) -> HeadgateError:
        """Return an error of the same class."""
        if self.code == UserCodeError.code:
            text = self.text.removeprefix(_place(self.operator, self.subtask)).removesuffix(f"\n\n{self.trace}")
            return UserCodeError(text, operator=self.operator, subtask=self.subtask, trace=self.trace)
        return error_from_wire(self.code, self.text)


def _sendable(text: str) -> str:
    """Return a text that can be sent: not too long, and valid Unicode, which file names need not be."""
    return text[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


class RegionOver(msgspec.Struct, frozen=True, tag="region-over"):
    """All tasks of a run have ended and released everything: it has finished, or failed with `failure`.

    >>> RegionOver(stage=2, subtask=0, run=1, consumable=[Partition(2, 0, 0)]).failure is None
    True
    """

    stage: int
    subtask: int
    run: int
    consumable: list[Partition] = []  # its results, which can be read now (P6); none if it failed
    failure: Failed | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All tasks have ended and released everything; the worker is about to leave.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Done()))
    {'type': 'done'}
    """


# From the coordinator.


class Deploy(msgspec.Struct, frozen=True, tag="deploy"):
    """Start all tasks: every worker is registered.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Deploy()))
    {'type': 'deploy'}
    """


class PartitionLocation(msgspec.Struct, frozen=True, tag="wire"):
    """The worker that has a consumable partition. Sent alone, it means: connect the channels that read it.

    >>> PartitionLocation(Partition(3, 0, 7), worker=1, host="127.0.0.1", port=7077).worker
    1
    """

    partition: Partition
    worker: int
    host: str
    port: int


class DeployRegion(msgspec.Struct, frozen=True, tag="deploy-region"):
    """Run a region: one task of each of these vertices. All its inputs can be read.

    >>> DeployRegion(stage=2, subtask=0, run=1, vertices=[3, 4]).inputs
    []
    """

    stage: int
    subtask: int
    run: int  # counted from 1
    vertices: list[int]
    inputs: list[PartitionLocation] = []


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Serve these partitions of earlier attempts, which this worker has found on its disks.

    >>> Adopt([Partition(3, 0, 7)]).partitions
    [Partition(vertex=3, output=0, subtask=7)]
    """

    partitions: list[Partition]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Remove these partitions and their files: they have no reader any more.

    >>> Release([Partition(3, 0, 7)]).partitions
    [Partition(vertex=3, output=0, subtask=7)]
    """

    partitions: list[Partition]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel all tasks. In BATCH it also ends a worker that has nothing more to do. The answer is `Done`.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Cancel("a task has failed")))
    {'type': 'cancel', 'reason': 'a task has failed', 'keep': False}
    """

    reason: str
    keep: bool = False  # keep the files of finished partitions for the next attempt


class SampleStacks(msgspec.Struct, frozen=True, tag="sample"):
    """Sample the stacks of task threads, `samples` times, `delay_ms` apart (B1).

    >>> SampleStacks(request=1, samples=100, delay_ms=50).vertices
    []
    """

    request: int
    samples: int
    delay_ms: int
    vertices: list[int] = []  # empty: all


# From either.


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Sent by a link that was silent for a third of the idle time-out. The link drops it on arrival.

    >>> msgspec.msgpack.decode(msgspec.msgpack.encode(Ping()))
    {'type': 'ping'}
    """


FromWorker = (
    Register | TaskStateChanged | PartitionConsumable | RegionOver | Failed | WorkerReport | StackSamples | Done
)
"""The messages of a worker."""

FromCoordinator = Deploy | DeployRegion | PartitionLocation | Adopt | Release | Cancel | SampleStacks
"""The messages of the coordinator."""


def _place(operator: str, subtask: int) -> str:
    """Return the beginning of a UserCodeError's text."""
    return f"{operator}, subtask {subtask}: "
