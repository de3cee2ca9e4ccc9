"""What is measured of connections between workers: bytes, how long sockets take nothing, and what the system says."""

import socket
import sys
import time

import pytest
from tests.support.cluster import Cluster, produce, records
from tests.support.sockets import new_world
from tests.support.streams import LOOPS
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.net import PathStatistics
from headgate.net.loop import open_loop
from headgate.net.memory import MemoryTransport
from headgate.net.socket_stream import SocketStream, StreamSet

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it this way")


def only(environment):
    """The connection, once it is the only one: both sides may have begun one."""
    wait_until(lambda: len(environment.connections()) == 1, "one connection")
    (found,) = environment.connections()
    return found


HEAD_BYTES = 19


@pytest.mark.spec("N3")
@pytest.mark.parametrize("marks", [{}, {"network__write_high_mark": 2}, {"network__write_high_mark": 40}], ids=repr)
def test_no_more_than_the_high_mark_and_a_frame_waits_for_a_full_socket(marks):
    """Many channels have data; TCP alone stops them, for their reader does not read."""
    channels, segment, high = 60, 4096, marks.get("network__write_high_mark", 16)
    settings = {"network__send_buffer": "4 KiB", "network__receive_buffer": "4 KiB", **marks}
    with Cluster(network__flow_control="tcp", **settings) as cluster:
        gate = cluster.gate(1, [(0, subtask, 0) for subtask in range(channels)])
        writers = [cluster.writer(0, subtask) for subtask in range(channels)]
        wanted = [bytes([subtask]) * 1000 for subtask in range(channels) for _ in range(30)]
        threads = [
            Thread(lambda one=one, of=subtask: produce(one, [bytes([of]) * 1000] * 30))
            for subtask, one in enumerate(writers)
        ]
        wait_until(lambda: sum(one.blocked_ns for one in cluster.workers[0].connections()) > 0, "a full socket")
        reached = high * segment
        wait_until(lambda: only(cluster.workers[0]).waiting_bytes >= reached, "as much as the high mark to wait")
        for _ in range(20):
            assert only(cluster.workers[0]).waiting_bytes < reached + HEAD_BYTES + segment
            time.sleep(0.001)
        assert sorted(cluster.read(1, gate)) == sorted(wanted)
        for thread in threads:
            thread.end()


@linux
@pytest.mark.spec("B2", "T3")
@pytest.mark.parametrize("credentials", [False, True], ids=["plain", "tls"])
def test_a_connection_counts_written_bytes_and_measures_the_round_trip(credentials):
    wanted = records(2000)
    with Cluster(credentials=credentials) as cluster:
        held = cluster.gate(0, [(1, 1, 0)])  # keeps the connection open
        gate, writer = cluster.gate(1, [(0, 0, 0)]), cluster.writer(0)
        other = cluster.writer(1, 1)
        thread = Thread(lambda: produce(writer, wanted))
        assert cluster.read(1, gate) == wanted
        thread.end()
        wait_until(lambda: only(cluster.workers[0]).waiting_bytes == 0, "the last write to be counted")
        sender, receiver = only(cluster.workers[0]), only(cluster.workers[1])
        assert (sender.worker, receiver.worker) == (1, 0)
        assert sender.written_bytes > sum(map(len, wanted)) > receiver.written_bytes > 0
        assert 0 <= sender.path.round_trip_us < 60_000_000
        wait_until(lambda: only(cluster.workers[0]).path.unsent_bytes == 0, "all to be sent")
        other.finish()
        assert cluster.read(0, held) == []


@pytest.mark.spec("B2")
@pytest.mark.parametrize("transport", LOOPS)
def test_a_socket_that_takes_nothing_is_seen_to_be_blocked(transport):
    """Flow control by TCP alone: a reader that does not read fills the sockets."""
    settings = {"network__send_buffer": "4 KiB", "network__receive_buffer": "4 KiB", "network__transport": transport}
    with Cluster(network__flow_control="tcp", **settings) as cluster:
        held, other = cluster.gate(0, [(1, 1, 0)]), cluster.writer(1, 1)  # keeps the connection open
        gate, writer = cluster.gate(1, [(0, 0, 0)]), cluster.writer(0)
        wanted = records(20_000)
        thread = Thread(lambda: produce(writer, wanted))

        def blocked_ns():
            return sum(one.blocked_ns for one in cluster.workers[0].connections())

        wait_until(lambda: blocked_ns() > 20_000_000, "20 ms of a full socket")
        before = only(cluster.workers[0])
        assert before.waiting_bytes > 0
        time.sleep(0.01)
        assert only(cluster.workers[0]).blocked_ns >= before.blocked_ns + 10_000_000, "it goes on"
        assert only(cluster.workers[1]).blocked_ns == 0, "the other way nothing is in the way"
        assert cluster.read(1, gate) == wanted
        thread.end()
        wait_until(lambda: not only(cluster.workers[0]).waiting_bytes, "all to be written")
        now_ns = only(cluster.workers[0]).blocked_ns
        time.sleep(0.01)
        assert only(cluster.workers[0]).blocked_ns == now_ns, "it is not any more"
        other.finish()
        assert cluster.read(0, held) == []


@linux
def test_a_stream_reports_unsent_bytes_of_the_kernel_until_it_is_aborted():
    with new_world("shared") as world:
        stream, _, _ = world.kept()  # whose peer does not read
        sent = []

        def fill():
            while taken := stream.write([bytes(65536)]):
                sent.append(taken)

        world.transport.call(fill)
        wait_until(lambda: stream.path().unsent_bytes > 0, "bytes that the peer's system has no room for")
        assert stream.path().unsent_bytes <= sum(sent)
        world.transport.call(stream.abort)
        assert stream.path() == PathStatistics(-1, -1)


def test_a_stream_that_is_no_tcp_socket_has_no_path_statistics():
    ours, theirs = socket.socketpair()
    transport = MemoryTransport()
    made = []
    address = transport.listen("127.0.0.1", 0, made.append).address
    transport.connect(address, 10**9, made.append)
    transport.run_until_idle()
    loop = open_loop()
    stream = SocketStream(ours, "peer", StreamSet(loop))
    assert {stream.path(), *[one.path() for one in made]} == {PathStatistics()}
    assert len(made) == 2
    stream.abort()
    theirs.close()
    loop.stop()
