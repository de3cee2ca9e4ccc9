"""Task events of one task: those it sends to its producers, and those it receives from its consumers (K4).

The worker makes one for each task. The task's thread calls `run_due`; it, or the thread of a user's coroutines, calls
`send` and `on`. The thread that delivers an event, the network's or the consumer's, calls `receive`, which only stores
the event and wakes the task's loop: handlers run on the task's thread, between two batches.

Invariants: the events of a channel are sent and handled in the order of the `send` calls. At most 1,000 events are
queued for the handlers, and 1,000 on each channel for the producer: a further one drops the oldest, which is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from headgate.errors import Cancelled, UserCodeError
from headgate.record.element import UserEvent, user_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.record.element import Event

    Handler = Callable[[UserEvent], object]

__all__ = ["ProducerChannel", "TaskEvents"]

_MAX_QUEUED: Final = 1000
_DROPPED_COUNTER: Final = "task_events_dropped"


class ProducerChannel(Protocol):
    """One channel of the task's input, as the route to its producer."""

    @property
    def ready(self) -> bool:
        """True if the producer's worker is known, and the connection's queue of events is not full."""
        ...

    def send_task_event(self, event: Event) -> None:
        """Send an event to the producer. Raises Cancelled if the channel is released."""
        ...


class TaskEvents:
    """Sends and dispatches the task events of one task; `counters` are the task's.

    >>> events = TaskEvents(subscribe=lambda name, receive: receive(UserEvent(name, b"half")))
    >>> events.on("slower", print, operator="read", subtask=0)
    >>> events.run_due()
    UserEvent(name='slower', payload=b'half')
    """

    def __init__(
        self,
        producers: Sequence[ProducerChannel] = (),
        *,
        subscribe: Callable[[str, Callable[[Event], object]], object] = lambda _name, _receive: None,
        wake: Callable[[], object] = lambda: None,
        counters: dict[str, int] | None = None,
    ) -> None:
        self._producers = producers
        self._subscribe = subscribe
        self._wake = wake
        self._counters = {} if counters is None else counters
        self._handlers: dict[str, list[tuple[Handler, str, int]]] = {}
        self._sending = threading.Lock()  # keeps the events of a channel in order; acquired before the exchange lock
        self._received: deque[UserEvent] = deque()
        self._unsent: dict[ProducerChannel, deque[UserEvent]] = {}  # only channels that were not ready

    @property
    def due(self) -> bool:
        """True if there are events to handle or to send."""
        return bool(self._received or self._unsent)

    def send(self, name: str, payload: bytes = b"") -> None:
        """Send an event to every task that this task reads from; queue it for channels that are not ready yet.

        Raises:
            TypeError, ValueError: See `user_event`.
        """
        event = user_event(name, payload)
        with self._sending:
            for channel in self._producers:
                if channel in self._unsent or not channel.ready:
                    self._enqueue(self._unsent.setdefault(channel, deque()), event)
                else:
                    self._send(channel, event)

    def on(self, name: str, handler: Handler, *, operator: str, subtask: int) -> None:
        """Call `handler` with each event of a name; its errors become UserCodeError of `operator` and `subtask`.

        Raises:
            Cancelled: The job was cancelled meanwhile.
        """
        user_event(name)  # raises if the name is not allowed
        known = self._handlers.setdefault(name, [])
        known.append((handler, operator, subtask))
        if len(known) == 1:
            self._subscribe(name, self.receive)

    def receive(self, event: Event) -> None:
        """Store an event for the task's thread, and wake it. Called from any thread."""
        if isinstance(event, UserEvent):
            self._enqueue(self._received, event)
            self._wake()

    def run_due(self) -> None:
        """Send the queued events of channels that are ready now, and handle the received events."""
        with self._sending:
            for channel in [one for one in self._unsent if one.ready]:
                for event in self._unsent.pop(channel):
                    self._send(channel, event)
        for _ in range(len(self._received)):  # a bound: other threads may append without end
            self._handle(self._received.popleft())

    def _handle(self, event: UserEvent) -> None:
        for handler, operator, subtask in self._handlers.get(event.name, ()):
            try:
                handler(event)
            except (Cancelled, UserCodeError):
                raise
            except BaseException as error:
                raise UserCodeError.of(error, operator=operator, subtask=subtask) from error

    def _enqueue(self, queue: deque[UserEvent], event: UserEvent) -> None:
        queue.append(event)
        if len(queue) > _MAX_QUEUED:
            queue.popleft()
            self._counters[_DROPPED_COUNTER] = self._counters.get(_DROPPED_COUNTER, 0) + 1

    @staticmethod
    def _send(channel: ProducerChannel, event: UserEvent) -> None:
        with suppress(Cancelled):  # the producer has ended, or this task is being cancelled
            channel.send_task_event(event)
