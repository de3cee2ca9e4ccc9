"""The switch interval that all workers of a process share, and the shorter one while little goes over their sockets."""

import socket
import sys

import pytest
from tests.support_cluster import Cluster, records

from headgate.net.brief import SMALL_READ_BYTES
from headgate.net.loop import open_loop
from headgate.net.socket_stream import SocketStream, StreamSet
from headgate.record import BytesSerializer
from headgate.switching import _HASTY_S, _IN_A_ROW, _PAUSE_NS, Switching

NOW_NS = [0]


@pytest.fixture
def switching():
    before_s, NOW_NS[0] = sys.getswitchinterval(), 0
    yield Switching(lambda: NOW_NS[0])
    assert sys.getswitchinterval() == before_s, "the last to end restores what was"


def near(interval_s):
    return pytest.approx(interval_s, abs=1e-6)  # it is kept in microseconds


def trickle(pace, count=_IN_A_ROW):
    for _ in range(count):
        pace.little()


def test_little_in_a_row_makes_haste_until_there_is_much(switching):
    pace = switching.begin(0.001)
    trickle(pace, _IN_A_ROW - 1)
    assert sys.getswitchinterval() == near(0.001)
    pace.little()
    assert sys.getswitchinterval() == near(_HASTY_S)
    trickle(pace)
    assert sys.getswitchinterval() == near(_HASTY_S)
    pace.much()
    assert sys.getswitchinterval() == near(0.001)
    trickle(pace, _IN_A_ROW - 1)
    pace.much()
    trickle(pace, _IN_A_ROW - 1)
    assert sys.getswitchinterval() == near(0.001), "not so many in a row"
    pace.end()


def test_what_comes_now_and_then_is_not_in_a_row(switching):
    pace = switching.begin(0.001)
    for _ in range(2 * _IN_A_ROW):
        NOW_NS[0] += _PAUSE_NS + 1
        pace.little()
    assert sys.getswitchinterval() == near(0.001)
    for _ in range(_IN_A_ROW):
        NOW_NS[0] += _PAUSE_NS
        pace.little()
    assert sys.getswitchinterval() == near(_HASTY_S)
    NOW_NS[0] += _PAUSE_NS + 1
    pace.little()
    assert sys.getswitchinterval() == near(0.001), "it has stopped meanwhile"
    pace.end()


def test_a_worker_with_much_keeps_all_of_the_process_from_haste(switching):
    one, other = switching.begin(0.001), switching.begin(0.001)
    trickle(one)
    assert sys.getswitchinterval() == near(0.001)
    trickle(other)
    assert sys.getswitchinterval() == near(_HASTY_S)
    one.much()
    assert sys.getswitchinterval() == near(0.001)
    one.end()
    assert sys.getswitchinterval() == near(_HASTY_S), "it is gone"
    other.end()


def test_haste_is_never_slower_than_what_is_set(switching):
    pace = switching.begin(20e-6)
    trickle(pace)
    assert sys.getswitchinterval() == near(20e-6)
    pace.end()


def test_who_has_ended_changes_nothing_any_more(switching):
    one, other = switching.begin(0.001), switching.begin(0.002)
    one.end()
    one.end()
    trickle(one)
    one.much()
    assert sys.getswitchinterval() == near(0.002)
    other.end()


class Told:
    def __init__(self):
        self.sizes = []

    def little(self):
        self.sizes.append("little")

    def much(self):
        self.sizes.append("much")


def test_a_stream_tells_of_what_it_reads_and_writes():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    told, loop = Told(), open_loop("epoll")
    stream = SocketStream(ours, "peer", StreamSet(loop, told))

    class Handler:
        def received(self, data): ...
        def writable(self): ...
        def lost(self, error): ...

    stream.start(Handler())
    stream.write([b"a"])
    stream.write([b"a", bytes(SMALL_READ_BYTES)])
    theirs.send(b"b")
    stream._receive()
    theirs.send(bytes(2 * SMALL_READ_BYTES))
    stream._receive()  # as small as the one before
    stream._receive()
    assert told.sizes == ["little", "much", "little", "much", "much"]
    stream.abort()
    theirs.close()
    loop.stop()


def test_workers_with_little_to_say_make_haste_and_leave_nothing_of_it():
    before_s = sys.getswitchinterval()
    with Cluster(execution__switch_interval="1 ms", execution__buffer_timeout=0) as cluster:
        reader, writer = cluster.workers[1].reader(cluster.gate(1, [(0, 0, 0)]), BytesSerializer()), cluster.writer(0)
        assert sys.getswitchinterval() == near(0.001)
        for number, record in enumerate(records(200 * _IN_A_ROW)):  # noqa: B007 - so many if it is kept from running
            writer.emit(record)
            reader.read()
            if sys.getswitchinterval() == near(_HASTY_S):
                break
        writer.finish()
        reader.close()
    assert _IN_A_ROW // 4 < number < 200 * _IN_A_ROW - 1
    assert sys.getswitchinterval() == before_s
