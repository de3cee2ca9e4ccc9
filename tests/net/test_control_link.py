"""Control links over real sockets: what passes, what does not, and whom that costs what."""

import contextlib
import logging
import os
import random
import socket
import threading
from datetime import UTC, datetime

import msgspec
import pytest
from tests.support.coordinator import ATTEMPT, JOB, SECRET, FakeWorker, Site, is_ended, plan_of, said, shake_hands
from tests.support.streams import LOOPS, Keeper
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

import headgate
from headgate.config import load_settings
from headgate.control.connect import connect_control
from headgate.control.link import COORDINATOR, MAX_MESSAGE_BYTES, MAX_WAITING_BYTES, ControlLink
from headgate.control.messages import Cancel, Deploy, Done, Failed, Ping, Register
from headgate.control.port import ControlPort
from headgate.control.reports import WorkerReport
from headgate.coordinator import JobStatus
from headgate.errors import AuthError, HeadgateError, LocalProtocolError, RemoteProtocolError, TransportError
from headgate.ids import AttemptId, JobId
from headgate.net import Address, Authority, Identity
from headgate.net.loop import open_loop
from headgate.net.memory import MemoryTransport
from headgate.net.sockets import SocketTransport
from headgate.net.time_limits import ConnectionOptions
from headgate.wire.handshake import ClientHandshake

GOOD = msgspec.msgpack.encode(Register("127.0.0.1", 9000, 1, headgate.__version__, segments=2048))


@pytest.mark.parametrize("loop", LOOPS)
def test_messages_pass_both_ways_over_every_loop(loop):
    with Site() as site:
        first, second = site.all_workers(loop=loop)
        for worker in (first, second):
            worker.wait_heard(Deploy())
            assert repr(worker.link.authenticated_peer) == f"AuthenticatedPeer('worker {COORDINATOR}')"
            worker.say(Done())
        assert site.job.await_termination(PATIENCE_S)


@pytest.mark.parametrize("loop", ["shared", "asyncio"])
def test_messages_pass_inside_tls_with_both_sides_certified(loop):
    authority = Authority(JOB, datetime.now(UTC))
    with Site(credentials=authority.issue(COORDINATOR)) as site:
        workers = [site.worker(one, loop=loop, credentials=authority.issue(one)) for one in range(2)]
        for worker in workers:
            worker.wait_heard(Deploy())
            worker.say(Done())
        assert site.job.await_termination(PATIENCE_S)


def test_a_certificate_is_good_for_the_worker_it_names_only():
    authority = Authority(JOB, datetime.now(UTC))
    with Site(credentials=authority.issue(COORDINATOR)) as site:
        worker = site.worker(0, credentials=authority.issue(1))  # the last word of a handshake is the coordinator's
        assert isinstance(worker.wait_lost(), TransportError)
        assert site.job.status is JobStatus.CREATED
        wait_until(lambda: site.coordinator.refused == 1, "the refusal")


def test_a_coordinator_that_is_not_certified_as_one_is_refused():
    authority = Authority(JOB, datetime.now(UTC))
    with Site(credentials=authority.issue(7)) as site, pytest.raises(AuthError, match="certificate"):
        FakeWorker(site.address, 0, credentials=authority.issue(0))


def test_a_worker_without_a_certificate_does_not_get_in():
    authority = Authority(JOB, datetime.now(UTC))
    with Site(credentials=authority.issue(COORDINATOR)) as site:
        # The worker is dropped before the challenge, and connects again until its time is over: in an attempt, or not.
        with pytest.raises(TransportError, match=r"handshake|no control link within"):
            FakeWorker(site.address, 0, timeout_s=0.3)
        assert site.job.status is JobStatus.CREATED


# Strangers.

STRANGE = {
    "random bytes": random.Random(1).randbytes(1000),
    "a megabyte of zeros": bytes(1 << 20),
    "HTTP": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a message without a handshake": said(GOOD),
    "a huge length": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("garbage", STRANGE.values(), ids=STRANGE.keys())
def test_garbage_costs_only_its_own_connection(garbage, caplog):
    with Site() as site:
        first = site.worker(0)
        with site.stranger() as raw:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                raw.sendall(garbage)
            assert is_ended(raw)
        wait_until(lambda: site.coordinator.refused == 1, "the refusal")
        assert site.job.status is JobStatus.CREATED
        second = site.worker(1)
        for worker in (first, second):
            worker.wait_heard(Deploy())


@pytest.mark.parametrize(
    "wrong",
    [{"secret": bytes(32)}, {"job": JobId("another")}, {"attempt": AttemptId(ATTEMPT - 1)}],
    ids=["secret", "job", "attempt"],
)
def test_a_worker_with_the_wrong_secret_job_or_attempt_is_refused(wrong, caplog):
    with Site() as site:
        with pytest.raises(TransportError, match="is it of this job and attempt"):
            FakeWorker(site.address, 0, **wrong)
        wait_until(lambda: "did not prove that it belongs to this job" in caplog.text, "the log")
        assert SECRET.hex() not in caplog.text
        for worker in site.all_workers():
            worker.wait_heard(Deploy())


def test_only_so_many_may_be_in_their_handshake():
    settings = load_settings(code={"network.max_half_open": 1, "network.handshake_timeout": "10 min"})
    with Site(plan_of(settings=settings)) as site, site.stranger() as first:
        first.sendall(ClientHandshake(SECRET, JOB, ATTEMPT, worker=0, nonce=bytes(32)).data_to_send()[:20])
        wait_until(lambda: site.coordinator._port.half_open == 1, "the first")
        with site.stranger():
            assert is_ended(first), "the oldest goes"
            assert site.coordinator._port.half_open == 1
        wait_until(lambda: site.coordinator.refused == 2, "the end of the second")
        for worker in site.all_workers():
            worker.wait_heard(Deploy())


@pytest.mark.parametrize("number", [0, 2, COORDINATOR], ids=["there already", "none of the job's", "the coordinator"])
def test_a_second_worker_of_a_number_or_one_too_many_is_refused_and_the_first_unharmed(number):
    with Site() as site:
        first = site.worker(0)
        with pytest.raises(TransportError, match="refused by the coordinator"):
            FakeWorker(site.address, number)
        second = site.worker(1)
        for worker in (first, second):
            worker.wait_heard(Deploy())
        assert not first.losses


# Members that break the protocol: they are workers of this job, so the job is over.

BROKEN = {
    "no msgpack": said(b"\xc1"),
    "not an object": said(msgspec.msgpack.encode([1, 2, 3])),
    "no tag": said(msgspec.msgpack.encode({"host": "127.0.0.1"})),
    "unknown tag": said(msgspec.msgpack.encode({"type": "run", "code": "import os"})),
    "what the coordinator says": said(msgspec.msgpack.encode(Deploy())),
    "a wrong type": said(msgspec.msgpack.encode({"type": "register", "host": 7, "port": 1, "pid": 1, "headgate": ""})),
    "bytes after the message": said(GOOD + b"\x00"),
    "a message cut short": said(GOOD[:-1]),
    "deep nesting": said(b"\x91" * 100_000),
    "text that is not UTF-8": said(b"\x81\xa4type\xa2\xff\xff"),
    "length 0": said(b"", 0),
    "one byte too long": said(b"", MAX_MESSAGE_BYTES + 1),
    "length 2**32 - 1": said(b"", 2**32 - 1),
    "Done before Register": said(msgspec.msgpack.encode(Done())),
    "Register twice": said(GOOD) * 2,
    "Done before Deploy": said(GOOD) + said(msgspec.msgpack.encode(Done())),
    "another version": said(msgspec.msgpack.encode(Register("127.0.0.1", 9000, 1, "0.0.0"))),
    "less memory than none": said(
        msgspec.msgpack.encode(Register("127.0.0.1", 9000, 1, headgate.__version__, segments=-1))
    ),
    "a port that is none": said(msgspec.msgpack.encode(Register("127.0.0.1", 0, 1, headgate.__version__))),
}


@pytest.mark.parametrize("bad", BROKEN.values(), ids=BROKEN.keys())
def test_a_worker_that_breaks_the_protocol_loses_its_link(bad):
    with Site(plan_of(3)) as site, site.member(0) as raw:
        other = site.worker(1)
        raw.sendall(bad)
        assert is_ended(raw)
        other.wait(lambda: any(isinstance(one, Cancel) for one in other.heard), "Cancel")
        other.say(Done())
        with pytest.raises(TransportError, match="worker 0 was lost") as caught:
            site.job.await_termination(PATIENCE_S)
        assert isinstance(caught.value.__cause__, RemoteProtocolError)


def test_a_message_of_the_greatest_length_passes_in_pieces():
    report = WorkerReport(0, [])
    filler = MAX_MESSAGE_BYTES - len(msgspec.msgpack.encode({**msgspec.to_builtins(report), "x": b""})) - 3
    body = msgspec.msgpack.encode({**msgspec.to_builtins(report), "x": bytes(filler)})
    assert len(body) == MAX_MESSAGE_BYTES
    with Site(plan_of(1)) as site, site.member(0) as raw:
        raw.sendall(said(GOOD))
        data = said(body)
        for start in range(0, len(data), 60_000):
            raw.sendall(data[start : start + 60_000])
        raw.sendall(said(msgspec.msgpack.encode(Failed(1, "enough"))) + said(msgspec.msgpack.encode(Done())))
        with pytest.raises(HeadgateError, match="enough"):
            site.job.await_termination(PATIENCE_S)


def test_messages_may_come_byte_by_byte_and_behind_the_handshake():
    with Site(plan_of(1)) as site, site.stranger() as raw:
        shake_hands(raw, 0)
        for byte in said(GOOD) + said(msgspec.msgpack.encode(Ping())):
            raw.sendall(bytes([byte]))
        assert raw.recv(4) + raw.recv(100) == said(msgspec.msgpack.encode(Deploy()))
        raw.sendall(said(msgspec.msgpack.encode(Done())))
        assert site.job.await_termination(PATIENCE_S)


# The worker's end.


def test_no_coordinator_is_an_error_at_once():
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
        FakeWorker(Address("127.0.0.1", 1))


def test_connecting_to_a_silent_coordinator_times_out():
    with socket.create_server(("127.0.0.1", 0)) as mute, SocketTransport(open_loop()) as transport:
        identity = Identity(JOB, ATTEMPT, 0, SECRET)
        address = Address(*mute.getsockname())
        with pytest.raises(TransportError, match="no control link within"):
            connect_control(transport, address, identity, print, print, timeout_s=0.05)
        options = ConnectionOptions(handshake_timeout_ns=10_000_000)
        with pytest.raises(TransportError, match="handshake took more than"):
            connect_control(transport, address, identity, print, print, timeout_s=PATIENCE_S, options=options)
        wait_until(lambda: not transport.statistics().streams, "all streams closed")


def test_a_transport_that_is_closed_makes_no_link():
    transport = SocketTransport(open_loop("shared"))
    transport.start()
    transport.close()
    with pytest.raises(TransportError, match="no control link"):
        connect_control(
            transport, Address("127.0.0.1", 1), Identity(JOB, ATTEMPT, 0, SECRET), print, print, timeout_s=0
        )


def test_connecting_to_a_worker_instead_of_the_coordinator_is_an_auth_error():
    transport = MemoryTransport()
    port = ControlPort(Identity(JOB, ATTEMPT, 5, SECRET), transport, ConnectionOptions())
    address = port.listen("127.0.0.1", 0)
    lost = []
    memory_link(transport, address, lost)
    transport.run_until_idle()
    assert [type(one) for one in lost] == [AuthError]


def test_the_end_of_the_coordinator_ends_the_links():
    with Site() as site:
        worker = site.worker(0)
        wait_until(lambda: site.job.last_progress.workers[0].pid, "the registration")
        site.coordinator.close()
        assert worker.wait_lost() is None, "it was closed in order"
        assert any(isinstance(one, Cancel) for one in worker.heard)


def test_close_sends_earlier_messages_and_none_after():
    with Site(plan_of(1)) as site:
        worker = site.worker(0)
        worker.wait_heard(Deploy())
        worker.say(Done())
        worker.link.close()
        worker.link.close()
        worker.say(Failed(1, "too late"))
        assert worker.wait_lost() is None
        assert worker.link.over
        assert site.job.await_termination(PATIENCE_S)


def test_many_threads_may_send_at_once():
    heard = []
    with Site(plan_of(1)) as site:
        site.job.on_change(lambda job: heard.append(1))
        worker = site.worker(0, loop="shared")
        worker.wait_heard(Deploy())
        before = threading.Barrier(4)

        def talk():
            before.wait(PATIENCE_S)
            for _ in range(500):
                worker.say(WorkerReport(0, []))

        for thread in [Thread(talk) for _ in range(4)]:
            thread.end()
        worker.say(Done())
        assert site.job.await_termination(PATIENCE_S)
    assert len(heard) >= 2000


# In memory, where time and room are the test's.


def memory_link(transport, address, lost, **options):
    made = []

    def connected(stream):
        handshake = ClientHandshake(SECRET, JOB, ATTEMPT, worker=0, nonce=os.urandom(32))
        link = ControlLink(stream, handshake, transport, ConnectionOptions(**options), to_coordinator=True)
        link.on_lost = lost.append
        link.start()
        made.append(link)

    transport.connect(address, 10**9, connected)
    return made


def test_a_message_after_close_is_not_sent_before_the_network_thread_runs():
    transport, lost, accepted, heard = MemoryTransport(), [], [], []
    port = ControlPort(Identity(JOB, ATTEMPT, COORDINATOR, SECRET), transport, ConnectionOptions())
    port.on_proved = accepted.append
    made = memory_link(transport, port.listen("127.0.0.1", 0), lost)
    transport.run_until_idle()
    accepted[0].on_message, accepted[0].on_lost = heard.append, lambda error: None
    made[0].send(Done())
    made[0].close()
    made[0].send(Failed(1, "too late"))
    transport.run_until_idle()
    assert heard == [Done()]
    assert lost == [None]


@pytest.mark.parametrize("said_bytes", [0, 20, 50], ids=["nothing", "half of it", "hello"])
def test_a_handshake_that_takes_too_long_is_dropped_and_blocks_no_other(said_bytes):
    transport, lost, accepted = MemoryTransport(), [], []
    options = ConnectionOptions(handshake_timeout_ns=1_000)
    port = ControlPort(Identity(JOB, ATTEMPT, COORDINATOR, SECRET), transport, options, max_half_open=1)
    port.on_proved = accepted.append
    address = port.listen("127.0.0.1", 0)
    hello = ClientHandshake(SECRET, JOB, ATTEMPT, worker=0, nonce=bytes(32)).data_to_send()
    keeper = Keeper()

    def connected(stream):
        stream.start(keeper)
        stream.write([hello[:said_bytes]] if said_bytes else [])

    transport.connect(address, 10**9, connected)
    transport.run_until_idle()
    assert port.half_open == 1
    transport.advance(999)
    assert not keeper.losses
    transport.advance(1)
    assert (port.half_open, port.refused, len(keeper.losses)) == (0, 1, 1)
    memory_link(transport, address, lost)
    transport.run_until_idle()
    assert len(accepted) == 1
    assert not lost


class Pair:
    """A link with its other end, over a pipe that holds little."""

    def __init__(self, capacity_bytes=64, **options):
        self.transport = MemoryTransport(capacity_bytes)
        self.accepted, self.lost, self.heard, self.theirs_lost = [], [], [], []
        identity = Identity(JOB, ATTEMPT, COORDINATOR, SECRET)
        port = ControlPort(identity, self.transport, ConnectionOptions(**options))
        port.on_proved = self._proved
        made = memory_link(self.transport, port.listen("127.0.0.1", 0), self.lost, **options)
        self.transport.run_until_idle()
        [self.ours], [self.theirs] = made, self.accepted

    def _proved(self, link):
        link.on_message = self.heard.append
        link.on_lost = self.theirs_lost.append
        self.accepted.append(link)


def test_partial_writes_lose_nothing_and_keep_the_order():
    pair = Pair(capacity_bytes=7)
    messages = [Failed(1, f"{number} " + "x" * 100) for number in range(50)]
    for message in messages:
        pair.ours.send(message)
    pair.ours.close()
    pair.transport.run_until_idle()
    assert pair.heard == messages
    assert pair.lost == [None]
    assert pair.theirs_lost == [None]


def test_an_end_in_the_middle_of_a_message_is_an_error():
    pair = Pair()
    pair.ours._stream.write([said(GOOD)[:9]])
    pair.ours._stream.close()
    pair.transport.run_until_idle()
    assert not pair.heard
    assert "in mid-message" in str(pair.theirs_lost[0])


def test_a_peer_that_does_not_read_is_given_up_when_too_much_waits():
    pair = Pair()
    pair.theirs._stream.pause_reading()
    big = Failed(1, "x" * (MAX_MESSAGE_BYTES - 100))
    for _ in range(MAX_WAITING_BYTES // MAX_MESSAGE_BYTES):
        pair.ours.send(big)
        pair.transport.run_until_idle()
    assert not pair.lost
    for _ in range(3):
        pair.ours.send(big)
    assert pair.ours._queued_bytes < 2 * MAX_WAITING_BYTES
    pair.transport.run_until_idle()
    assert "wait for it" in str(pair.lost[0])


def test_messages_queued_by_other_threads_are_bounded():
    pair = Pair()
    big = Failed(1, "x" * (MAX_MESSAGE_BYTES - 100))
    for _ in range(50):
        pair.ours.send(big)
    assert sum(map(len, pair.ours._queued)) <= MAX_WAITING_BYTES + 2 * MAX_MESSAGE_BYTES
    pair.transport.run_until_idle()
    assert len(pair.lost) == 1


def test_a_message_that_is_too_large_is_refused_by_send():
    pair = Pair()
    with pytest.raises(LocalProtocolError, match="Failed message takes"):
        pair.ours.send(Failed(1, "x" * MAX_MESSAGE_BYTES))
    pair.ours.send(Failed(1, "small"))
    pair.transport.run_until_idle()
    assert pair.heard == [Failed(1, "small")]


def test_an_idle_link_stays_connected():
    pair = Pair(idle_timeout_ns=6_000)
    for _ in range(100):
        pair.transport.advance(1_000)
    assert not pair.lost
    assert not pair.theirs_lost
    assert not pair.heard, "nobody is bothered with it"


def test_a_peer_that_falls_silent_is_lost():
    pair = Pair(idle_timeout_ns=6_000)
    pair.ours.keep_alive = lambda: None
    for _ in range(10):
        pair.transport.advance(1_000)
    assert "nothing was received" in str(pair.theirs_lost[0])


def test_a_message_handler_that_raises_loses_the_link(caplog):
    pair = Pair()
    pair.theirs.on_message = lambda message: 1 / 0
    with caplog.at_level(logging.ERROR):
        pair.ours.send(Failed(1, "x"))
        pair.transport.run_until_idle()
    assert "ZeroDivisionError" in str(pair.theirs_lost[0])
    assert "a bug in headgate" in caplog.text
