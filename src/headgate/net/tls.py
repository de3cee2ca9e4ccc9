"""TLS over any stream: what connections beyond loopback run in.

A `TlsStream` stands between a stream of ciphertext, whose handler it is, and a connection, which uses it as its stream.
It does no I/O of its own (memory BIOs), so it runs over sockets, over the in-process pipe and in the simulator. The
connection's handshake runs inside, and compares the worker that it was told with `peer_worker`. Called on the network
thread only; time limits are the caller's, except that OpenSSL holds certificates against the system's clock.

Invariants: nothing is handed over that was not decrypted and verified; at most `HIGH_BYTES` and one record of
ciphertext wait for the lower stream; the user hears `lost` once, when the lower stream is lost (then it is not inside a
call of its own) or from `call_soon`; only a `close_notify` makes the peer's end an orderly one.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from headgate.errors import AuthError, LocalProtocolError, TransportError
from headgate.net.certificates import explained, worker_name, worker_of
from headgate.net.stream import PathStatistics, Stream, StreamHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ssl import SSLContext

    CallSoon = Callable[[Callable[[], object]], object]

__all__ = ["HIGH_BYTES", "LOW_BYTES", "TlsStream"]

HIGH_BYTES: Final = 256 * 1024
"""Nothing more is taken while so much ciphertext, or more, waits for the lower stream."""

LOW_BYTES: Final = 64 * 1024
"""Who was refused is told to go on when no more than this waits."""

_RECORD_BYTES: Final = 16 * 1024  # the most that one TLS record holds
_READ_BYTES: Final = 4 * _RECORD_BYTES  # what is gathered for one `received`


class _State(Enum):
    """How far a stream is. None leads back to one before it, and those after OPEN lead to ENDED only."""

    NEW = "not started"
    HANDSHAKE = "both sides prove themselves"
    OPEN = "bytes move"
    DRAINING = "the lower stream is over; what came before is not all handed over, for the user has paused"
    CLOSING = "the user has closed; ciphertext and close_notify wait for the lower stream"
    CLOSED = "the user has closed or aborted, and so have we the lower stream"
    PEER_CLOSED = "the peer has said close_notify; we have closed the lower stream"
    FAILED = "something is wrong; we have aborted the lower stream"
    ENDED = "the user was told"


class _Found(Enum):
    """What comes next in the ciphertext that is here."""

    NOTHING = "a whole record is not here"
    MORE = "perhaps another record"
    CLOSE_NOTIFY = "the peer's orderly end"


class TlsStream(Stream, StreamHandler):
    """A stream inside TLS, over a stream that is not started yet: `start` starts both, and the handshake.

    A client says which worker it means to `reach`; without that, this is the server's side. Writes are refused until
    the handshake is done; `writable` comes then. While it lasts reading goes on, paused or not.

    >>> from datetime import UTC, datetime
    >>> from unittest.mock import Mock
    >>> from headgate.ids import JobId
    >>> from headgate.net.certificates import Authority, client_context
    >>> context = client_context(Authority(JobId("etl"), datetime.now(UTC)).issue(0))
    >>> wire = Mock(); wire.write.side_effect = lambda pieces: sum(map(len, pieces))
    >>> stream = TlsStream(wire, context, call_soon=print, reach=1)
    >>> stream.start(handler := Mock()); wire.write.called  # the handshake has begun
    True
    >>> stream.write([b"too early"]), stream.peer_worker
    (0, None)
    >>> stream.received(memoryview(b"HTTP/1.1 400 Bad Request"))  # that is no TLS
    >>> wire.abort.called, handler.received.called
    (True, False)
    """

    def __init__(self, lower: Stream, context: SSLContext, call_soon: CallSoon, *, reach: int | None = None) -> None:
        self._lower = lower
        self._call_soon = call_soon
        self._incoming = ssl.MemoryBIO()  # ciphertext that is not decrypted yet
        self._outgoing = ssl.MemoryBIO()  # ciphertext that was not offered yet,
        self._offered = memoryview(b"")  # and what is left of that which was
        name = None if reach is None else worker_name(reach)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        self._handler: StreamHandler
        self._state = _State.NEW
        self._error: Exception | None = None  # in FAILED: why
        self._peer_worker: int | None = None
        self._plaintext = memoryview(b"")  # what is decrypted goes here; made when strangers are out
        self._record = memoryview(b"")  # where small pieces become one record; likewise
        self._paused = False  # by the user
        self._lower_full = False  # it took less than it was offered, and owes us `writable`
        self._refused = False  # we took less than we were offered, and owe the user `writable`

    @property
    def peer(self) -> str:
        """Whom error texts name: an address."""
        return self._lower.peer

    @property
    def peer_worker(self) -> int | None:
        """The number of the worker that the peer's certificate names; None before the handshake is done."""
        return self._peer_worker

    def start(self, handler: StreamHandler) -> None:
        """Begin to read, and the TLS handshake; called once."""
        if self._state is not _State.NEW:
            raise LocalProtocolError(f"a TLS stream is started when it is new, not when {self._state.value}")
        self._handler = handler
        self._state = _State.HANDSHAKE
        self._lower.start(self)
        self._shake_hands()
        self._flush()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; how many of them were taken, in order: encrypted, and kept until the lower stream takes them."""
        taken = 0
        if self._state is _State.OPEN:
            try:
                for record in self._records(pieces):
                    if self._waiting_bytes() >= HIGH_BYTES:
                        self._flush()
                        if self._waiting_bytes() >= HIGH_BYTES:
                            break
                    count = self._tls.write(record)
                    assert count == len(record), "a memory BIO takes everything"
                    taken += count
            except ssl.SSLError as error:
                self._fail(error)
            self._flush()
        if taken < sum(map(len, pieces)):
            self._refused = True
        return taken

    def pause_reading(self) -> None:
        """No more `received`, also not of what is already here. May be repeated."""
        self._paused = True
        if self._state is _State.OPEN:
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Go on with `received`, from `call_soon` if something is already here. May be repeated."""
        if self._paused:
            self._paused = False
            if self._incoming.pending:
                # The lower stream goes on when that is handed over, or each pause and resume would add to it.
                self._call_soon(self._resumed)
            elif self._state is _State.OPEN:
                self._lower.resume_reading()

    def close(self) -> None:
        """Send what was taken and close_notify, then end; `lost` follows. Nothing is received any more."""
        if self._state in (_State.NEW, _State.HANDSHAKE):
            self._state = _State.CLOSED
            self._lower.close()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._say_close()
            self._flush()
        elif self._state is _State.DRAINING:
            self._state = _State.CLOSED
            self._call_soon(lambda: self._end(None))

    def abort(self) -> None:
        """End at once; `lost` follows. May be repeated."""
        if self._state is _State.DRAINING:
            self.close()
        elif self._state is not _State.ENDED:
            if self._state in (_State.NEW, _State.HANDSHAKE, _State.OPEN, _State.CLOSING):
                self._state = _State.CLOSED
            self._lower.abort()

    def path(self) -> PathStatistics:
        """See `Stream`: that of the lower stream."""
        return self._lower.path()

    # What the lower stream calls.

    def received(self, data: memoryview) -> None:
        """Ciphertext came."""
        if self._state in (_State.HANDSHAKE, _State.OPEN):
            self._incoming.write(data)
            if self._state is _State.HANDSHAKE:
                self._shake_hands()
            self._hand_over()

    def writable(self) -> None:
        """The lower stream takes bytes again."""
        self._lower_full = False
        self._flush()
        self._let_write()

    def lost(self, error: Exception | None) -> None:
        """The lower stream is over: it depends on how far we were what that means."""
        if self._state is _State.OPEN and error is None and self._incoming.pending:
            self._state = _State.DRAINING  # at the end of what is here there may be a close_notify
            self._call_soon(self._resumed)
        elif self._state is _State.OPEN and error is None:
            self._end(self._cut_off())
        elif self._state is _State.HANDSHAKE and error is None:
            self._end(TransportError("the connection ended during the TLS handshake", peer=self.peer))
        elif self._state is _State.PEER_CLOSED:
            self._end(None)  # whatever became of our own close_notify
        elif self._state is _State.FAILED:
            self._end(self._error)
        else:
            self._end(error)

    # Inside.

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            self._peer_worker = worker_of(self._tls.getpeercert(binary_form=True) or b"")
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLError, AuthError) as error:
            self._fail(error)
            return
        self._plaintext = memoryview(bytearray(_READ_BYTES))
        self._record = memoryview(bytearray(_RECORD_BYTES))
        self._state = _State.OPEN
        if self._paused:
            self._lower.pause_reading()
        self._let_write()

    def _resumed(self) -> None:
        if not self._paused:
            self._hand_over()
            if self._state is _State.OPEN and not self._paused:
                self._lower.resume_reading()

    def _hand_over(self) -> None:
        """Decrypt what is here and give it to the user, until nothing is left or the user wants no more."""
        while self._reads() and not self._paused:
            filled, found = self._decrypt()
            if filled:  # also before an error: it was verified, and came first
                self._handler.received(self._plaintext[:filled])
            if not self._reads():
                return  # the user has closed meanwhile
            if found is _Found.CLOSE_NOTIFY:
                self._peer_closed()
            elif isinstance(found, Exception):
                self._fail(found)
            elif found is _Found.NOTHING:
                if self._state is _State.DRAINING:
                    self._end(self._cut_off())
                break
        self._flush()  # what TLS itself has to say: its handshake, an answer

    def _decrypt(self) -> tuple[int, _Found | Exception]:
        """Fill the buffer with whole records, so that none is left half read: how far, and what comes next."""
        filled = 0
        try:
            while filled <= _READ_BYTES - _RECORD_BYTES:
                # It returns bytes only when it is not given a buffer, whatever its type says.
                count = cast("int", self._tls.read(_RECORD_BYTES, self._plaintext[filled:]))
                if not count:
                    return filled, _Found.CLOSE_NOTIFY
                filled += count
        except ssl.SSLWantReadError:
            return filled, _Found.NOTHING
        except ssl.SSLError as error:
            return filled, explained(error, self.peer)
        return filled, _Found.MORE

    def _records(self, pieces: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
        """The pieces as full records, the last as it comes: a record costs a call and 22 bytes, and headers are tiny.

        Each is to be used before the next is asked for.
        """
        filled = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                part = rest[: _RECORD_BYTES - filled]
                rest = rest[len(part) :]
                self._record[filled : filled + len(part)] = part
                filled += len(part)
                if filled == _RECORD_BYTES:
                    yield self._record
                    filled = 0
        if filled:
            yield self._record[:filled]

    def _reads(self) -> bool:
        return self._state in (_State.OPEN, _State.DRAINING)

    def _waiting_bytes(self) -> int:
        return len(self._offered) + self._outgoing.pending

    def _flush(self) -> None:
        """Offer ciphertext to the lower stream until it is full; close it if that was the last of it."""
        if self._state not in (_State.HANDSHAKE, _State.OPEN, _State.CLOSING):
            return
        while not self._lower_full and self._waiting_bytes():
            if not self._offered:
                self._offered = memoryview(self._outgoing.read())
            self._offered = self._offered[self._lower.write((self._offered,)) :]
            self._lower_full = len(self._offered) > 0
        if self._state is _State.CLOSING and not self._waiting_bytes():
            self._state = _State.CLOSED
            self._lower.close()

    def _let_write(self) -> None:
        if self._refused and self._state is _State.OPEN and self._waiting_bytes() <= LOW_BYTES:
            self._refused = False
            self._handler.writable()

    def _say_close(self) -> None:
        with suppress(ssl.SSLError):  # it would also like to hear the peer's, which we do not wait for
            self._tls.unwrap()

    def _peer_closed(self) -> None:
        if self._state is _State.DRAINING:
            self._end(None)
        else:
            self._say_close()
            self._flush()
            self._state = _State.PEER_CLOSED
            self._lower.close()  # what still waits for it is dropped: the peer reads no more

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ssl.SSLError):
            error = explained(error, self.peer)
        if self._state is _State.DRAINING:
            self._end(error)
        else:
            self._flush()  # the alert that tells the peer why, if there is room for it
            self._state = _State.FAILED
            self._error = error
            self._lower.abort()

    def _end(self, error: Exception | None) -> None:
        assert self._state is not _State.ENDED, "lost is told once"
        self._state = _State.ENDED
        self._offered = self._plaintext = self._record = memoryview(b"")
        self._handler.lost(error)

    def _cut_off(self) -> TransportError:
        return TransportError("the connection ended without TLS's close_notify: it may be cut off", peer=self.peer)
