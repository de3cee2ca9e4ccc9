"""OperatorPlace: what an operator may use of the subtask it runs in.

The worker makes one for each operator of a subtask, before `open`. Used on the task's thread, except for `wake`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.functions.place import Place
from headgate.meters import TaskTimer
from headgate.task.task_events import TaskEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.record.element import UserEvent
    from headgate.task.batch.spill import SpillSpace

__all__ = ["OperatorPlace"]


@dataclass(frozen=True, slots=True)
class OperatorPlace(Place):
    """The place of an operator: what user code may use, and the parts of the task that only operators use."""

    wake: Callable[[], object] = field(default=lambda: None)
    """Makes the task's loop call `Operator.on_wake`; may be called from any thread."""
    task_events: TaskEvents = field(default_factory=TaskEvents)
    """Sends events to the task's producers, and dispatches those of its consumers."""
    spill: SpillSpace | None = None
    """Disk space in BATCH mode for data that does not fit in memory; None: all data stays in memory."""
    timer: TaskTimer = field(default_factory=lambda: TaskTimer(lambda: 0))
    """Measures the task's time: an operator that blocks enters the state it blocks in, and leaves it afterwards."""

    def send_task_event(self, name: str, payload: bytes = b"") -> None:
        """Send an event to every task that this one reads from."""
        self.task_events.send(name, payload)

    def on_task_event(self, name: str, handler: Callable[[UserEvent], object]) -> None:
        """Call `handler` on the task's thread with each event of that name."""
        self.task_events.on(name, handler, operator=self.operator, subtask=self.subtask)
