"""A peer as the outlet of its channels: when what waits to be said goes."""

from types import SimpleNamespace

import pytest
from tests.support_remote import Remote

from headgate.errors import TransportError
from headgate.net import Address
from headgate.net.peers import Peers
from headgate.record import CheckpointBarrier
from headgate.sync import ThreadSync
from headgate.wire.states import ConnectionState


class Calls:
    """A transport that counts who wants to be called."""

    def __init__(self):
        self.soon = []

    def call_soon(self, function):
        self.soon.append(function)


def outlet_of(remote):
    """The way from that channel to its producer, with a connection to be opened first."""
    calls = Calls()
    peer = Peers(0, remote.memory.lock, calls, 10**9, connect=None).peer_locked(3)
    remote.channel.outlet = peer
    return peer, calls


@pytest.mark.spec("G5")
def test_credit_waits_while_its_producer_has_some():
    with Remote(exclusive=2, floating=0) as remote:
        peer, calls = outlet_of(remote)
        remote.arrive()
        remote.read()
        assert remote.locked(peer.hurry_locked) is None
        assert calls.soon == [], "one credit is left there"
        remote.arrive()
        remote.locked(peer.hurry_locked)
        assert calls.soon == [peer.open], "none is left"


def test_who_has_nothing_to_say_is_not_hurried():
    with Remote(exclusive=2, floating=0) as remote:
        peer, calls = outlet_of(remote)
        assert remote.locked(peer.hurry_locked) is None
        assert calls.soon == []


@pytest.mark.spec("G5")
def test_what_is_urgent_does_not_wait():
    with Remote(exclusive=2, floating=0) as remote:
        _, calls = outlet_of(remote)
        remote.locked(remote.channel.send_event_locked, b"event")
        assert len(calls.soon) == 1


@pytest.mark.spec("G5")
@pytest.mark.parametrize(("channels", "enough"), [(10, 8), (128, 8), (160, 10)])
def test_credit_of_many_channels_goes_before_the_reader_has_read_all(channels, enough):
    with Remote() as remote:
        peer, calls = outlet_of(remote)
        peer._channels = dict.fromkeys(range(channels))
        for number in range(1, enough + 1):
            assert calls.soon == [], f"{number - 1} of {channels} channels"
            with remote.memory.lock:
                wake = peer.due_locked(number - 1, urgent=False)
            if wake is not None:
                wake()
        assert calls.soon == [peer.open]


@pytest.mark.spec("G5")
def test_credit_of_one_channel_goes_before_the_reader_has_read_all():
    with Remote(exclusive=8, floating=0) as remote:
        for _ in range(8):
            remote.arrive()
        for _ in range(3):
            remote.read()
        assert remote.due == [], "there may be more, and there is enough to read"
        remote.read()
        assert remote.due == [True], "its producer can go on with four"


@pytest.mark.spec("G5")
def test_credit_waits_while_more_is_unread_than_was_given_back():
    with Remote(exclusive=5, floating=0) as remote:
        for _ in range(5):
            remote.arrive()
        remote.read()
        remote.read()
        assert remote.due == [], "two, and three to read"
        remote.read()
        assert remote.due == [False], "three, and two to read"


@pytest.mark.spec("G5")
def test_credit_does_not_wait_for_what_gives_no_buffer_back():
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
    """A connection that says it is open, and remembers what became of it."""

    def __init__(self, *, outgoing):
        self.outgoing, self.worker = outgoing, 3
        self.usable, self.state = True, ConnectionState.OPEN
        self.pump = SimpleNamespace(channels=set(), say_locked=self._say)
        self.said = []
        self.calls = []

    def _say(self, channels):
        self.said += channels
        self.pump.channels.update(channels)
        return []

    def __getattr__(self, name):
        return lambda *_, **__: self.calls.append(name)


@pytest.mark.spec("T3", "N4")
@pytest.mark.parametrize("outgoing", [True, False], ids=["ours", "theirs"])
def test_a_new_connection_is_used_though_the_one_before_looks_open(outgoing):
    """The peer has said that it will close that one, or it would not have made or accepted another."""
    with Remote() as remote:
        peer, _ = outlet_of(remote)
        old, new = Carrier(outgoing=not outgoing), Carrier(outgoing=outgoing)
        peer.proved(old)
        carried, fresh = object(), object()
        old.pump.channels.add(carried)
        peer.proved(new)
        peer._due = {carried: None, fresh: None}
        for connection in (new, old):
            remote.locked(peer.say_locked, connection)
        assert (old.said, new.said) == ([carried], [fresh])
        assert set(old.calls + new.calls) == {"flush"}, "neither is closed"


@pytest.mark.parametrize("then", ["open", "_fail"])
def test_what_an_earlier_connection_carries_is_ended_there(then):
    """Also while there is no newer one, or none can be made."""
    with Remote() as remote:
        peer, _ = outlet_of(remote)
        old, new = Carrier(outgoing=False), Carrier(outgoing=True)
        peer.proved(old)
        old.state = ConnectionState.THEY_CLOSED
        remote.channel.due = False
        old.pump.channels.add(remote.channel)
        peer.proved(new)
        peer.lost(new, None)
        remote.locked(remote.channel.release_locked)
        peer.open() if then == "open" else peer._fail(TransportError("nobody there", peer="worker 3"))
        remote.locked(peer.say_locked, old)
        assert old.said == [remote.channel]


@pytest.mark.spec("N4", "N5")
def test_a_worker_is_another_peer_in_each_lane():
    lock = ThreadSync().lock
    peers = Peers(0, lock, Calls(), 10**9, connect=None)
    first, second = peers.peer_locked(3), peers.peer_locked(3, lane=1)
    assert first is not second
    assert peers.peer_locked(3, lane=1) is second
    assert (second.worker, second.lane) == (3, 1)
    assert set(peers) == {first, second}
    peers.know_locked(3, Address("127.0.0.1", 7077))
    assert str(first) == str(second) == str(peers.peer_locked(3, lane=2)) == "worker 3 at 127.0.0.1:7077"


@pytest.mark.spec("N4", "N5")
def test_a_connection_is_not_needed_only_in_the_lane_that_has_one():
    peers = Peers(0, ThreadSync().lock, Calls(), 10**9, connect=None)
    first, second = peers.peer_locked(3), peers.peer_locked(3, lane=1)
    first.proved(Carrier(outgoing=True))
    assert [peers.connected(3, lane) for lane in range(3)] == [True, False, False]
    second.opening = True
    assert [peers.connected(3, lane) for lane in range(3)] == [True, True, False]
    first.lost(first.connection, None)
    assert [peers.connected(3, lane) for lane in range(3)] == [False, True, False]


@pytest.mark.spec("N5", "G8")
def test_what_is_lost_in_one_lane_stays_in_the_others():
    peers = Peers(0, ThreadSync().lock, Calls(), 10**9, connect=None)
    first, second = peers.peer_locked(3), peers.peer_locked(3, lane=1)
    first.proved(Carrier(outgoing=True))
    second.proved(Carrier(outgoing=True))
    first.lost(first.connection, TransportError("reset", peer="worker 3"))
    assert first.connection is None
    assert second.connection.usable
    assert second.connection.calls == ["flush"]
