"""What `why` answers: which task holds a pipeline back, the limit that it meets, the evidence, and one thing to try."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cause", "Diagnosis"]


class Cause(StrEnum):
    """The limit that a pipeline meets.

    >>> Cause("hot-key") is Cause.HOT_KEY
    True
    """

    NONE = "none"  # nothing holds it back
    CPU = "cpu"  # an operator's own work
    WAITING = "waiting"  # an operator waits in user code: I/O, locks, sleep
    HOT_KEY = "hot-key"  # one key has more records than one task can take
    SKEW = "skew"  # one task gets more than its share, and no single key is why
    BUFFERS = "buffers"  # too few buffers, or credits, for the round trip
    NETWORK = "network"  # a connection takes no more
    SINK = "sink"  # the last operator: what it writes to
    SOURCE = "source"  # the source gives no more: everybody else waits for it


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
    subtask: int | None = None  # None: all of them alike
    exchange: int | None = None  # where the limit is one of an exchange
    key: str | None = None  # of HOT_KEY
    share: float | None = None  # of HOT_KEY: of all records
    function: str | None = None  # of CPU and WAITING: the user's hot function and line
    summary: str  # one sentence
    evidence: tuple[str, ...] = ()
    advice: str = ""  # one thing to try
    at_ms: int = 0

    @property
    def location(self) -> str:
        """The place in words."""
        where = self.operator or ("the job" if self.vertex is None else f"vertex {self.vertex}")
        return where if self.subtask is None else f"{where}, subtask {self.subtask}"

    def __str__(self) -> str:
        """All of it, as lines of plain text for a terminal."""
        from headgate.observe.why_text import render  # noqa: PLC0415 - only who prints it pays for it

        return render(self)
