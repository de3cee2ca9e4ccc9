"""Place: the subtask that a source, a sink or a function runs in, and what it may use there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.record.element import user_event

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from headgate.record.element import UserEvent

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The subtask that user code runs in. Used on the task's thread.

    A job passes a `task.place.OperatorPlace`. A plain `Place` is enough to call a source or a sink in a test:

    >>> import logging
    >>> Place("write", 1, 4, 128, lambda: 0, logging.getLogger("headgate.user")).subtask
    1
    """

    operator: str  # the operator's name, as error texts show it
    subtask: int
    parallelism: int
    max_parallelism: int
    wall_ms: Callable[[], int]  # processing time
    logger: logging.Logger
    object_reuse: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    """The counters of the user's code, by name; the job's status shows them."""

    def send_task_event(self, name: str, payload: bytes = b"") -> None:
        """See `RuntimeContext.send_task_event`; for sinks, which have no such context. Outside of a job: no effect."""
        user_event(name, payload)

    def on_task_event(self, name: str, handler: Callable[[UserEvent], object]) -> None:  # noqa: ARG002 - no event
        """See `RuntimeContext.on_task_event`; for sources, which have no such context. Outside of a job: no effect."""
        user_event(name)
