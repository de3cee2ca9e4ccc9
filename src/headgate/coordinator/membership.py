"""The workers of a job, as the coordinator sees them, and which of them read which partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from headgate.errors import RemoteProtocolError, RequestTimeout
from headgate.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.control.link import ControlLink
    from headgate.control.messages import FromCoordinator, Register
    from headgate.graph.plan import Partition, Plan

__all__ = ["Member", "Presence", "check_register", "missing_error", "readers_of"]

_MAX_HOST: Final = 255  # characters


class Presence(Enum):
    """What is known of a worker; each state only leads to later ones.

    >>> Member(0).presence
    <Presence.ABSENT: 'not connected yet'>
    """

    ABSENT = "not connected yet"
    CONNECTED = "has proved itself"
    REGISTERED = "takes part in the job"
    DONE = "has sent Done"
    LOST = "its link has ended before Done"


@dataclass(slots=True)
class Member:
    """One worker of the job.

    >>> Member(3).here
    False
    """

    number: int
    presence: Presence = Presence.ABSENT
    link: ControlLink | None = None
    register: Register | None = None

    @property
    def here(self) -> bool:
        """Return True if it is connected, and neither done nor lost."""
        return self.presence in (Presence.CONNECTED, Presence.REGISTERED)

    @property
    def place(self) -> str:
        """Where it runs, for errors."""
        if self.register is not None:
            return f"{self.register.host}:{self.register.pid}"
        return "unknown place" if self.link is None else self.link.peer

    def send(self, message: FromCoordinator) -> None:
        """Send a message, if the worker is `here`."""
        if self.here and self.link is not None:
            self.link.send(message)

    def dismiss(self) -> None:
        """Close its link and ignore its messages: its attempt is over."""
        if self.link is not None:
            self.link.on_message = self.link.on_lost = _ignore
            self.link.close()


def check_register(register: Register) -> None:
    """Raise if a worker cannot take part.

    >>> from headgate.control.messages import Register
    >>> check_register(Register("127.0.0.1", 7077, 4711, "0.0.1"))
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: it has headgate '0.0.1', the driver ...: install the same

    Raises:
        RemoteProtocolError: it has another version, an invalid address, or a negative amount of memory.
    """
    if register.headgate != __version__:
        theirs = register.headgate[:40]
        raise RemoteProtocolError(f"it has headgate {theirs!r}, the driver {__version__!r}: install the same")
    if not 0 < len(register.host) <= _MAX_HOST or not 0 < register.port < 2**16:
        raise RemoteProtocolError("it registers with an invalid address")
    if register.segments < 0:
        raise RemoteProtocolError(f"it registers with {register.segments} segments")


def missing_error(members: Sequence[Member], job: str, limit_s: float) -> RequestTimeout:
    """Return the error of a job whose workers have not registered in time.

    >>> missing_error([Member(0)], "etl", 60.0)
    RequestTimeout("job 'etl': 1 of 1 workers (number 0) did not register within 60 s: did they start?")
    """
    missing = [one.number for one in members if one.presence is not Presence.REGISTERED]
    names = ", ".join(map(str, missing[:20])) + (", ..." if len(missing) > 20 else "")
    text = f"{len(missing)} of {len(members)} workers (number {names}) did not register within {limit_s:g} s"
    return RequestTimeout(f"job {job!r}: {text}: did they start?")


def readers_of(plan: Plan, partition: Partition, worker: int) -> list[int]:
    """Return the workers with tasks that read a partition of this worker.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> from headgate.graph.plan import Partition
    >>> vertices = Vertex(0, "words", 2, 128, (), inputs=0), Vertex(1, "count", 2, 128, ())
    >>> exchange = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH))
    >>> plan = Plan("1", "word count", vertices, (exchange,), workers=2, settings=Settings())
    >>> readers_of(plan, Partition(vertex=0, output=0, subtask=1), worker=1)
    [0, 1]
    >>> readers_of(plan, Partition(vertex=0, output=0, subtask=1), worker=0)
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: worker 0 has no Partition(vertex=0, output=0, subtask=1)

    Raises:
        RemoteProtocolError: that worker has no such partition.
    """
    if 0 <= partition.vertex < len(plan.vertices):
        producer, outputs = plan.vertex(partition.vertex), plan.outputs(partition.vertex)
        workers = producer.workers(plan)
        has_task = 0 <= partition.subtask < len(workers) and workers[partition.subtask] == worker
        if has_task and 0 <= partition.output < len(outputs):
            exchange = outputs[partition.output]
            consumer = plan.vertex(exchange.consumer)
            subtasks = exchange.consumers_of(partition.subtask, producer.parallelism, consumer.parallelism)
            return sorted({consumer.workers(plan)[one] for one in subtasks})
    raise RemoteProtocolError(f"worker {worker} has no {partition}")


def _ignore(_: object) -> None: ...
