"""Exchanges one behind another, with either flow control: workers that relay do not stop each other for ever (N5)."""

import threading
from contextlib import contextmanager

import pytest
from tests.support.pipelines import END_S, Batches, Gathered, cut, run, running, small_env, wait_progress

from headgate.control.messages import TaskState
from headgate.net.peers import Peer
from headgate.worker import setup

COUNT, COPIES = 1000, 3  # records of each source, of 2 KB, and what the first relays make of each
TINY = {
    "memory__segment_size": "4 KiB",
    "network__send_buffer": "64 KiB",  # much less, and TCP waits for its timers before it uses a small window
    "network__receive_buffer": "64 KiB",
    "network__buffers_per_channel": 1,
    "network__floating_buffers_per_gate": 0,
    "record__batch_size": 20,
}
"""So little room that what becomes of one batch does not fit."""


@pytest.fixture
def opened(monkeypatch):
    """The connections of this process's workers: the two workers, and the connection group."""
    found, proved = set(), Peer.proved

    def remember(peer, connection):
        assert connection.lane == peer.lane
        found.add((peer._peers.worker, peer.worker, peer.lane))
        proved(peer, connection)

    monkeypatch.setattr(Peer, "proved", remember)
    return found


class Relayed:
    """Two workers, and as many relays one behind another in each; every task writes to the other worker only.

    The first relays begin when `go` is set.
    """

    def __init__(self, flow_control, relays=1, **settings):
        self.go, self.sink = threading.Event(), Gathered()
        self.env = small_env(2, network__flow_control=flow_control, **TINY, **settings)
        splits = [cut([(n, i, f"{i:2000}") for i in range(COUNT)], 20) for n in range(2)]
        stream = across(self.env.from_source(Batches(*splits)), 0)
        stream = across(stream.flat_map(lambda one: [one] * COPIES if self.go.wait(END_S) else []), 1)
        for relay in range(1, relays):
            stream = across(stream.map(lambda one: one), relay + 1)
        stream.sink_to(self.sink)

    def run(self):
        self.go.set()
        run(self.env)
        self.check()

    @contextmanager
    def run_full(self):
        """The job, when both ways are full of what the first relays are to read, and these begin to write."""
        with running(self.env) as job:
            wait_progress(job, standing)
            self.go.set()
            yield job

    def check(self):
        wanted = [(n, i) for n in range(2) for i in range(COUNT)] * COPIES
        assert sorted((n, i) for n, i, _ in self.sink.values) == sorted(wanted)


def across(stream, depth):
    """To the worker that a record is not in: it has been to and fro as often as it has come through an exchange."""
    return stream.partition_custom(lambda one, channels: (one[0] + 1 + depth) % channels)


def standing(progress):
    """Whether both sources wait for the relays."""
    sources = progress.vertices[0].subtasks
    assert TaskState.FINISHED not in {one.state for one in sources}, "there is more room than was thought"
    return min(one.back_pressured for one in sources) > 0.9


@pytest.mark.spec("N5", "T5")
def test_workers_that_relay_to_each_other_go_on_without_credit(opened):
    relayed = Relayed("tcp")
    with relayed.run_full() as job:
        assert job.await_termination(END_S), f"the job hangs: {job.last_progress}"
    relayed.check()
    assert opened == {(one, 1 - one, lane) for one in range(2) for lane in range(2)}


@pytest.mark.spec("N5")
def test_over_one_connection_they_would_stop_each_other(monkeypatch):
    """What lanes are for, and that the test before this one would notice."""
    monkeypatch.setattr(setup, "depth_of", lambda plan, exchange: 0)
    relayed = Relayed("tcp")
    with relayed.run_full() as job:
        assert not job.await_termination(1.0)
        came = len(relayed.sink.values)
        assert not job.await_termination(1.0)
        assert len(relayed.sink.values) == came < 2 * COUNT * COPIES, "nothing moves any more"


@pytest.mark.spec("N5")
def test_each_depth_has_a_connection_of_its_own(opened):
    Relayed("tcp", relays=3).run()
    assert {lane for _, _, lane in opened} == {0, 1, 2, 3}


@pytest.mark.spec("T3", "N4")
def test_with_credit_two_workers_keep_one_connection(opened):
    Relayed("credit", relays=2).run()
    assert opened == {(0, 1, 0), (1, 0, 0)}


@pytest.mark.spec("N5")
def test_a_sink_in_the_driver_uses_the_lane_of_its_input(opened):
    env = small_env(2, network__flow_control="tcp", **TINY)
    stream = (
        env.from_collection(range(2000), parallel=True)
        .rebalance()
        .map(lambda n: (n, "x" * 90))
        .rebalance()
        .map(lambda one: one)
    )
    assert sorted(n for n, _ in stream.execute_and_collect()) == list(range(2000))
    assert {lane for one, other, lane in opened if 2 in {one, other}} == {2}


@pytest.mark.spec("N5", "T4")
def test_blocking_partitions_use_one_connection(opened):
    Relayed("tcp", relays=2, execution__runtime_mode="BATCH").run()
    assert opened == {(0, 1, 0), (1, 0, 0)}
