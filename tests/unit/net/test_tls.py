"""TLS over streams: who may talk, what an end means, and that nothing is buffered without bound or left behind."""

import hashlib
import os
import pickle
import random
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from headgate.errors import AuthError, LocalProtocolError, TransportError
from headgate.ids import JobId
from headgate.net.certificates import (
    CLOCK_SKEW,
    LIFETIME,
    Authority,
    Credentials,
    client_context,
    server_context,
    worker_name,
    worker_of,
)
from headgate.net.tls import HIGH_BYTES, LOW_BYTES, TlsStream

pytestmark = pytest.mark.spec("N7")

NOW = datetime.now(UTC)
LONG_AGO = NOW - LIFETIME - timedelta(days=1)
RECORD_BYTES = 16 * 1024
RECORD_COST = 22  # a header of 5 bytes, the type of what is inside, and 16 to verify it


# A world to test in: calls that wait their turn, and a pipe that says what it means.


class Turns:
    """Runs what was asked for, in order."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], object]] = deque()

    def post(self, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def run(self) -> None:
        for _ in range(2_000_000):
            if not self.calls:
                return
            self.calls.popleft()()
        pytest.fail("it never comes to rest")


class End:
    """One end of a pipe: takes at most `capacity` bytes that are not delivered, and delivers `step` at a time."""

    def __init__(self, turns: Turns, step: int, capacity: int) -> None:
        self.turns, self.step, self.capacity = turns, step, capacity
        self.peer = "10.0.0.7:7077"
        self.handler = None
        self.other: End
        self.inbox = bytearray()
        self.paused = self.owes_writable = self.due = False
        self.last: tuple[Exception | None] | None = None  # what comes after the inbox
        self.over = False
        self.sent = bytearray()
        self.ways_out: list[str] = []

    def start(self, handler) -> None:
        assert self.handler is None
        self.handler = handler
        self.stir()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        data = b"".join(pieces)
        assert data, "an empty write"
        assert not self.ways_out, "a write after the end"
        assert not self.over, "a write after lost"
        assert not self.owes_writable, "a write before writable"
        room = max(0, self.capacity - len(self.other.inbox))
        self.owes_writable = len(data) > room
        data = data[:room]
        self.sent += data
        self.other.inbox += data
        self.other.stir()
        return len(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.stir()

    def close(self) -> None:
        self.finish("close", mine=None, others=None)

    def abort(self) -> None:
        self.finish("abort", mine=None, others=TransportError("connection reset", peer=self.peer))

    def finish(self, way: str, mine: Exception | None, others: Exception | None) -> None:
        first = not self.ways_out
        self.ways_out.append(way)
        if first:
            self.inbox.clear()
            self.last = (mine,)
            self.other.last = self.other.last or (others,)
            self.stir()
            self.other.stir()

    def stir(self) -> None:
        if not self.due:
            self.due = True
            self.turns.post(self.turn)

    def turn(self) -> None:
        self.due = False
        if self.handler is None or self.over or (self.paused and self.inbox):
            return
        if self.inbox:
            part = bytearray(self.inbox[: self.step])
            del self.inbox[: self.step]
            self.handler.received(memoryview(part))
            part[:] = bytes(len(part))  # a view is good during the call only
            if self.other.owes_writable and not self.other.over and not self.other.ways_out:
                self.other.owes_writable = False
                self.turns.post(self.other.tell_writable)
            self.stir()
        elif self.last:
            self.over = True
            self.handler.lost(*self.last)

    def tell_writable(self) -> None:
        if not self.over:
            self.handler.writable()


def pipe(turns: Turns, step: int = 1 << 16, capacity: int = 1 << 20) -> tuple[End, End]:
    one, other = End(turns, step, capacity), End(turns, step, capacity)
    one.other, other.other = other, one
    return one, other


class User:
    """A connection: remembers all it hears, sends all it has, and is never called from inside its own calls."""

    def __init__(self, stream: TlsStream | End) -> None:
        self.stream = stream
        self.data = bytearray()
        self.parts: list[int] = []
        self.ends: list[Exception | None] = []
        self.to_send: list[bytes] = []
        self.writables = 0
        self.inside = False
        self.on_data: Callable[[], object] = lambda: None

    def call(self, function: Callable[..., object], *args: object) -> object:
        assert not self.inside
        self.inside = True
        try:
            return function(*args)
        finally:
            self.inside = False

    def start(self) -> None:
        self.call(self.stream.start, self)

    def send(self, *pieces: bytes) -> None:
        self.to_send += pieces
        self.go_on()

    def go_on(self) -> None:
        if self.to_send:
            taken = self.call(self.stream.write, self.to_send)
            while self.to_send and taken >= len(self.to_send[0]):
                taken -= len(self.to_send.pop(0))
            if taken:
                self.to_send[0] = self.to_send[0][taken:]

    def received(self, data: memoryview) -> None:
        assert not self.inside, "received, inside a call of the user's"
        assert not self.ends, "received after lost"
        assert len(data)
        self.data += data
        self.parts.append(len(data))
        self.on_data()

    def writable(self) -> None:
        assert not self.inside, "writable, inside a call of the user's"
        assert not self.ends, "writable after lost"
        self.writables += 1
        self.go_on()

    def lost(self, error: Exception | None) -> None:
        assert not self.inside, "lost, inside a call of the user's"
        self.ends.append(error)

    def pause(self) -> None:
        self.call(self.stream.pause_reading)

    def resume(self) -> None:
        self.call(self.stream.resume_reading)

    def close(self) -> None:
        self.call(self.stream.close)

    def abort(self) -> None:
        self.call(self.stream.abort)

    @property
    def error(self) -> Exception | None:
        assert len(self.ends) == 1, f"lost came {len(self.ends)} times"
        return self.ends[0]


JOB = Authority(JobId("etl"), NOW)
OTHER_JOB = Authority(JobId("etl"), NOW)  # the same name proves nothing
WORKERS = [JOB.issue(number) for number in range(3)]
CLIENT, SERVER = client_context(WORKERS[0]), server_context(WORKERS[1])


class Pair:
    """A client, which is worker 0 and wants to reach worker 1, and a server, over a pipe."""

    def __init__(self, client=CLIENT, server=SERVER, *, reach=1, step=1 << 16, capacity=1 << 20) -> None:
        self.turns = Turns()
        self.lower_client, self.lower_server = pipe(self.turns, step, capacity)
        soon = self.turns.post
        self.client = User(TlsStream(self.lower_client, client, soon, reach=reach))
        self.server = User(TlsStream(self.lower_server, server, soon))

    def start(self) -> "Pair":
        self.client.start()
        self.server.start()
        return self

    def run(self) -> "Pair":
        self.turns.run()
        return self

    def open(self) -> "Pair":
        """Both know each other."""
        self.start().run()
        assert (self.client.stream.peer_worker, self.server.stream.peer_worker) == (1, 0)
        assert not self.client.ends
        assert not self.server.ends
        return self

    @property
    def both(self) -> tuple[User, User]:
        return self.client, self.server


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def mixed(credentials: Credentials, authority: Credentials) -> Credentials:
    """The certificate of the one, with trust in the authority of the other."""
    return Credentials(
        credentials.worker, credentials.certificate, credentials.private_key, authority=authority.authority
    )


# Bytes.


def test_both_sides_know_the_peers_worker_and_exchange_data():
    pair = Pair().open()
    pair.client.send(b"to ", b"", b"be")
    pair.server.send(b"or not")
    pair.run()
    assert (bytes(pair.server.data), bytes(pair.client.data)) == (b"to be", b"or not")
    assert pair.client.stream.peer == "10.0.0.7:7077"
    for lower in (pair.lower_client, pair.lower_server):
        assert b"to be" not in lower.sent
        assert b"or not" not in lower.sent
        assert b"etl" not in lower.sent


@pytest.mark.parametrize(
    ("step", "capacity"), [(1 << 16, 1 << 20), (1 << 18, 1 << 14), (999, 1000), (1 << 20, 1 << 20)]
)
def test_a_big_transfer_both_ways_arrives_unchanged(step, capacity):
    pair = Pair(step=step, capacity=capacity).start()
    chance = random.Random(step)
    digests = []
    for user in pair.both:
        pieces = [noise(chance.choice([0, 1, 20, 16383, 16384, 16385, 32768, 100_000]), seed) for seed in range(60)]
        digests.append(hashlib.sha256(b"".join(pieces)).digest())
        user.send(*pieces)
    pair.run()
    assert [hashlib.sha256(user.data).digest() for user in (pair.server, pair.client)] == digests
    assert not any(user.to_send for user in pair.both)


def test_byte_by_byte():
    pair = Pair(step=1).open()
    message = noise(20_000)
    pair.client.send(message)
    pair.server.send(message[::-1])
    pair.run()
    assert (pair.server.data, pair.client.data) == (message, message[::-1])
    pair.client.close()
    pair.run()
    assert [user.error for user in pair.both] == [None, None]


def test_small_pieces_share_records_and_large_ones_fill_them():
    pair = Pair().open()
    before = len(pair.lower_client.sent)
    pair.client.send(*[b"h" * 20, b"p" * 32748] * 8)  # 256 KiB: 16 records
    assert len(pair.lower_client.sent) - before == 8 * 32768 + 16 * RECORD_COST
    pair.run()
    assert len(pair.server.data) == 8 * 32768
    assert max(pair.server.parts) > RECORD_BYTES, "records are gathered for a call"


def test_memoryviews_are_pieces_too_and_may_change_after_they_were_taken():
    pair = Pair().open()
    source = bytearray(b"x" * 50_000)
    assert pair.client.call(pair.client.stream.write, [memoryview(source)[:40_000], b"end"]) == 40_003
    source[:] = bytes(len(source))
    pair.run()
    assert pair.server.data == b"x" * 40_000 + b"end"


def test_nothing_is_accepted_before_the_handshake_and_writable_is_called_after_it():
    pair = Pair()
    assert pair.client.stream.write([b"before the start"]) == 0
    pair.start()
    for user in pair.both:
        assert user.call(user.stream.write, [b"too early"]) == 0
        assert user.stream.peer_worker is None
    pair.run()
    assert [user.writables for user in pair.both] == [1, 1]
    assert pair.client.data == pair.server.data == b""


def test_writable_is_not_called_without_a_refused_write():
    assert [user.writables for user in Pair().open().both] == [0, 0]


def test_an_offer_that_is_taken_whole_owes_nothing():
    pair = Pair(capacity=5000).open()
    assert pair.client.call(pair.client.stream.write, []) == 0
    pair.client.send(noise(20_000))  # it waits, but nobody waits for it
    pair.run()
    assert len(pair.server.data) == 20_000
    assert pair.client.writables == 0


def test_ciphertext_is_bounded_when_the_lower_stream_takes_nothing():
    pair = Pair(capacity=5000).open()
    pair.lower_server.paused = True
    message = noise(1 << 20)
    pair.client.send(message)
    pair.run()
    taken = len(message) - sum(map(len, pair.client.to_send))
    records = -(-taken // RECORD_BYTES)
    waiting = taken + records * RECORD_COST - 5000
    assert HIGH_BYTES <= waiting < HIGH_BYTES + RECORD_BYTES + RECORD_COST
    assert pair.client.call(pair.client.stream.write, [b"one more"]) == 0
    assert pair.client.writables == 0
    pair.lower_server.resume_reading()
    pair.run()
    assert pair.server.data == message
    assert pair.client.writables > 1


def test_writable_comes_when_little_is_left():
    pair = Pair(step=1000, capacity=1000).open()
    left = []

    def writable() -> None:
        left.append(len(pair.client.stream._offered) + pair.client.stream._outgoing.pending)
        pair.client.go_on()

    pair.client.writable = writable
    pair.client.send(noise(1 << 20))
    pair.run()
    assert len(pair.server.data) == 1 << 20
    assert left
    assert all(LOW_BYTES - 1000 <= each <= LOW_BYTES for each in left)


# Who may talk.


def refused(pair: Pair, who: User, *texts: str) -> None:
    """`who` refuses the other, both say AuthError, and neither got a byte."""
    for user in pair.both:
        user.start()
        user.send(b"secret")
    pair.run()
    for user in pair.both:
        assert type(user.error) is AuthError, user.error
        assert "10.0.0.7:7077" in str(user.error)
        assert not user.data
    for text in texts:
        assert text in str(who.error)
    other = pair.server if who is pair.client else pair.client
    assert "does not accept this worker's certificate" in str(other.error)
    lower = pair.lower_client if who is pair.client else pair.lower_server
    assert lower.ways_out == ["abort"]


def test_a_client_of_another_job_is_refused():
    context = client_context(mixed(OTHER_JOB.issue(0), WORKERS[1]))
    pair = Pair(client=context)
    refused(pair, pair.server, "certificate of")
    assert pair.server.stream.peer_worker is None


def test_a_server_of_another_job_is_refused():
    pair = Pair(server=server_context(OTHER_JOB.issue(1)))
    refused(pair, pair.client, "certificate of")
    assert pair.client.stream.peer_worker is None


def test_two_jobs_do_not_talk_at_all():
    pair = Pair(client=client_context(OTHER_JOB.issue(0)))
    refused(pair, pair.client)


def test_an_expired_client_is_refused():
    pair = Pair(client=client_context(JOB.issue(0, now=LONG_AGO)))
    refused(pair, pair.server, "expired")


def test_an_expired_server_is_refused():
    pair = Pair(server=server_context(JOB.issue(1, now=LONG_AGO)))
    refused(pair, pair.client, "expired")


def test_a_certificate_of_the_future_is_refused():
    pair = Pair(server=server_context(JOB.issue(1, now=NOW + CLOCK_SKEW + timedelta(hours=1))))
    refused(pair, pair.client, "not yet valid")


def test_an_expired_authority_is_refused():
    authority = Authority(JobId("etl"), LONG_AGO)
    fresh = [authority.issue(number, now=NOW) for number in range(2)]
    pair = Pair(client=client_context(fresh[0]), server=server_context(fresh[1]))
    refused(pair, pair.client, "expired")


def test_a_server_that_is_another_worker_is_refused():
    pair = Pair(server=server_context(WORKERS[2]))
    refused(pair, pair.client, worker_name(1))


def test_a_client_without_a_certificate_is_refused():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=WORKERS[0].authority)
    pair = Pair(client=context)
    refused(pair, pair.server, "did not prove that it belongs to this job")


def test_a_certificate_of_the_authority_that_names_no_worker_is_refused(monkeypatch):
    monkeypatch.setattr("headgate.net.certificates.worker_name", lambda worker: f"driver-{worker}.headgate.internal")
    stray = JOB.issue(0)
    monkeypatch.undo()
    pair = Pair(client=client_context(stray)).start()
    pair.client.send(b"secret")
    pair.run()
    assert type(pair.server.error) is AuthError
    assert "names no worker" in str(pair.server.error)
    assert not pair.server.data
    assert pair.lower_server.ways_out == ["abort"]


def test_a_worker_cannot_vouch_for_another():
    """A leaf that signs a leaf: its certificate is not an authority's."""
    rogue = Authority(JobId("etl"), NOW)
    key = serialization.load_pem_private_key(WORKERS[2].private_key.encode(), password=None)
    rogue._key, rogue._certificate = key, x509.load_pem_x509_certificate(WORKERS[2].certificate.encode())
    forged = rogue.issue(0)
    chain = forged.certificate + WORKERS[2].certificate
    context = client_context(Credentials(0, chain, forged.private_key, authority=WORKERS[0].authority))
    pair = Pair(client=context)
    refused(pair, pair.server)


def plain(pair: Pair, data: bytes) -> User:
    """A peer of the server that sends just that."""
    stranger = User(pair.lower_client)
    stranger.start()
    pair.server.start()
    stranger.send(data)
    pair.run()
    return stranger


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", b"HDGT" * 20, bytes(100), b"\xff" * 100_000, noise(5000)]
)
def test_a_plaintext_peer_is_refused(data):
    pair = Pair()
    plain(pair, data)
    assert type(pair.server.error) is TransportError
    assert pair.server.error.peer == "10.0.0.7:7077"
    assert "TLS" in str(pair.server.error)
    assert not pair.server.data
    assert pair.lower_server.ways_out == ["abort"]


def test_a_plaintext_server_is_refused():
    pair = Pair()
    server = User(pair.lower_server)
    server.start()
    pair.client.start()
    server.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    pair.run()
    assert type(pair.client.error) is TransportError
    assert "TLS 1.3" in str(pair.client.error)


@pytest.mark.parametrize("old", ["client", "server"])
def test_tls_1_2_is_refused(old):
    context = client_context(WORKERS[0]) if old == "client" else server_context(WORKERS[1])
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    pair = (Pair(client=context) if old == "client" else Pair(server=context)).start().run()
    for user in pair.both:
        assert type(user.error) is TransportError
        assert "does the peer speak TLS 1.3?" in str(user.error)
        assert user.stream.peer_worker is None


def test_a_context_is_for_one_side():
    """A client that forgets to say whom it wants to reach would be a server, and that is refused."""
    with pytest.raises(ssl.SSLError):
        TlsStream(pipe(Turns())[0], CLIENT, print)
    with pytest.raises(ssl.SSLError):
        TlsStream(pipe(Turns())[0], SERVER, print, reach=1)


# Ends.


@pytest.mark.parametrize("closer", ["client", "server"])
def test_close_is_orderly_for_both_and_sends_the_accepted_bytes(closer):
    pair = Pair(step=5000, capacity=5000).open()
    one, other = pair.both if closer == "client" else reversed(pair.both)
    message = noise(200_000)
    assert one.call(one.stream.write, [message]) == len(message)
    one.close()
    one.close()
    assert one.call(one.stream.write, [b"late"]) == 0
    pair.run()
    assert other.data == message
    assert [user.error for user in pair.both] == [None, None]
    assert "abort" not in pair.lower_client.ways_out + pair.lower_server.ways_out


def test_close_waits_for_the_lower_stream():
    pair = Pair(capacity=5000).open()
    pair.lower_server.paused = True
    pair.client.send(noise(20_000))
    pair.client.close()
    pair.run()
    assert pair.lower_client.ways_out == []
    pair.lower_server.resume_reading()
    pair.run()
    assert pair.lower_client.ways_out == ["close"]
    assert len(pair.server.data) == 20_000
    assert pair.server.error is None


def test_nothing_is_received_after_close():
    pair = Pair(capacity=1000).open()
    pair.lower_server.paused = True
    pair.client.send(noise(20_000))
    pair.client.close()  # it cannot flush, so its lower stream stays open
    pair.server.send(b"late")
    pair.run()
    assert pair.client.data == b""
    assert pair.client.stream._incoming.pending == 0, "nor kept"
    pair.client.abort()
    pair.run()
    assert pair.client.error is None


def test_both_close_at_once():
    pair = Pair().open()
    pair.client.close()
    pair.server.close()
    pair.run()
    assert [user.error for user in pair.both] == [None, None]


def test_data_before_close_notify_in_one_piece_is_received():
    pair = Pair().open()
    pair.client.send(b"the last words")
    pair.client.close()
    pair.run()
    assert pair.server.data == b"the last words"
    assert pair.server.error is None


def test_the_user_may_close_inside_received():
    pair = Pair().open()
    pair.server.on_data = pair.server.stream.close
    pair.client.send(noise(200_000))
    pair.run()
    assert len(pair.server.parts) == 1
    assert [user.error for user in pair.both] == [None, None]


def test_a_bad_record_behind_a_close_inside_received_is_no_error():
    pair = Pair().open()
    pair.server.on_data = pair.server.stream.close
    pair.client.send(b"good")
    pair.client.send(b"evil")
    pair.lower_server.inbox[-1] ^= 1
    pair.run()
    assert pair.server.error is None
    assert pair.lower_server.ways_out == ["close"]


def test_a_close_notify_is_answered_and_a_failure_to_send_the_answer_is_ignored():
    pair = Pair().open()
    lower, before = pair.lower_server, len(pair.lower_server.sent)
    lower.close = lambda: lower.finish("close", mine=TransportError("broken pipe"), others=None)
    pair.client.close()
    pair.run()
    assert len(lower.sent) - before == 2 + RECORD_COST
    assert pair.server.error is None


def test_lost_is_called_after_received_has_raised():
    """The loop goes on when `received` raises; what was not handed over then is handed over at the end."""
    pair = Pair(step=1 << 18).open()
    pair.server.on_data = lambda: 1 // 0
    pair.client.send(noise(200_000))
    with pytest.raises(ZeroDivisionError):
        pair.run()
    pair.server.on_data = lambda: None
    pair.client.close()
    pair.lower_server.last = (None,)
    pair.lower_server.inbox.clear()
    pair.lower_server.stir()
    pair.run()
    assert pair.server.data == noise(200_000)
    assert "close_notify" in str(pair.server.error)


def test_an_end_without_close_notify_is_an_error():
    pair = Pair().open()
    pair.client.send(b"all of it?")
    pair.lower_client.close()
    pair.run()
    assert pair.server.data == b"all of it?"
    assert type(pair.server.error) is TransportError
    assert "close_notify" in str(pair.server.error)
    assert pair.server.error.peer == "10.0.0.7:7077"


def test_a_stream_cut_off_inside_a_record_is_an_error():
    pair = Pair(step=100).open()
    pair.client.send(noise(1000))
    pair.lower_server.inbox[-500:] = b""
    pair.lower_client.close()
    pair.run()
    assert pair.server.data == b""
    assert "close_notify" in str(pair.server.error)


def test_an_end_during_the_handshake_is_an_error():
    pair = Pair()
    pair.client.start()
    pair.lower_server.start(User(pair.lower_server))
    pair.lower_server.close()
    pair.run()
    assert type(pair.client.error) is TransportError
    assert "handshake" in str(pair.client.error)


@pytest.mark.parametrize("when", ["handshake", "open"])
def test_an_error_of_the_lower_stream_is_passed_on(when):
    pair = Pair().start()
    if when == "open":
        pair.run()
    pair.lower_client.inbox.clear()
    pair.lower_server.abort()
    pair.run()
    assert "connection reset" in str(pair.client.error)


@pytest.mark.parametrize("when", ["handshake", "open"])
@pytest.mark.parametrize("way", ["close", "abort"])
def test_the_user_ends_it(way, when):
    pair = Pair().start()
    if when == "open":
        pair.run()
    for _ in range(2):
        getattr(pair.client, way)()
        assert not pair.client.ends
    pair.run()
    assert pair.client.error is None
    if way == "abort":
        assert "reset" in str(pair.server.error)
    elif when == "open":
        assert pair.server.error is None


def test_a_changed_byte_is_an_error_after_the_bytes_before_it_are_received():
    pair = Pair().open()
    pair.client.send(b"good")
    pair.client.send(b"evil")
    pair.lower_server.inbox[-1] ^= 1
    pair.run()
    assert pair.server.data == b"good"
    assert type(pair.server.error) is TransportError
    assert pair.lower_server.ways_out == ["abort"]
    assert type(pair.client.error) is TransportError
    assert "bad record mac" in str(pair.client.error)


def test_garbage_after_the_handshake_is_an_error():
    pair = Pair().open()
    pair.lower_server.inbox += noise(3000)
    pair.lower_server.stir()
    pair.run()
    assert type(pair.server.error) is TransportError
    assert not pair.server.data


def test_a_failure_inside_a_write_is_reported_by_lost_from_the_loop(monkeypatch):
    pair = Pair().open()

    class Broken:
        def write(self, data: memoryview) -> int:
            raise ssl.SSLError(1, "broken")

    pair.client.stream._tls = Broken()
    monkeypatch.setattr("headgate.net.tls.explain_tls_error", lambda error, peer: TransportError(str(error), peer=peer))
    assert pair.client.call(pair.client.stream.write, [b"data"]) == 0
    assert not pair.client.ends
    pair.run()
    assert type(pair.client.error) is TransportError


def test_a_peer_that_closes_drops_unread_bytes():
    pair = Pair(capacity=3000).open()
    pair.lower_client.paused = True
    pair.server.send(noise(100_000))
    pair.client.close()
    pair.run()
    assert pair.server.error is None
    assert pair.lower_server.ways_out == ["close"]


def test_it_starts_once():
    pair = Pair().start()
    with pytest.raises(LocalProtocolError):
        pair.client.stream.start(pair.client)


# Pausing.


def test_nothing_is_received_while_paused_even_if_it_is_already_buffered():
    pair = Pair(step=1 << 18).open()
    message = noise(200_000)
    pair.server.on_data = pair.server.stream.pause_reading
    pair.client.send(message)
    pair.run()
    assert len(pair.server.parts) == 1
    assert pair.lower_server.paused
    for turn in range(2, 100):
        pair.server.resume()
        assert len(pair.server.parts) == turn - 1, "resume calls nobody back"
        pair.run()
        assert len(pair.server.parts) == turn, "one call for each time"
        if len(pair.server.data) == len(message):
            break
    assert pair.server.data == message
    pair.server.on_data = lambda: None
    pair.server.resume()
    pair.client.send(b"and on")
    pair.run()
    assert pair.server.data == message + b"and on"
    assert not pair.lower_server.paused


def test_repeated_pausing_does_not_pile_up_ciphertext():
    """Each resume takes one part from what is here; the lower stream must not add to it meanwhile."""
    pair = Pair(step=1 << 18, capacity=1 << 20).open()
    pair.server.on_data = pair.server.stream.pause_reading
    message = noise(3 << 20)
    pair.client.send(message)
    pair.run()
    held = []
    while len(pair.server.data) < len(message):
        held.append(pair.server.stream._incoming.pending)
        pair.server.resume()
        pair.run()
    assert max(held) <= 1 << 18
    assert pair.server.data == message


def test_pause_and_resume_inside_received():
    pair = Pair(step=1 << 18).open()

    def both() -> None:
        pair.server.stream.pause_reading()
        pair.server.stream.resume_reading()

    pair.server.on_data = both
    message = noise(600_000)
    pair.client.send(message)
    pair.run()
    assert pair.server.data == message


def test_resume_and_pause_again_before_the_loop_runs():
    pair = Pair(step=1 << 18).open()
    pair.server.on_data = pair.server.stream.pause_reading
    pair.client.send(noise(200_000))
    pair.run()
    pair.server.resume()
    pair.server.pause()
    pair.run()
    assert len(pair.server.parts) == 1
    assert pair.lower_server.paused


def test_the_handshake_goes_on_while_paused():
    pair = Pair()
    pair.start()
    for user in pair.both:
        user.pause()
        user.send(b"hello")
    pair.run()
    assert (pair.client.stream.peer_worker, pair.server.stream.peer_worker) == (1, 0)
    assert pair.client.data == pair.server.data == b""
    assert pair.lower_client.paused
    assert pair.lower_server.paused
    for user in pair.both:
        user.resume()
    pair.run()
    assert pair.client.data == pair.server.data == b"hello"


def held_back(size: int = 200_000) -> Pair:
    """The server has paused after its first part; the rest and its lower stream's end are here."""
    pair = Pair(step=1 << 18).open()
    pair.server.on_data = pair.server.stream.pause_reading
    pair.client.send(noise(size))
    pair.client.close()
    pair.run()
    assert len(pair.server.parts) == 1
    assert pair.lower_server.over
    assert not pair.server.ends
    pair.server.on_data = lambda: None
    return pair


def test_bytes_before_an_orderly_end_are_received_after_a_pause():
    pair = held_back()
    assert pair.server.call(pair.server.stream.write, [b"nobody is there"]) == 0
    pair.server.resume()
    assert not pair.server.ends
    pair.run()
    assert pair.server.data == noise(200_000)
    assert pair.server.error is None


@pytest.mark.parametrize(("change", "text"), [("cut", "close_notify"), ("garbage", "TLS failed")])
def test_bytes_before_a_bad_end_are_received_after_a_pause(change, text):
    pair = Pair(step=1 << 18).open()
    pair.server.on_data = pair.server.stream.pause_reading
    pair.client.send(noise(200_000))
    if change == "garbage":
        pair.lower_server.inbox += b"\xff" * 50
    pair.lower_client.close()
    pair.run()
    assert not pair.server.ends
    pair.server.on_data = lambda: None
    pair.server.resume()
    pair.run()
    assert pair.server.data == noise(200_000)
    assert text in str(pair.server.error)


@pytest.mark.parametrize("way", ["close", "abort"])
def test_close_or_abort_with_paused_data_calls_lost_from_the_loop(way):
    pair = held_back()
    for _ in range(2):
        getattr(pair.server, way)()
        assert not pair.server.ends
    pair.server.resume()
    pair.run()
    assert pair.server.error is None
    assert len(pair.server.parts) == 1


# Certificates.


def parsed(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def test_a_certificate_has_the_expected_extensions():
    credentials = JOB.issue(7, now=NOW)
    leaf, authority = parsed(credentials.certificate), parsed(credentials.authority)
    leaf.verify_directly_issued_by(authority)
    extensions = {
        name: {type(each.value): each for each in certificate.extensions}
        for name, certificate in (("leaf", leaf), ("authority", authority))
    }
    basic = extensions["authority"][x509.BasicConstraints]
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = extensions["authority"][x509.KeyUsage]
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)
    constraints = extensions["authority"][x509.NameConstraints]
    assert constraints.critical
    assert constraints.value.permitted_subtrees == [x509.DNSName("headgate.internal")]
    basic = extensions["leaf"][x509.BasicConstraints]
    assert (basic.critical, basic.value.ca) == (True, False)
    usage = extensions["leaf"][x509.KeyUsage]
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, False, True)
    both_ways = {x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH}
    assert set(extensions["leaf"][x509.ExtendedKeyUsage].value) == both_ways
    names = extensions["leaf"][x509.SubjectAlternativeName].value
    assert names.get_values_for_type(x509.DNSName) == ["worker-7.headgate.internal"]
    digest = hashlib.sha256(b"etl").hexdigest()
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"urn:headgate:job:{digest}"]
    for certificate in (leaf, authority):
        assert certificate.not_valid_before_utc == (NOW - CLOCK_SKEW).replace(microsecond=0)
        assert certificate.not_valid_after_utc == (NOW + LIFETIME).replace(microsecond=0)
    serials = {parsed(JOB.issue(0).certificate).serial_number for _ in range(3)}
    assert len(serials) == 3


@pytest.mark.parametrize("job", ["", "x" * 5000, "Ærlig talt, 日本語 🦀", "a\0b/../%2F", "\ud800"])
def test_any_job_name_will_do(job):
    authority = Authority(JobId(job), NOW)
    pair = Pair(client=client_context(authority.issue(0)), server=server_context(authority.issue(1)))
    pair.open()


@pytest.mark.parametrize("worker", [0, 10, 2**32 - 1])
def test_a_certificate_names_its_worker(worker):
    assert worker_of(ssl.PEM_cert_to_DER_cert(JOB.issue(worker).certificate)) == worker


@pytest.mark.parametrize("worker", [-1, 2**32])
def test_a_worker_has_a_number_that_the_wire_can_carry(worker):
    with pytest.raises(LocalProtocolError):
        JOB.issue(worker)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["worker-1.headgate.internal", "worker-2.headgate.internal"],
        ["worker-01.headgate.internal"],
        ["worker-.headgate.internal"],
        ["worker--1.headgate.internal"],
        ["worker-1.headgate.internal.example.org"],
        ["xworker-1.headgate.internal"],
        ["worker-1xheadgate.internal"],
        ["*.headgate.internal"],
        ["worker-4294967296.headgate.internal"],
        ["worker-99999999999999999999.headgate.internal"],
    ],
)
def test_a_certificate_that_does_not_name_one_worker(names):
    key = serialization.load_pem_private_key(WORKERS[0].private_key.encode(), password=None)
    certificate = parsed(WORKERS[0].certificate)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate.issuer)
        .public_key(certificate.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + LIFETIME)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, names)]), critical=False)
    signed = builder.sign(key, certificate.signature_hash_algorithm)
    with pytest.raises(AuthError):
        worker_of(signed.public_bytes(serialization.Encoding.DER))


@pytest.mark.parametrize("data", [b"", b"junk"])
def test_bytes_that_are_no_certificate_are_an_auth_error(data):
    with pytest.raises(AuthError):
        worker_of(data)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(LocalProtocolError):
        Authority(JobId("etl"), NOW.replace(tzinfo=None))


def test_contexts_take_nothing_but_this_job_and_tls_1_3():
    for context in (CLIENT, SERVER):
        assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_3
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_TICKET
        assert len(context.get_ca_certs()) == 1, "no authority of the system's"
    assert CLIENT.check_hostname
    assert not CLIENT.hostname_checks_common_name
    assert SERVER.num_tickets == 0


def test_no_session_can_be_resumed():
    pair = Pair().open()
    pair.server.send(b"tickets would come with this")
    pair.run()
    session = pair.client.stream._tls.session
    assert session is None or not session.has_ticket


def test_the_key_is_in_no_repr():
    credentials = WORKERS[0]
    body = "".join(credentials.private_key.splitlines()[1:-1])
    assert len(body) > 100
    pair = Pair()
    shown = [repr(each) for each in (credentials, [credentials], JOB, CLIENT, pair.client.stream)]
    shown += [str(credentials), f"{credentials}"]
    for text in shown:
        assert "PRIVATE" not in text
        assert not any(body[i : i + 20] in text for i in range(0, len(body), 20))
    assert shown[0] == "Credentials(worker=0)"


def test_credentials_travel_and_authorities_do_not():
    assert pickle.loads(pickle.dumps(WORKERS[0])) == WORKERS[0]
    with pytest.raises(TypeError):
        pickle.dumps(JOB)


@pytest.mark.parametrize("memfd", [True, False])
def test_the_key_is_left_in_no_file(memfd, monkeypatch, tmp_path):
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context, path):
        seen.append((path, sorted(tmp_path.iterdir()), os.stat(path).st_mode & 0o077))
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    before = set(os.listdir("/proc/self/fd"))
    client_context(WORKERS[0])
    server_context(WORKERS[1])
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(seen) == 2
    for path, files, others in seen:
        assert not os.path.exists(path)
        if memfd:
            assert files == [], "the key is in memory only"
        else:
            assert others == 0, "nobody else may read it"


# The other end is not ours: Python's own TLS sockets.


def test_a_tls_stream_works_with_tls_sockets_of_python():
    ours, theirs = socket.socketpair()
    heard = []

    def serve() -> None:
        with SERVER.wrap_socket(theirs, server_side=True) as connection:
            heard.append(worker_of(connection.getpeercert(binary_form=True)))
            while part := connection.recv(65536):
                connection.sendall(part)
            heard.append("orderly end")

    thread = threading.Thread(target=serve)
    thread.start()
    turns = Turns()
    sent = []

    class Socket(End):
        def write(self, pieces: Sequence[bytes | memoryview]) -> int:
            ours.sendall(b"".join(pieces))
            return sum(map(len, pieces))

        def close(self) -> None:
            ours.shutdown(socket.SHUT_WR)
            sent.append("close")

    lower = Socket(turns, 0, 0)
    user = User(TlsStream(lower, CLIENT, turns.post, reach=1))
    lower.turn = lambda: None
    user.start()
    message = noise(100_000)
    user.send(message)
    ours.settimeout(30)
    while len(user.data) < len(message):
        user.stream.received(memoryview(ours.recv(65536)))
    user.close()
    while ours.recv(65536):
        pass
    user.stream.lost(None)
    thread.join()
    ours.close()
    assert user.data == message
    assert user.error is None
    assert sent == ["close"]
    assert heard == [0, "orderly end"]


def test_contexts_work_on_loopback_sockets_both_ways():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = []

        def serve() -> None:
            plain_socket, _ = listener.accept()
            with SERVER.wrap_socket(plain_socket, server_side=True) as connection:
                heard.append(connection.recv(100))
                connection.sendall(b"pong")

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as plain_socket,
            CLIENT.wrap_socket(plain_socket, server_hostname=worker_name(1)) as connection,
        ):
            connection.sendall(b"ping")
            assert connection.recv(100) == b"pong"
            assert connection.version() == "TLSv1.3"
            assert connection.compression() is None
        thread.join()
    assert heard == [b"ping"]


# Chance: any mixture of all that, at any step and capacity.


@pytest.mark.parametrize("seed", range(25))
def test_random_use_loses_nothing(seed):
    chance = random.Random(seed)
    pair = Pair(step=chance.choice([1, 100, 5000, 1 << 16, 1 << 18]), capacity=chance.choice([100, 5000, 1 << 18]))
    pair.start()
    sent: dict[User, bytearray] = {user: bytearray() for user in pair.both}
    paused = dict.fromkeys(pair.both, False)
    for _ in range(60):
        user = chance.choice(pair.both)
        act = chance.choice(["send", "send", "pause", "resume", "turns"])
        if act == "send":
            pieces = [chance.randbytes(chance.choice([0, 1, 30, 3000])) for _ in range(chance.randrange(5))]
            sent[user] += b"".join(pieces)
            user.send(*pieces)
        elif act == "turns":
            for _ in range(chance.randrange(30)):
                if pair.turns.calls:
                    pair.turns.calls.popleft()()
        else:
            getattr(user, act)()
            paused[user] = act == "pause"
            size = len(user.data)
            user.on_data = lambda user=user: pytest.fail("received while paused") if paused[user] else None
            assert len(user.data) == size
    for user in pair.both:
        paused[user] = False
        user.resume()
    pair.run()
    for one, other in pairwise((*pair.both, pair.client)):
        assert other.data == sent[one]
        assert not one.to_send
    chance.choice(pair.both).close()
    pair.run()
    assert [user.error for user in pair.both] == [None, None]
