"""A stream whose two ends prove that they belong to one job: handshake, time limits, write queue, one cause at the end.

`net.Connection` (records between workers) and `control.ControlLink` (messages between a worker and the coordinator)
derive from `AuthenticatedStream` and add the meaning of the bytes. The stream below calls `received`, `writable` and
`lost`, on the network thread.

A connection ends in one of four ways, and `_on_end` gets the cause once:

| event | cause | stream below |
| --- | --- | --- |
| the stream ends and nothing is left to transfer (`_is_complete`) | None | has ended |
| the stream ends during the handshake | TransportError, and `cut_short` is True | has ended |
| the stream ends at another time | its error, or a TransportError | has ended |
| `fail`: bad bytes, a time limit, a decision of this side | the error | closed if all is written, else aborted |

Invariants: no byte reaches `_receive` before the peer has proved itself; `_on_end` is called once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from headgate.errors import AuthError, HeadgateError, InvariantViolated, TransportError
from headgate.net.time_limits import ConnectionOptions, TimeLimits
from headgate.wire import Outgoing
from headgate.wire.states import CONNECTION_STEPS, ConnectionState, ConnectionStep, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.outbox import Outbox
    from headgate.net.stream import Stream, Transport
    from headgate.wire.handshake import Handshake

__all__ = ["AuthenticatedStream"]

_log = logging.getLogger(__name__)

_PROVING, _LOST = ConnectionState.PROVING, ConnectionState.LOST


class AuthenticatedStream(ABC):
    """One end of a connection between two members of a job. `Connection` and `ControlLink` derive from it."""

    kind: ClassVar[str]
    """What errors and log lines call it."""
    unfinished: ClassVar[str]
    """The text of the error when the peer ends the stream too early."""

    def __init__(
        self,
        stream: Stream,
        handshake: Handshake,
        transport: Transport,
        options: ConnectionOptions,
        outbox: Outbox,
        *,
        must_be_read: bool,
        certified: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Start the handshake's time limit; `start` sends the first bytes.

        Args:
            stream: The bytes, perhaps inside TLS; not started.
            handshake: This side's half.
            transport: Its clock and timers.
            options: Time limits.
            outbox: The write queue, with the marks of this kind of connection.
            must_be_read: True if a peer that accepts no bytes for the idle time-out has failed.
            certified: Returns the worker that the peer's certificate names; None without TLS.
        """
        self.peer = stream.peer
        """The peer's address, for error texts."""
        self.worker = -1
        """The peer's number, once it has proved itself."""
        self.state = ConnectionState.PROVING
        self.cut_short = False
        """True if the peer ended the stream during the handshake, without a reason."""
        self._stream = stream
        self._handshake = handshake
        self._transport = transport
        self._outbox = outbox
        self._certified = certified
        self._limits = TimeLimits(self, outbox, transport, options, must_be_read=must_be_read)

    def start(self) -> None:
        """Begin the handshake."""
        self._stream.start(self)
        self._put(self._handshake.data_to_send())
        self.flush()

    @property
    def challenged(self) -> bool:
        """True once the server's challenge was sent, or received."""
        return self._handshake.challenged

    # Called by the stream.

    def received(self, data: memoryview) -> None:
        """Handle bytes from the peer. An error ends the connection."""
        try:
            if self.state is _PROVING:
                data = memoryview(self._prove(data))
            if data and self.state is not _LOST:
                self._receive(data)
        except HeadgateError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - a bug of headgate must not leave tasks blocked for ever
            _log.exception("%s with %s: a bug in headgate", self.kind, self.peer)
            self.fail(InvariantViolated(f"{self.kind} with {self.peer}: {type(error).__name__}: {error}"))

    def writable(self) -> None:
        """Continue to write: the stream accepts bytes again."""
        self._outbox.unblock()
        self.flush()

    def lost(self, error: Exception | None) -> None:
        """End the connection: the stream has ended, with an error or (None) in order."""
        if self._is_complete(error):
            self._end(None)
        elif self.state is _PROVING and (error is None or isinstance(error, TransportError)):
            why = "" if error is None else f" ({error})"
            text = f"the peer ended the connection during the handshake: is it of this job and attempt?{why}"
            self.cut_short = True
            self._end(TransportError(text, peer=self.peer))
        elif isinstance(error, HeadgateError):
            self._end(error)
        else:
            self._end(TransportError(self.unfinished if error is None else str(error), peer=self.peer))

    def _prove(self, data: memoryview) -> bytes:
        """Give bytes to the handshake. Return the bytes behind its last frame."""
        handshake = self._handshake
        try:
            rest = handshake.receive(data)
        finally:
            self._put(handshake.data_to_send())
        if handshake.duplicate:
            self._on_duplicate()
        self.flush()
        if not handshake.done:
            return b""
        if self._certified() not in {None, handshake.peer_worker}:
            raise AuthError("the peer's certificate is that of another worker")
        self._check_role(handshake.peer_worker)
        self._move(ConnectionStep.PROVED, ours=True)
        self.worker = handshake.peer_worker
        self._limits.begin_idle()
        self._on_proved()
        return rest

    # Ending.

    def fail(self, error: HeadgateError) -> None:
        """End the connection with an error. The bytes in the outbox are still sent if the stream accepts them now.

        A stream that does not accept them, or has none to send, is aborted: its socket is closed at once.
        """
        if self.state is _LOST:
            return
        outbox = self._outbox
        owed = outbox.waiting_bytes > 0
        if owed and not outbox.blocked:
            outbox.write(self._stream)
        if owed and not outbox.waiting_bytes:
            self._stream.close()
        else:
            self._stream.abort()
        self._end(error)

    def _end(self, error: HeadgateError | None) -> None:
        if self.state is _LOST:
            return
        self._move(ConnectionStep.LOSE, ours=True)
        self._limits.cancel()
        self._outbox.drop()
        self._on_end(error)

    def _put(self, frame: bytes) -> None:
        if frame:
            self._outbox.put(Outgoing([frame], [None]))

    def _move(self, what: ConnectionStep, *, ours: bool) -> None:
        self.state = step(CONNECTION_STEPS, self.state, what, f"{self.kind} with {self.peer}", ours=ours)

    # The part of `Connection` and `ControlLink`.

    @property
    @abstractmethod
    def reads(self) -> bool:
        """Return True unless reading has stopped; while it has, the peer's silence means nothing."""

    @property
    @abstractmethod
    def items_in(self) -> int:
        """How many pieces have arrived, whole frames or not."""

    @property
    @abstractmethod
    def frames_in(self) -> int:
        """How many whole frames have arrived."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Send something: this side was silent for a third of the idle time-out."""

    @abstractmethod
    def flush(self) -> None:
        """Write what the outbox holds, as far as the stream accepts it; do nothing when lost."""

    @abstractmethod
    def _on_duplicate(self) -> None:
        """The handshake found that this pair of members is connected already."""

    @abstractmethod
    def _check_role(self, worker: int) -> None:
        """Raise AuthError if a member with this number must not be at the other end."""

    @abstractmethod
    def _on_proved(self) -> None:
        """The peer has proved itself."""

    @abstractmethod
    def _receive(self, data: memoryview) -> None:
        """Handle bytes of a peer that has proved itself."""

    @abstractmethod
    def _is_complete(self, error: Exception | None) -> bool:
        """Return True if a stream that ends now, with this error, leaves nothing undone."""

    @abstractmethod
    def _on_end(self, error: HeadgateError | None) -> None:
        """Release everything and report the cause; called once, last."""
