"""A peer as the outlet of its channels: when scheduled frames are flushed."""

import threading
from types import SimpleNamespace

import pytest
from tests.support.remote_channel import Remote
from tests.support.threads import run_threads, switching_often

from headgate.errors import TransportError
from headgate.input.remote_state import RemoteState
from headgate.net import Address
from headgate.net.peers import Peers
from headgate.record import CheckpointBarrier
from headgate.sync import ThreadSync
from headgate.wire import When
from headgate.wire.states import ConnectionState


class Calls:
    """A transport that records the posted calls."""

    def __init__(self):
        self.soon = []

    def post(self, function):
        self.soon.append(function)


def peer_of(peers, lane=0):
    with peers.lock:
        return peers.peer_locked(3, lane)


def outlet_of(remote):
    """A peer as the outlet of the channel; it has no connection yet."""
    calls = Calls()
    peer = peer_of(Peers(0, remote.memory.lock, calls, 10**9, connect=None))
    remote.channel.outlet = peer
    return peer, calls


@pytest.mark.spec("G5")
def test_scheduled_credit_is_not_flushed_while_its_producer_has_some():
    with Remote(exclusive=2, floating=0) as remote:
        peer, calls = outlet_of(remote)
        remote.arrive()
        remote.read()
        assert remote.locked(peer.announce_to_starved_locked) is None
        assert calls.soon == [], "one credit is left there"
        remote.arrive()
        remote.locked(peer.announce_to_starved_locked)
        assert calls.soon == [peer.open], "none is left"


def test_without_a_scheduled_channel_nothing_is_flushed():
    with Remote(exclusive=2, floating=0) as remote:
        peer, calls = outlet_of(remote)
        assert remote.locked(peer.announce_to_starved_locked) is None
        assert calls.soon == []


@pytest.mark.spec("G5")
def test_a_task_event_is_flushed_at_once():
    with Remote(exclusive=2, floating=0) as remote:
        _, calls = outlet_of(remote)
        remote.locked(remote.channel.send_event_locked, b"event")
        assert len(calls.soon) == 1


@pytest.mark.spec("G5")
@pytest.mark.parametrize(("channels", "enough"), [(10, 8), (128, 8), (160, 10)])
def test_credit_of_enough_channels_is_flushed_while_the_reader_reads(channels, enough):
    with Remote() as remote:
        peer, calls = outlet_of(remote)
        peer._channels = dict.fromkeys(range(channels))
        for number in range(1, enough + 1):
            assert calls.soon == [], f"{number - 1} of {channels} channels"
            with remote.memory.lock:
                wake = peer.schedule_locked(number - 1, When.LATER, reader_blocked=False)
            if wake is not None:
                wake()
        assert calls.soon == [peer.open]


@pytest.mark.spec("G5")
def test_enough_credit_of_one_channel_is_announced_while_the_reader_reads():
    with Remote(exclusive=8, floating=0) as remote:
        for _ in range(8):
            remote.arrive()
        for _ in range(3):
            remote.read()
        assert remote.due == [], "there may be more, and there is enough to read"
        remote.read()
        assert remote.due == [True], "its producer can go on with four"


@pytest.mark.spec("G5")
def test_credit_is_not_announced_while_more_buffers_are_unread():
    with Remote(exclusive=5, floating=0) as remote:
        for _ in range(5):
            remote.arrive()
        remote.read()
        remote.read()
        assert remote.due == [], "two, and three to read"
        remote.read()
        assert remote.due == [False], "three, and two to read"


@pytest.mark.spec("G5")
def test_credit_does_not_wait_for_unread_events():
    with Remote(exclusive=5, floating=0) as remote:
        remote.arrive()
        for _ in range(3):
            remote.event(CheckpointBarrier(1, 0))
        remote.read()
        remote.read()
        remote.read()
        assert remote.due == [], "one, and an event to read"
        remote.read()
        assert remote.due == [False], "nothing is left"


class Carrier:
    """An open connection that records the calls it gets."""

    def __init__(self, *, outgoing):
        self.outgoing, self.worker = outgoing, 3
        self.usable, self.state = True, ConnectionState.OPEN
        self.pump = SimpleNamespace(channels=set(), queue_frames_locked=self._queue_frames)
        self.said = []
        self.calls = []

    def _queue_frames(self, channels):
        self.said += channels
        self.pump.channels.update(channels)
        return []

    def __getattr__(self, name):
        return lambda *_, **__: self.calls.append(name)


@pytest.mark.spec("T3", "N4")
@pytest.mark.parametrize("outgoing", [True, False], ids=["ours", "theirs"])
def test_new_channels_use_the_latest_connection(outgoing):
    """The peer has sent `Close` on the earlier one, or it would not have made or accepted another."""
    with Remote() as remote:
        peer, _ = outlet_of(remote)
        old, new = Carrier(outgoing=not outgoing), Carrier(outgoing=outgoing)
        peer.proved(old)
        carried, fresh = object(), object()
        old.pump.channels.add(carried)
        peer.proved(new)
        peer._scheduled = {carried: None, fresh: None}
        for connection in (new, old):
            remote.locked(peer.queue_frames_locked, connection)
        assert (old.said, new.said) == ([carried], [fresh])
        assert set(old.calls + new.calls) == {"flush"}, "neither is closed"


@pytest.mark.parametrize("then", ["open", "_fail"])
def test_a_channel_ends_on_the_connection_that_carries_it(then):
    """Also while there is no later connection, or none can be made."""
    with Remote() as remote:
        peer, _ = outlet_of(remote)
        old, new = Carrier(outgoing=False), Carrier(outgoing=True)
        peer.proved(old)
        old.state = ConnectionState.THEY_CLOSED
        remote.channel.scheduled = False
        old.pump.channels.add(remote.channel)
        peer.proved(new)
        peer.lost(new, None)
        remote.locked(remote.channel.release_locked)
        peer.open() if then == "open" else peer._fail(TransportError("refused", peer="worker 3"))
        remote.locked(peer.queue_frames_locked, old)
        assert old.said == [remote.channel]


class ChannelIn:
    """A remote channel that has only a state."""

    def __init__(self, state):
        self.state = state


@pytest.mark.spec("N4")
def test_a_task_schedules_channels_while_the_network_thread_reads_them():
    peers = Peers(0, ThreadSync().lock, Calls(), 10**9, connect=None)
    peer, rounds = peer_of(peers), 2_000
    peer.proved(Carrier(outgoing=True))
    finished = threading.Event()

    def schedule():
        for _ in range(rounds):
            channel = ChannelIn(RemoteState.RECEIVING)
            with peers.lock:
                peer.schedule_locked(channel, When.NOW, reader_blocked=False)
        finished.set()

    def read():
        while not finished.is_set():
            assert not peer.wants(peer.connection), "no channel still has to request its partition"

    with switching_often():
        run_threads(schedule, read)
    with peers.lock:
        peer.schedule_locked(ChannelIn(RemoteState.REQUESTING), When.NOW, reader_blocked=False)
    assert peer.wants(peer.connection)


@pytest.mark.spec("N4", "N5")
def test_a_worker_is_another_peer_in_each_lane():
    lock = ThreadSync().lock
    peers = Peers(0, lock, Calls(), 10**9, connect=None)
    first, second = peer_of(peers), peer_of(peers, lane=1)
    assert first is not second
    assert peer_of(peers, lane=1) is second
    assert (second.worker, second.lane) == (3, 1)
    assert set(peers) == {first, second}
    with lock:
        peers.set_address_locked(3, Address("127.0.0.1", 7077))
    assert str(first) == str(second) == str(peer_of(peers, lane=2)) == "worker 3 at 127.0.0.1:7077"


@pytest.mark.spec("N4", "N5")
def test_a_connection_is_refused_only_in_the_lane_that_has_one():
    peers = Peers(0, ThreadSync().lock, Calls(), 10**9, connect=None)
    first, second = peer_of(peers), peer_of(peers, lane=1)
    first.proved(Carrier(outgoing=True))
    assert [peers.connected(3, lane) for lane in range(3)] == [True, False, False]
    second.opening = True
    assert [peers.connected(3, lane) for lane in range(3)] == [True, True, False]
    first.lost(first.connection, None)
    assert [peers.connected(3, lane) for lane in range(3)] == [False, True, False]


@pytest.mark.spec("N5", "G8")
def test_a_lost_connection_does_not_affect_other_lanes():
    peers = Peers(0, ThreadSync().lock, Calls(), 10**9, connect=None)
    first, second = peer_of(peers), peer_of(peers, lane=1)
    first.proved(Carrier(outgoing=True))
    second.proved(Carrier(outgoing=True))
    first.lost(first.connection, TransportError("reset", peer="worker 3"))
    assert first.connection is None
    assert second.connection.usable
    assert second.connection.calls == ["flush"]
