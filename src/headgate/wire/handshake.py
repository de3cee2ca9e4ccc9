"""The handshake: both sides prove that they know the job's secret before any other byte is decoded.

    client                                    server
    HELLO(versions, worker, lane, nonce)  ->
                                          <-  CHALLENGE(version, worker, nonce)
    PROOF(mac of all so far)              ->
                                          <-  ACCEPT(mac of all so far), or DUPLICATE(mac)

Each mac is HMAC-SHA256 over every byte sent before it, both ways, under a key derived from the secret for one role, one
job and one attempt: a proof cannot be reflected, replayed, or used for another job or attempt. The client proves first,
so a stranger learns nothing but the version. Two workers that exchange data without credit have several connections,
numbered by `lane` (`net.peers`); the client sends the number. Sans-IO: bytes in, bytes out; the caller provides nonces
and the time limit.

Invariants: a handshake frame has a fixed size of at most 128 bytes; every failure is the same AuthError, except that
two peers without a common version learn that; only a finished handshake makes an `AuthenticatedPeer`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from headgate.errors import AuthError, LocalProtocolError, RemoteProtocolError
from headgate.record.peer import AuthenticatedPeer, _vouch
from headgate.wire.codec import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.ids import AttemptId, JobId

__all__ = [
    "MAX_HANDSHAKE_BYTES",
    "MAX_LANES",
    "NONCE_BYTES",
    "SECRET_BYTES",
    "VERSIONS",
    "ClientHandshake",
    "Handshake",
    "ServerHandshake",
]

VERSIONS: Final = (1, 1)
"""The oldest and the newest version of the protocol that this code supports."""

NONCE_BYTES: Final = 32
SECRET_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 128

MAX_LANES: Final = 1024
"""The most connections that two workers keep: see `net.peers`."""

_MAC_BYTES: Final = 32

_HELLO, _CHALLENGE, _PROOF, _ACCEPT, _NO_VERSION, _DUPLICATE = 1, 2, 3, 4, 5, 6
_HELLO_BODY = struct.Struct(f"<4sBBIH{NONCE_BYTES}s")  # magic, oldest and newest version, worker, lane, nonce
_CHALLENGE_BODY = struct.Struct(f"<BI{NONCE_BYTES}s")  # version, worker, nonce
_NO_VERSION_BODY = struct.Struct("<BB")  # oldest and newest version
_MAGIC: Final = b"HDGT"
_NOT_NEEDED: Final = b"duplicate"  # so that this proof is not the one of ACCEPT
_SIZES: Final = {
    _HELLO: _HELLO_BODY.size,
    _CHALLENGE: _CHALLENGE_BODY.size,
    _PROOF: _MAC_BYTES,
    _ACCEPT: _MAC_BYTES,
    _NO_VERSION: _NO_VERSION_BODY.size,
    _DUPLICATE: _MAC_BYTES,
}
assert max(_SIZES.values()) + PREFIX.size <= MAX_HANDSHAKE_BYTES, "handshake frames are small"


class _State(Enum):
    """The frame that a side expects next."""

    HELLO = _HELLO
    CHALLENGE = _CHALLENGE
    PROOF = _PROOF
    ACCEPT = _ACCEPT
    DONE = "done"
    FAILED = "failed"


_OVER = (_State.DONE, _State.FAILED)


class Handshake(ABC):
    """The part of both sides: the keys, the transcript, and decoding."""

    _first: _State

    def __init__(self, secret: bytes, job: JobId, attempt: AttemptId, *, worker: int, nonce: bytes) -> None:
        if len(secret) != SECRET_BYTES or len(nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"a handshake takes a secret of {SECRET_BYTES} and a nonce of {NONCE_BYTES} bytes")
        self._client_key = _derived(secret, b"client", job, attempt)
        self._server_key = _derived(secret, b"server", job, attempt)
        self._worker = worker
        self._nonce = nonce
        self._state = self._first
        self._transcript = b""  # every byte of the frames so far, both ways
        self._received = bytearray()
        self._to_send = b""
        self.version = 0
        """The version agreed on."""
        self.peer_worker = -1
        """The number of the peer's worker, once it has proved itself."""
        self.lane = 0
        """The number of this connection among those of the two workers, once the client has proved itself."""
        self.peer: AuthenticatedPeer | None = None
        """The peer, once it has proved itself."""
        self.duplicate = False
        """True if both have proved themselves, but the server's own connection to the client is used instead."""

    @property
    def done(self) -> bool:
        """True once both sides have proved themselves."""
        return self._state is _State.DONE

    @property
    def challenged(self) -> bool:
        """True once the server's challenge was sent, or received."""
        return self.version > 0

    def data_to_send(self) -> bytes:
        """Return the bytes to send, each once. Also after an error: they may contain its reason."""
        data, self._to_send = self._to_send, b""
        return data

    def receive(self, data: bytes | memoryview) -> bytes:
        """Receive bytes from the peer. Return those behind the handshake, which belong to the frames after it.

        Raises:
            AuthError: the peer did not prove itself. Always the same text.
            RemoteProtocolError: the two sides have no version in common.
        """
        if self._state is _State.FAILED:
            raise _refusal()
        self._received += data
        try:
            while self._state not in _OVER and (frame := self._next_frame()) is not None:
                self._on_frame(frame)
        except (AuthError, RemoteProtocolError):
            self._state = _State.FAILED
            self._received.clear()
            raise
        if self._state is not _State.DONE:
            return b""
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def _next_frame(self) -> bytes | None:
        """Return the next whole frame, or None. Bytes that cannot become one are refused at the first wrong byte."""
        received = self._received
        expected = self._state.value
        others = {_State.CHALLENGE: (_NO_VERSION,), _State.ACCEPT: (_DUPLICATE,)}
        allowed = (expected, *others.get(self._state, ()))
        heads = [PREFIX.pack(2 + _SIZES[kind], kind, 0) for kind in allowed]
        if not any(head.startswith(received[: PREFIX.size]) for head in heads):
            raise _refusal()
        if len(received) < PREFIX.size:
            return None
        size = PREFIX.size + _SIZES[received[4]]
        if len(received) < size:
            return None
        frame = bytes(received[:size])
        del received[:size]
        return frame

    @abstractmethod
    def _on_frame(self, frame: bytes) -> None: ...

    def _send(self, kind: int, body: bytes) -> None:
        frame = PREFIX.pack(2 + len(body), kind, 0) + body
        self._transcript += frame
        self._to_send += frame

    def _prove(self, key: bytes, also: bytes = b"") -> bytes:
        mac = HMAC(key, SHA256())
        mac.update(self._transcript + also)
        return mac.finalize()

    def _verify(self, key: bytes, frame: bytes, also: bytes = b"") -> None:
        mac = HMAC(key, SHA256())
        mac.update(self._transcript + also)
        try:
            mac.verify(frame[PREFIX.size :])  # in constant time
        except InvalidSignature:
            raise _refusal() from None
        self._transcript += frame

    def _finish(self) -> None:
        self._state = _State.DONE
        self.peer = _vouch(f"worker {self.peer_worker}")


class ClientHandshake(Handshake):
    """The side that connects; it sends first, and proves first.

    >>> from headgate.ids import AttemptId, JobId
    >>> job = (bytes(32), JobId("etl"), AttemptId(1))
    >>> client = ClientHandshake(*job, worker=0, nonce=b"c" * 32)
    >>> server = ServerHandshake(*job, worker=1, nonce=b"s" * 32)
    >>> for _ in range(2):
    ...     _ = server.receive(client.data_to_send()); _ = client.receive(server.data_to_send())
    >>> client.peer, server.peer, client.version
    (AuthenticatedPeer('worker 1'), AuthenticatedPeer('worker 0'), 1)
    """

    _first = _State.CHALLENGE

    def __init__(
        self, secret: bytes, job: JobId, attempt: AttemptId, *, worker: int, nonce: bytes, lane: int = 0
    ) -> None:
        super().__init__(secret, job, attempt, worker=worker, nonce=nonce)
        if not 0 <= lane < MAX_LANES:
            raise LocalProtocolError(f"two workers have lanes 0 to {MAX_LANES - 1}, not {lane}")
        self.lane = lane
        self._send(_HELLO, _HELLO_BODY.pack(_MAGIC, *VERSIONS, worker, lane, nonce))

    def _on_frame(self, frame: bytes) -> None:
        body = frame[PREFIX.size :]
        if frame[4] == _NO_VERSION:
            raise _no_common_version(*_NO_VERSION_BODY.unpack(body))
        if self._state is _State.CHALLENGE:
            version, self.peer_worker, _nonce = _CHALLENGE_BODY.unpack(body)
            if not VERSIONS[0] <= version <= VERSIONS[1]:
                raise _refusal()
            self.version = version
            self._transcript += frame
            self._send(_PROOF, self._prove(self._client_key))
            self._state = _State.ACCEPT
        elif frame[4] == _DUPLICATE:
            self._verify(self._server_key, frame, also=_NOT_NEEDED)
            self.duplicate, self._state = True, _State.FAILED
        else:
            self._verify(self._server_key, frame)
            self._finish()


class ServerHandshake(Handshake):
    """The side that accepts the connection; see `ClientHandshake`. It refuses a `lane` of `lanes` or more.

    `connected` returns True if a worker's connection is not needed: this side has a better one to it in that lane.

    >>> from headgate.ids import AttemptId, JobId
    >>> server = ServerHandshake(bytes(32), JobId("etl"), AttemptId(1), worker=1, nonce=bytes(32))
    >>> server.receive(b"GET / HTTP/1.1")
    Traceback (most recent call last):
    headgate.errors.AuthError: the peer did not prove that it belongs to this job
    """

    _first = _State.HELLO

    def __init__(
        self,
        secret: bytes,
        job: JobId,
        attempt: AttemptId,
        *,
        worker: int,
        nonce: bytes,
        lanes: int = 1,
        connected: Callable[[int, int], bool] | None = None,
    ) -> None:
        super().__init__(secret, job, attempt, worker=worker, nonce=nonce)
        self._lanes = lanes
        self._connected = connected

    def _on_frame(self, frame: bytes) -> None:
        if self._state is _State.HELLO:
            magic, oldest, newest, self.peer_worker, self.lane, _nonce = _HELLO_BODY.unpack(frame[PREFIX.size :])
            if magic != _MAGIC or oldest > newest:
                raise _refusal()
            self.version = min(newest, VERSIONS[1])
            if self.version < max(oldest, VERSIONS[0]):
                self._send(_NO_VERSION, _NO_VERSION_BODY.pack(*VERSIONS))
                raise _no_common_version(oldest, newest)
            if self.lane >= self._lanes:
                raise _refusal()
            self._transcript += frame
            self._send(_CHALLENGE, _CHALLENGE_BODY.pack(self.version, self._worker, self._nonce))
            self._state = _State.PROOF
        else:
            self._verify(self._client_key, frame)
            if self._connected is not None and self._connected(self.peer_worker, self.lane):
                self._send(_DUPLICATE, self._prove(self._server_key, also=_NOT_NEEDED))
                self.duplicate, self._state = True, _State.FAILED
                return
            self._send(_ACCEPT, self._prove(self._server_key))
            self._finish()


def _derived(secret: bytes, role: bytes, job: JobId, attempt: AttemptId) -> bytes:
    name = job.encode()
    info = struct.pack("<HI", len(name), attempt) + name + role
    return HKDF(algorithm=SHA256(), length=_MAC_BYTES, salt=b"headgate handshake 1", info=info).derive(secret)


def _refusal() -> AuthError:
    return AuthError("the peer did not prove that it belongs to this job")


def _no_common_version(oldest: int, newest: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the peer speaks versions {oldest} to {newest} of the protocol, this one {VERSIONS[0]} to {VERSIONS[1]}: "
        "run the same version of headgate on all workers"
    )
