"""TLS over any stream, for connections beyond loopback.

A `TlsStream` is the handler of a stream of ciphertext, and the stream of a connection.
It does no I/O of its own (memory BIOs), so it runs over sockets, over the in-process pipe and in the simulator. The
connection's handshake runs inside, and compares the worker that it names with `peer_worker`. Called on the network
thread only; the caller keeps time limits, except that OpenSSL compares certificates with the system's clock.

Invariants: only decrypted and verified bytes are passed on; at most `HIGH_BYTES` and one record of
ciphertext wait for the lower stream; the user's `lost` is called once, from the lower stream's `lost` (then it is not
inside a call of the user) or from `post`; only a `close_notify` makes the peer's end an orderly one.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from headgate.errors import AuthError, LocalProtocolError, TransportError
from headgate.net.certificates import explain_tls_error, worker_name, worker_of
from headgate.net.stream import PathStatistics, Stream, StreamHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ssl import SSLContext

    Post = Callable[[Callable[[], object]], object]

__all__ = ["HIGH_BYTES", "LOW_BYTES", "TlsStream"]

HIGH_BYTES: Final = 256 * 1024
"""No bytes are taken while at least so much ciphertext waits for the lower stream."""

LOW_BYTES: Final = 64 * 1024
"""A user whose bytes were refused gets `writable` when no more than this waits."""

_RECORD_BYTES: Final = 16 * 1024  # the most that one TLS record holds
_READ_BYTES: Final = 4 * _RECORD_BYTES  # the most plaintext of one `received`


class _State(Enum):
    """The state of a stream. No state leads back to an earlier one; those after OPEN lead to ENDED only."""

    NEW = "not started"
    HANDSHAKE = "both sides prove themselves"
    OPEN = "bytes move"
    DRAINING = "the lower stream is over; the user has paused, so received bytes are still to be passed on"
    CLOSING = "the user has closed; ciphertext and close_notify wait for the lower stream"
    CLOSED = "the user has closed or aborted; so is the lower stream"
    PEER_CLOSED = "the peer has sent close_notify; the lower stream is closed"
    FAILED = "TLS has failed; the lower stream is aborted"
    ENDED = "the user's `lost` was called"


class _Next(Enum):
    """What follows in the received ciphertext."""

    NOTHING = "no whole record was received"
    MORE = "perhaps another record"
    CLOSE_NOTIFY = "the peer's orderly end"


class TlsStream(Stream, StreamHandler):
    """A stream inside TLS, over a stream that is not started yet: `start` starts both, and the handshake.

    `reach` is the worker that a client expects at the other end; None: this is the server's side. Writes are refused
    until the end of the handshake; then `writable` is called. During the handshake a pause of reading has no effect.

    >>> from datetime import UTC, datetime
    >>> from unittest.mock import Mock
    >>> from headgate.ids import JobId
    >>> from headgate.net.certificates import Authority, client_context
    >>> context = client_context(Authority(JobId("etl"), datetime.now(UTC)).issue(0))
    >>> wire = Mock(); wire.write.side_effect = lambda pieces: sum(map(len, pieces))
    >>> stream = TlsStream(wire, context, post=print, reach=1)
    >>> stream.start(handler := Mock()); wire.write.called  # the handshake has begun
    True
    >>> stream.write([b"too early"]), stream.peer_worker
    (0, None)
    >>> stream.received(memoryview(b"HTTP/1.1 400 Bad Request"))  # that is no TLS
    >>> wire.abort.called, handler.received.called
    (True, False)
    """

    def __init__(self, lower: Stream, context: SSLContext, post: Post, *, reach: int | None = None) -> None:
        self._lower = lower
        self._post = post
        self._incoming = ssl.MemoryBIO()  # ciphertext that is not decrypted yet
        self._outgoing = ssl.MemoryBIO()  # ciphertext that was not offered to the lower stream yet
        self._offered = memoryview(b"")  # ciphertext that was offered, and not taken yet
        name = None if reach is None else worker_name(reach)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        self._handler: StreamHandler
        self._state = _State.NEW
        self._error: Exception | None = None  # the reason of FAILED
        self._peer_worker: int | None = None
        self._plaintext = memoryview(b"")  # decrypted bytes; allocated after the handshake, so not for strangers
        self._record = memoryview(b"")  # small pieces that become one record; likewise
        self._paused = False  # by the user
        self._lower_full = False  # the lower stream took less than it was offered; its `writable` follows
        self._refused = False  # this stream took less than it was offered; the user's `writable` follows

    @property
    def peer(self) -> str:
        """The peer's address, for error texts."""
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
        self._continue_handshake()
        self._flush()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; return how many were taken, in order: they are encrypted, and kept for the lower stream."""
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
        """Stop calling `received`, also with bytes that have arrived. May be repeated."""
        self._paused = True
        if self._state is _State.OPEN:
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Call `received` again, through `post` if bytes have arrived. May be repeated."""
        if self._paused:
            self._paused = False
            if self._incoming.pending:
                # The lower stream resumes after these are passed on, or each pause and resume would add to them.
                self._post(self._resumed)
            elif self._state is _State.OPEN:
                self._lower.resume_reading()

    def close(self) -> None:
        """Send the bytes that were taken and close_notify, then end; `lost` follows. Nothing more is received."""
        if self._state in (_State.NEW, _State.HANDSHAKE):
            self._state = _State.CLOSED
            self._lower.close()
        elif self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._send_close_notify()
            self._flush()
        elif self._state is _State.DRAINING:
            self._state = _State.CLOSED
            self._post(lambda: self._end(None))

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

    # Called by the lower stream.

    def received(self, data: memoryview) -> None:
        """Receive ciphertext."""
        if self._state in (_State.HANDSHAKE, _State.OPEN):
            self._incoming.write(data)
            if self._state is _State.HANDSHAKE:
                self._continue_handshake()
            self._pass_on()

    def writable(self) -> None:
        """Continue writing: the lower stream takes bytes again."""
        self._lower_full = False
        self._flush()
        self._call_writable()

    def lost(self, error: Exception | None) -> None:
        """Note the end of the lower stream; its meaning depends on the state."""
        if self._state is _State.OPEN and error is None and self._incoming.pending:
            self._state = _State.DRAINING  # the received bytes may end with a close_notify
            self._post(self._resumed)
        elif self._state is _State.OPEN and error is None:
            self._end(self._truncation_error())
        elif self._state is _State.HANDSHAKE and error is None:
            self._end(TransportError("the connection ended during the TLS handshake", peer=self.peer))
        elif self._state is _State.PEER_CLOSED:
            self._end(None)  # whether or not the peer has received our close_notify
        elif self._state is _State.FAILED:
            self._end(self._error)
        else:
            self._end(error)

    # Implementation.

    def _continue_handshake(self) -> None:
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
        self._call_writable()

    def _resumed(self) -> None:
        if not self._paused:
            self._pass_on()
            if self._state is _State.OPEN and not self._paused:
                self._lower.resume_reading()

    def _pass_on(self) -> None:
        """Decrypt received bytes and pass them to the user, until none are left or the user pauses."""
        while self._reads() and not self._paused:
            filled, found = self._decrypt()
            if filled:  # also before an error: these bytes were verified, and precede it
                self._handler.received(self._plaintext[:filled])
            if not self._reads():
                return  # the user has closed meanwhile
            if found is _Next.CLOSE_NOTIFY:
                self._peer_closed()
            elif isinstance(found, Exception):
                self._fail(found)
            elif found is _Next.NOTHING:
                if self._state is _State.DRAINING:
                    self._end(self._truncation_error())
                break
        self._flush()  # TLS's own records: of its handshake, or an answer

    def _decrypt(self) -> tuple[int, _Next | Exception]:
        """Fill the buffer with whole records. Return the number of bytes, and what follows them."""
        filled = 0
        try:
            while filled <= _READ_BYTES - _RECORD_BYTES:
                # It returns bytes only when it is not given a buffer, whatever its type says.
                count = cast("int", self._tls.read(_RECORD_BYTES, self._plaintext[filled:]))
                if not count:
                    return filled, _Next.CLOSE_NOTIFY
                filled += count
        except ssl.SSLWantReadError:
            return filled, _Next.NOTHING
        except ssl.SSLError as error:
            return filled, explain_tls_error(error, self.peer)
        return filled, _Next.MORE

    def _records(self, pieces: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
        """Yield the pieces as full records, the last one as it is: a record costs a call and 22 bytes.

        Each record is valid until the next.
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
        """Offer ciphertext to the lower stream until it is full; after the last bytes of a close, close it."""
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

    def _call_writable(self) -> None:
        if self._refused and self._state is _State.OPEN and self._waiting_bytes() <= LOW_BYTES:
            self._refused = False
            self._handler.writable()

    def _send_close_notify(self) -> None:
        with suppress(ssl.SSLError):  # raised because the peer's close_notify has not arrived; it is not waited for
            self._tls.unwrap()

    def _peer_closed(self) -> None:
        if self._state is _State.DRAINING:
            self._end(None)
        else:
            self._send_close_notify()
            self._flush()
            self._state = _State.PEER_CLOSED
            self._lower.close()  # the ciphertext that waits for it is dropped: the peer reads no more

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ssl.SSLError):
            error = explain_tls_error(error, self.peer)
        if self._state is _State.DRAINING:
            self._end(error)
        else:
            self._flush()  # the alert with the reason, if there is room for it
            self._state = _State.FAILED
            self._error = error
            self._lower.abort()

    def _end(self, error: Exception | None) -> None:
        assert self._state is not _State.ENDED, "lost is called once"
        self._state = _State.ENDED
        self._offered = self._plaintext = self._record = memoryview(b"")
        self._handler.lost(error)

    def _truncation_error(self) -> TransportError:
        return TransportError("the connection ended without TLS's close_notify: it may be cut off", peer=self.peer)
