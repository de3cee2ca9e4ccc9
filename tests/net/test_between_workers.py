"""Workers of one process, each with its own memory and port, exchange records over real sockets."""

import random
import threading
import time
from datetime import UTC, datetime

import pytest
from tests.support.cluster import ATTEMPT, JOB, SECRET, Cluster, pid, produce, records
from tests.support.streams import LOOPS
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.config import load_settings
from headgate.errors import (
    AuthError,
    Cancelled,
    ConfigError,
    HeadgateError,
    InsufficientBuffers,
    LocalProtocolError,
    PartitionNotFound,
    ProducerFailed,
    TransportError,
    UserCodeError,
)
from headgate.ids import AttemptId, JobId, SubpartitionIndex
from headgate.net import Address, Authority, Identity
from headgate.net.connection import Connection
from headgate.net.retry import MAX_PROOFS
from headgate.net.sockets import SocketTransport
from headgate.output import Rebalance
from headgate.record import UserEvent
from headgate.worker import Environment

KINDS = {
    "credit": {},
    "tcp": {"network__flow_control": "tcp"},
    "checksum": {"network__checksum": True},
    "tls": {"credentials": True},
    "tls, tcp": {"credentials": True, "network__flow_control": "tcp"},
    "one buffer": {"network__buffers_per_channel": 1, "network__floating_buffers_per_gate": 0},
    "small buffers": {"segment": "64 B"},
    "every record": {"execution__buffer_timeout": 0},
    "only when full": {"execution__buffer_timeout": -1},
    "small sockets": {"network__send_buffer": "4 KiB", "network__receive_buffer": "4 KiB"},
}


@pytest.mark.spec("T3", "T5", "N2", "N5", "N7")
@pytest.mark.parametrize("kind", KINDS)
def test_everything_arrives_once_and_in_order(kind):
    wanted = records(3000)
    with Cluster(**KINDS[kind]) as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)
        thread = Thread(lambda: produce(writer, wanted))
        assert cluster.read(1, gate) == wanted
        thread.end()


@pytest.mark.parametrize("transport", LOOPS)
def test_with_every_driver(transport):
    wanted = records(2000)
    with Cluster(network__transport=transport) as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)
        thread = Thread(lambda: produce(writer, wanted))
        assert cluster.read(1, gate) == wanted
        thread.end()


@pytest.mark.spec("T3", "N4")
@pytest.mark.parametrize("flow_control", ["credit", "tcp"])
def test_all_channels_between_two_workers_share_one_connection(flow_control):
    """Both ways, from both sides at once; and it is closed with the last of them."""
    count = 8
    with Cluster(network__flow_control=flow_control) as cluster:
        writers = [cluster.writer(side, side, count, Rebalance(random.Random(side).randrange)) for side in (0, 1)]
        gates = [cluster.gate(side, [(1 - side, 1 - side, index) for index in range(count)]) for side in (0, 1)]
        wanted = [records(4000, mark=bytes([side])) for side in (0, 1)]
        # Each side's reader is a thread of its own: in tcp mode neither may wait for the other.
        readers = [Thread(lambda side=side: cluster.read(side, gates[side])) for side in (0, 1)]
        producers = [Thread(lambda side=side: produce(writers[side], wanted[side])) for side in (0, 1)]
        seen = set()
        while any(reader.is_alive() for reader in readers):
            seen.add(tuple(cluster.connections()))
            time.sleep(0.0005)
        assert [sorted(reader.end()) for reader in readers] == [sorted(wanted[1]), sorted(wanted[0])]
        for producer in producers:
            producer.end()
        # Two may meet for a moment, while one of them is in its handshake and will be refused.
        assert (1, 1) in seen
        assert max(map(max, seen)) <= 2
        wait_until(lambda: cluster.connections() == [0, 0], "the last use closes the connection")


@pytest.mark.spec("N4")
@pytest.mark.parametrize("credentials", [False, True])
def test_workers_that_connect_to_each_other_at_once(credentials):
    """Many rounds, for the race is short; whatever its outcome, nothing is lost."""
    with Cluster(credentials=credentials) as cluster:
        for turn in range(5 if credentials else 30):
            writers = [cluster.writer(side, 2 * turn + side) for side in (0, 1)]
            start = threading.Barrier(2)

            def work(side, turn=turn, writers=writers, start=start):
                start.wait(PATIENCE_S)
                gate = cluster.gate(side, [(1 - side, 2 * turn + 1 - side, 0)])
                produce(writers[side], [b"%d" % side])
                return cluster.read(side, gate)

            threads = [Thread(lambda side=side, work=work: work(side)) for side in (0, 1)]
            assert [thread.end() for thread in threads] == [[b"1"], [b"0"]]
        wait_until(lambda: cluster.connections() == [0, 0], "all are closed")


@pytest.mark.spec("G3")
def test_a_channel_becomes_remote_once_its_place_is_known():
    with Cluster() as cluster:
        gate = cluster.workers[1].gate("gate", channels=2)
        reader = Thread(lambda: sorted(cluster.read(1, gate)))
        produce(cluster.writer(1, subtask=1), [b"here"])
        gate.connect(0, cluster.workers[1].local_source(pid(1), SubpartitionIndex(0)))
        produce(cluster.writer(0, subtask=0), [b"there"])
        cluster.connect(gate, 1, 1, 0, 0, 0)
        assert reader.end() == [b"here", b"there"]


@pytest.mark.spec("G4")
def test_a_partition_that_comes_later_is_asked_for_again():
    with Cluster(network__partition_request_backoff__initial="1 ms") as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        assert gate.read(timeout_s=0.02) is None
        produce(cluster.writer(0), [b"late"])
        assert cluster.read(1, gate) == [b"late"]


def test_a_partition_that_never_comes():
    backoff = "network__partition_request_backoff"
    with Cluster(**{f"{backoff}__initial": "1 ms", f"{backoff}__max": "4 ms"}) as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        with pytest.raises(PartitionNotFound, match=r"partition job#1/v0\.0\[0\] is not on this worker"):
            gate.read()


@pytest.mark.spec("G8")
def test_a_producer_s_failure_reaches_its_consumer_as_its_cause():
    with Cluster() as cluster:
        writer = cluster.writer(0)
        writer.emit_batch([b"the last thing it said"])
        writer.flush()
        gate = cluster.gate(1, [(0, 0, 0)])
        gate.read(PATIENCE_S).release()
        cause = UserCodeError("division by zero", operator="map", subtask=3)
        cluster.workers[0].registry.release(pid(), cause)
        with pytest.raises(ProducerFailed, match="map, subtask 3: division by zero") as caught:
            gate.read(PATIENCE_S)
        writer.close()
        assert isinstance(caught.value.cause, UserCodeError)


@pytest.mark.spec("G7")
@pytest.mark.parametrize("flow_control", ["credit", "tcp"])
def test_a_consumer_that_leaves_stops_its_producer(flow_control):
    with Cluster(network__flow_control=flow_control) as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)

        def write_for_ever():
            while True:
                writer.emit_batch([bytes(1000)] * 10)

        producer = Thread(write_for_ever)
        gate.read(PATIENCE_S).release()
        gate.release()
        with pytest.raises(Cancelled, match="it has no reader left"):
            producer.end()
        writer.close()
        wait_until(lambda: cluster.connections() == [0, 0], "nobody uses the connection")


@pytest.mark.spec("N2", "N5")
@pytest.mark.parametrize("flow_control", ["credit", "tcp"])
def test_a_channel_that_is_not_read(flow_control):
    """With credit its neighbour on the same connection does not notice; with tcp it waits for it."""
    sockets = {"network__send_buffer": "4 KiB", "network__receive_buffer": "4 KiB"}
    with Cluster(network__flow_control=flow_control, **sockets) as cluster:
        # Gates of their own, as two tasks have.
        slow, fast = cluster.gate(1, [(0, 0, 0)]), cluster.gate(1, [(0, 1, 0)])
        wanted = records(2000)
        producers = [Thread(lambda: produce(cluster.writer(0, 0), wanted))]
        partition = cluster.workers[0].registry
        wait_until(lambda: any(one.pool.waiting for one in partition.statistics()), "the slow channel is full")
        producers.append(Thread(lambda: produce(cluster.writer(0, 1), wanted)))
        reader = Thread(lambda: cluster.read(1, fast))
        if flow_control == "credit":
            assert reader.end() == wanted
            assert cluster.read(1, slow) == wanted
        else:
            reader.join(0.3)
            assert reader.is_alive(), "it is dragged down"
            assert cluster.read(1, slow) == wanted
            assert reader.end() == wanted
        for producer in producers:
            producer.end()


@pytest.mark.spec("K4")
@pytest.mark.parametrize("reader", [0, 1], ids=["in the same worker", "in another worker"])
def test_a_task_event_that_no_task_subscribes_to_is_answered_and_fails_nothing(reader, caplog):
    with Cluster() as cluster:
        gate = cluster.workers[reader].gate("gate", channels=1)
        writer = cluster.writer(0)
        if reader == 0:
            gate.connect(0, cluster.workers[0].local_source(pid(), SubpartitionIndex(0)))
        else:
            cluster.connect(gate, 0, 1, 0, 0, 0)
        heard = []
        cluster.workers[0].registry.subscribe(pid(), "slower", heard.append)
        for name in ("sloower", "sloower", "slower"):
            gate.send_task_event(0, UserEvent(name))
        wait_until(lambda: heard, "the event of a name that is known")
        if reader == 1:
            wait_until(lambda: cluster.workers[1].connections()[0].traffic.events_refused == 2, "both answers")
        produce(writer, [b"and the data"])
        assert cluster.read(reader, gate) == [b"and the data"]
    (line,) = [one.getMessage() for one in caplog.records if "not delivered" in one.getMessage()]
    assert f"partition {pid()}: no operator of its task subscribes to task event 'sloower'" in line


@pytest.mark.spec("K4")
def test_events_travel_against_the_stream():
    heard = []
    with Cluster() as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)
        registry = cluster.workers[0].registry
        registry.subscribe(pid(), "slower", heard.append)
        registry.subscribe(pid(), "other", heard.append)
        registry.subscribe(pid(), "fails", lambda event: 1 / 0)
        for event in (UserEvent("unknown"), UserEvent("fails"), UserEvent("slower", b"1"), UserEvent("slower", b"2")):
            gate.send_task_event(0, event)
        wait_until(lambda: len(heard) == 2, "both arrive")
        assert heard == [UserEvent("slower", b"1"), UserEvent("slower", b"2")]
        produce(writer, [b"and the data"])
        assert cluster.read(1, gate) == [b"and the data"]
        gate.release()
        with pytest.raises(Cancelled):
            gate.send_task_event(0, UserEvent("slower"))


@pytest.mark.spec("N6")
def test_few_reads_and_one_copy(monkeypatch):
    """Under load a read brings many frames. The one copy is from what was read to the segment."""
    reads, sizes = [], []
    received = Connection.received
    monkeypatch.setattr(Connection, "received", lambda self, data: (reads.append(len(data)), received(self, data)))
    wanted = [bytes(4000)] * 3000
    with Cluster() as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)
        thread = Thread(lambda: produce(writer, wanted))
        while not gate.finished:
            taken = gate.read()
            if taken is not None:
                sizes.append(len(taken.memory))
                if taken.buffer.segment is not None:
                    assert taken.memory.obj is taken.buffer.segment.memory.obj, "it lies where it was put"
                taken.release()
        thread.end()
        (traffic,) = [one.traffic for one in cluster.workers[1].statistics().network.connections] or [None]
    assert sum(sizes) >= sum(map(len, wanted))
    assert len([size for size in reads if size > 100]) <= len(sizes), "no more than one read for a buffer"
    assert traffic is None or traffic.buffers_in == len(sizes) - 1


def test_unread_buffers_are_recycled_when_the_worker_closes():
    with Cluster() as cluster:
        gate = cluster.gate(1, [(0, 0, 0)])
        writer = cluster.writer(0)
        writer.emit_batch(records(20))
        writer.flush()
        gate.read(PATIENCE_S).release()
        writer.close()


# What does not work, and says so.


def two(first, second, **code):
    """Two workers of different identities."""
    settings = load_settings(code={"network.handshake_timeout": "200 ms"} | code)
    return Environment(settings, memory_bytes=2**20), Environment(settings, memory_bytes=2**20), first, second


@pytest.mark.spec("N7")
@pytest.mark.parametrize(
    "stranger",
    [
        Identity(JOB, ATTEMPT, 1, bytes(32)),
        Identity(JobId("another"), ATTEMPT, 1, SECRET),
        Identity(JOB, AttemptId(2), 1, SECRET),
    ],
    ids=["secret", "job", "attempt"],
)
def test_a_worker_of_another_job_or_attempt_receives_nothing(stranger):
    ours, theirs, *_ = two(None, stranger)
    with ours, theirs:
        address = ours.join(Identity(JOB, ATTEMPT, 0, SECRET))
        theirs.join(stranger)
        ours.partition(pid(), subpartitions=1)
        gate = theirs.gate("gate", channels=1)
        gate.connect(0, theirs.remote_source(gate, pid(), SubpartitionIndex(0), worker=0, address=address))
        with pytest.raises(TransportError, match=f"is it of this job and attempt.*{address}"):
            gate.read()
        wait_until(lambda: ours.statistics().network.refused == MAX_PROOFS, "each proof is counted")
        wait_until(lambda: ours.statistics().network.connections == (), "nothing is left of it")


def test_an_address_without_a_listener_is_a_transport_error():
    with Environment(memory_bytes=2**20) as worker:
        address = worker.join(Identity(JOB, ATTEMPT, 0, SECRET))
        gate = worker.gate("gate", channels=1)
        nowhere = Address("127.0.0.1", 1)
        assert address != nowhere
        gate.connect(0, worker.remote_source(gate, pid(), SubpartitionIndex(0), worker=1, address=nowhere))
        with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
            gate.read()


def test_a_worker_without_an_address_that_does_not_connect():
    with Environment(memory_bytes=2**20) as worker:
        worker.join(Identity(JOB, ATTEMPT, 0, SECRET))
        gate = worker.gate("gate", channels=1)
        gate.connect(0, worker.remote_source(gate, pid(), SubpartitionIndex(0), worker=1))
        with pytest.raises(TransportError, match="worker 1"):
            gate.read()


@pytest.mark.spec("N7")
def test_beyond_loopback_there_is_tls_or_an_insecure_setting():
    beyond = {"network.bind_address": "0.0.0.0"}
    identity = Identity(JOB, ATTEMPT, 0, SECRET)
    with (
        Environment(load_settings(code=beyond), memory_bytes=2**20) as worker,
        pytest.raises(ConfigError, match=r"network\.bind_address = 0\.0\.0\.0 .*network\.insecure_plaintext"),
    ):
        worker.join(identity)
    issued = Authority(JOB, datetime.now(UTC)).issue(0)
    with Environment(load_settings(code=beyond), memory_bytes=2**20) as worker:
        assert worker.join(Identity(JOB, ATTEMPT, 0, SECRET, issued)).port
    with Environment(load_settings(code=beyond | {"network.insecure_plaintext": True}), memory_bytes=2**20) as worker:
        assert worker.join(identity).port


def test_a_certificate_of_another_worker():
    authority = Authority(JOB, datetime.now(UTC))
    with Environment(memory_bytes=2**20) as ours, Environment(memory_bytes=2**20) as theirs:
        address = ours.join(Identity(JOB, ATTEMPT, 0, SECRET, authority.issue(0)))
        theirs.join(Identity(JOB, ATTEMPT, 1, SECRET, authority.issue(2)))
        gate = theirs.gate("gate", channels=1)
        gate.connect(0, theirs.remote_source(gate, pid(), SubpartitionIndex(0), worker=0, address=address))
        with pytest.raises(HeadgateError) as caught:
            gate.read()
        assert isinstance(caught.value, TransportError | AuthError)
        wait_until(lambda: ours.statistics().network.refused == 1, "it is counted")


def test_a_port_in_use():
    with Environment(memory_bytes=2**20) as first:
        port = first.join(Identity(JOB, ATTEMPT, 0, SECRET)).port
        with (
            Environment(load_settings(code={"network.port": port}), memory_bytes=2**20) as second,
            pytest.raises(TransportError, match=r"network\.port"),
        ):
            second.join(Identity(JOB, ATTEMPT, 1, SECRET))


def test_invalid_remote_sources_and_identities_are_refused():
    with Environment(memory_bytes=2**20) as worker:
        gate = worker.gate("gate", channels=1)
        with pytest.raises(LocalProtocolError, match="has not joined a job"):
            worker.remote_source(gate, pid(), SubpartitionIndex(0), worker=1)
        worker.join(Identity(JOB, ATTEMPT, 0, SECRET))
        with pytest.raises(LocalProtocolError, match="joins one job"):
            worker.join(Identity(JOB, ATTEMPT, 0, SECRET))
        sources = [worker.remote_source(gate, pid(), SubpartitionIndex(0), worker=1) for _ in range(16)]
        with pytest.raises(InsufficientBuffers, match="gate gate, a remote channel needs 2 network buffers"):
            worker.remote_source(gate, pid(), SubpartitionIndex(0), worker=1)
        with worker.sync.lock:
            for source in sources:
                source.release_locked()
    with pytest.raises(ConfigError, match="32 bytes"):
        Identity(JOB, ATTEMPT, 0, b"short")


@pytest.mark.parametrize("transport", ["nonesuch", "io"])
def test_an_unknown_event_loop(transport):
    with (
        Environment(load_settings(code={"network.transport": transport}), memory_bytes=2**20) as worker,
        pytest.raises(ConfigError, match=r"network\.transport"),
    ):
        worker.join(Identity(JOB, ATTEMPT, 0, SECRET))


@pytest.mark.spec("N2")
@pytest.mark.parametrize(("buffers", "polled"), [(1, True), (10, False)])
def test_the_sockets_are_polled_before_a_flush_that_lacks_credit_is_sent(monkeypatch, buffers, polled):
    polls, post = [], SocketTransport.post

    def poll_once(_, *, reply_expected=False):
        if not reply_expected:
            polls.append(True)

    monkeypatch.setattr(SocketTransport, "poll_once", poll_once)
    with Cluster(segment="64 B", network__buffers_per_channel=buffers, network__floating_buffers_per_gate=0) as cluster:
        gate, writer = cluster.gate(1, [(0, 0, 0)]), cluster.writer(0)
        wait_until(lambda: cluster.workers[0].statistics().network.connections, "a connection")
        wait_until(lambda: cluster.workers[0].statistics().network.connections[0].traffic.sending, "a request")
        with monkeypatch.context() as patched:  # the network thread does not send the first buffer before the flush
            patched.setattr(SocketTransport, "post", lambda self, call, *, urgent=True: urgent and post(self, call))
            writer.emit(bytes(100))
            writer.flush()
            flushed = list(polls)
        thread = Thread(lambda: cluster.read(1, gate))  # not before: it would give credit back
        writer.finish()
        assert thread.end() == [bytes(100)]
    assert bool(flushed) is polled
