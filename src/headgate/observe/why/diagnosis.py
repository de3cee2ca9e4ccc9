"""The answer of `why` as data: the task that limits a pipeline, the cause, the evidence, and one thing to try."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cause", "Diagnosis"]


class Cause(StrEnum):
    """The limit of a pipeline."""

    NONE = "none"  # the job has no bottleneck
    CPU = "cpu"  # the work of an operator
    WAITING = "waiting"  # an operator waits in user code: I/O, locks, sleep
    HOT_KEY = "hot-key"  # one key has more records than one task can process
    SKEW = "skew"  # one task has more than its share of the records, and no single key explains it
    BUFFERS = "buffers"  # too few buffers, or credits, for the round trip
    NETWORK = "network"  # a connection accepts no more bytes
    SINK = "sink"  # the last operator: the system that it writes to
    SOURCE = "source"  # the source reads no more: all other tasks wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a pipeline is as fast as it is; `print` shows it as text.

    >>> found = Diagnosis(cause=Cause.CPU, vertex=1, operator="map(slow)", subtask=3, summary="map(slow) is busy")
    >>> found.cause, found.location
    (<Cause.CPU: 'cpu'>, 'map(slow), subtask 3')
    """

    cause: Cause
    vertex: int | None = None
    operator: str = ""
    subtask: int | None = None  # None: all subtasks alike
    exchange: int | None = None  # if the cause is in an exchange
    key: str | None = None  # of HOT_KEY
    share: float | None = None  # of HOT_KEY: the key's share of all records
    function: str | None = None  # of CPU and WAITING: the user's function and line with the most samples
    summary: str  # one sentence
    evidence: tuple[str, ...] = ()
    advice: str = ""  # one thing to try
    at_ms: int = 0

    @property
    def location(self) -> str:
        """Return the operator and the subtask in words."""
        where = self.operator or ("the job" if self.vertex is None else f"vertex {self.vertex}")
        return where if self.subtask is None else f"{where}, subtask {self.subtask}"

    def __str__(self) -> str:
        """Return the diagnosis as lines of plain text for a terminal."""
        from headgate.observe.why.text import render  # noqa: PLC0415 - `text` imports this module

        return render(self)
