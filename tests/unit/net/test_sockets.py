"""Streams over TCP: transfers, back pressure, ends of every kind, and a transport that leaves nothing behind."""

import contextlib
import fcntl
import hashlib
import logging
import random
import socket
import sys
import termios
import threading
import time

import pytest
from tests.support.leaks import open_files
from tests.support.sockets import LOCAL, LONG_NS, MIB, SECOND_NS, full_backlog, new_world, reset
from tests.support.streams import LOOPS, Keeper, Pusher
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import Cancelled, TransportError
from headgate.net import Address, socket_stream, sockets
from headgate.net.loop import THREAD_NAME, open_loop
from headgate.net.sockets import SocketOptions, SocketTransport


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=LOOPS)
def world(request, monkeypatch):
    monkeypatch.setattr(sockets, "_CLOSE_GRACE_NS", SECOND_NS // 5)  # some tests leave their peers open
    with new_world(request.param) as made:
        yield made


def read_all(raw):
    """What a blocking socket gets until the end."""
    got = bytearray()
    while piece := raw.recv(MIB):
        got += piece
    return bytes(got)


def assert_gone(raw):
    """There is no socket any more at the other end: after a while the kernel refuses to send."""

    def refused():
        try:
            raw.send(b"x")
        except ConnectionError:
            return True
        return False

    wait_until(refused, "a refusal to send")


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(32 * 1024, 8), (1021, 3), (MIB, 1)])
def test_both_ways_at_once_everything_arrives_in_order(world, piece_bytes, pieces):
    ours, theirs = world.pair()
    size = 24 * MIB if piece_bytes > 2000 else 3 * MIB
    contents = noise(size, 1), noise(size + 12_345, 2)
    left, right = Pusher(ours, contents[0], piece_bytes, pieces), Pusher(theirs, contents[1], piece_bytes, pieces)
    world.transport.call(lambda: (ours.start(left), left.push()))
    world.other.call(lambda: (theirs.start(right), right.push()))
    left.wait(lambda: left.received_bytes == len(contents[1]), "receiving")
    right.wait(lambda: right.received_bytes == len(contents[0]), "receiving")
    assert left.digest.digest() == hashlib.sha256(contents[1]).digest()
    assert right.digest.digest() == hashlib.sha256(contents[0]).digest()
    if piece_bytes > 2000:
        assert left.short_writes + right.short_writes, "a reader may be as fast as its writer, but not both"


@pytest.mark.parametrize("name", LOOPS)
def test_small_buffers_make_short_writes_and_lose_nothing(name):
    options = SocketOptions(send_buffer_bytes=8 * 1024, receive_buffer_bytes=8 * 1024)
    with new_world(name, options) as world:
        ours, theirs = world.pair()
        content = noise(2 * MIB)
        pusher, keeper = Pusher(ours, content, 10_007, 5), Keeper(theirs)
        world.other.call(lambda: theirs.start(keeper))
        world.transport.call(lambda: (ours.start(pusher), pusher.push()))
        keeper.wait_for_bytes(len(content))
        assert keeper.data == content
        assert pusher.short_writes > 10


class Counting(Keeper):
    """A handler that counts the reads."""

    reads = 0

    def received(self, data):
        self.reads += 1
        super().received(data)


@pytest.mark.spec("N6")
@pytest.mark.parametrize("name", LOOPS)
def test_few_reads_take_all_that_the_kernel_holds(name):
    with new_world(name, SocketOptions(receive_buffer_bytes=MIB)) as world:
        stream, raw = world.facing_raw()
        content = noise(256 * 1024)
        raw.sendall(content)
        wait_until(lambda: _held_bytes(stream) == len(content), "the arrival of all bytes")
        counting = Counting(stream)
        world.transport.call(lambda: stream.start(counting))
        counting.wait_for_bytes(len(content))
        assert counting.data == content
        assert counting.reads <= 3, "a small read, which finds out that there is more, and a large one"


def _held_bytes(stream):
    """How many bytes of a stream's socket the kernel holds."""
    held = fcntl.ioctl(stream._socket.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(held, sys.byteorder)


def test_more_pieces_than_the_kernel_takes_at_once(world):
    ours, theirs = world.pair()
    keeper = Keeper(theirs)
    world.other.call(lambda: theirs.start(keeper))
    pieces = [bytes([i % 251]) * (i % 7) for i in range(5000)]
    total = sum(map(len, pieces))
    assert world.transport.call(lambda: ours.write(pieces)) == total
    keeper.wait_for_bytes(total)
    assert keeper.data == b"".join(pieces)


def test_nothing_to_write_is_nothing_written(world):
    ours, _ = world.pair()
    assert world.transport.call(lambda: (ours.write([]), ours.write([b"", memoryview(b"")]))) == (0, 0)


def test_writing_before_the_start_and_writable_after_it(world):
    stream, raw = world.facing_raw()
    content = noise(32 * MIB)
    pusher = Pusher(stream, content)
    world.transport.call(pusher.push)
    assert pusher.short_writes == 1, "more than the kernel holds"
    assert world.transport.call(lambda: stream.write([b"x"])) == 0, "nothing until `writable`"
    world.transport.call(lambda: stream.start(pusher))
    got = hashlib.sha256()
    left = len(content)
    while left:
        piece = raw.recv(MIB)
        got.update(piece)
        left -= len(piece)
    assert got.digest() == hashlib.sha256(content).digest()


def test_writable_comes_once_for_each_short_write(world):
    stream, raw, keeper = world.kept()
    offered = noise(32 * MIB)
    taken = world.transport.call(lambda: stream.write([offered]))
    assert 0 < taken < len(offered)
    left = taken
    while left:
        left -= len(raw.recv(MIB))
    keeper.wait(lambda: "writable" in keeper.events, "writable")
    for _ in range(20):
        world.transport.call(lambda: None)
    assert keeper.events == ["writable"], "the kernel says it all the time; the stream says it once"
    assert world.transport.call(lambda: stream.write([b"more"])) == 4


def test_streams_share_a_read_buffer_but_receive_their_own_bytes(world):
    pairs = [world.pair() for _ in range(4)]
    keepers = []
    for i, (ours, theirs) in enumerate(pairs):
        keeper = Keeper(theirs)
        keepers.append(keeper)
        world.other.call(lambda theirs=theirs, keeper=keeper: theirs.start(keeper))
        world.transport.call(lambda ours=ours, i=i: ours.write([bytes([i]) * 50_000]))
    for i, keeper in enumerate(keepers):
        keeper.wait_for_bytes(50_000)
        assert keeper.data == bytes([i]) * 50_000


def test_reads_of_all_sizes(world):
    stream, raw = world.facing_raw()
    keeper = Keeper(stream)
    world.transport.call(lambda: stream.start(keeper))
    sent = b""
    for size in (1, 16_384, 327_680, 1, 100):
        content = bytes([size % 251]) * size
        raw.sendall(content)
        sent += content
        keeper.wait_for_bytes(len(sent))
        assert world.transport.call(stream._receive) is False, "there is nothing, and that is no error"
    assert keeper.data == sent
    raw.close()
    keeper.wait(lambda: "lost" in keeper.events, "the end")
    assert keeper.events == ["received", "lost"]


def test_writes_of_all_sizes(world):
    stream, raw = world.facing_raw()
    world.transport.call(lambda: stream.start(Keeper(stream)))
    for size in (1, 4096, 81_920):
        content = [bytes([size % 251]) * (size // 2), memoryview(bytes([size % 241]) * (size - size // 2))]
        assert world.transport.call(lambda content=content: stream.write(content)) == size
        received = b""
        while len(received) < size:
            received += raw.recv(size)
        assert received == b"".join(content)


def test_a_blocked_small_write_is_followed_by_writable(world):
    stream, raw = world.facing_raw()
    keeper, piece, taken = Keeper(stream), bytes(4096), 0
    world.transport.call(lambda: stream.start(keeper))
    while (size := world.transport.call(lambda: stream.write([piece]))) == len(piece):
        taken += size
    taken += size
    assert world.transport.call(lambda: stream.write([piece])) == 0, "it takes nothing until it says so"
    assert keeper.events == []
    while taken:
        taken -= len(raw.recv(min(taken, 1 << 20)))
    keeper.wait(lambda: "writable" in keeper.events, "room")


def test_a_small_write_to_a_peer_that_is_gone_ends_the_stream(world):
    stream, raw = world.facing_raw()
    keeper = Keeper(stream)
    raw.close()
    world.transport.call(lambda: stream.start(keeper))
    wait_until(lambda: world.transport.call(lambda: stream.write([b"x"])) == 0, "a write that fails")
    keeper.wait(lambda: "lost" in keeper.events, "the end")


# --- back pressure ---------------------------------------------------------------------------------------------------


def test_a_paused_stream_stops_its_peer(world):
    ours, theirs = world.pair()
    content = bytes(192 * MIB)  # far more than two kernels hold
    pusher, keeper = Pusher(ours, content, MIB, 4), Keeper(theirs)
    world.other.call(lambda: (theirs.start(keeper), theirs.pause_reading(), theirs.pause_reading()))
    world.transport.call(lambda: (ours.start(pusher), pusher.push()))
    stalled = 0
    while stalled < 30:  # no progress for so many rounds: the kernels are full
        before = pusher.sent
        time.sleep(0.005)
        world.transport.call(lambda: None)
        stalled = stalled + 1 if pusher.sent == before else 0
    assert 0 < pusher.sent < 64 * MIB, "bounded by the kernel's buffers, not by what there is to send"
    assert not keeper.data
    assert keeper.events == []
    world.other.call(lambda: (theirs.resume_reading(), theirs.resume_reading()))
    keeper.wait(lambda: len(keeper.data) == len(content), "the rest")


def test_a_handler_may_pause_from_within_received(world):
    stream, raw = world.facing_raw()

    class OneAtATime(Keeper):
        def received(self, data):
            assert not self.paused, "received although paused"
            self.paused = True
            stream.pause_reading()
            super().received(data)

    handler = OneAtATime(stream)
    handler.paused = False
    world.transport.call(lambda: stream.start(handler))
    content = noise(3 * MIB)
    sender = threading.Thread(target=raw.sendall, args=(content,))
    sender.start()

    def resume():
        handler.paused = False
        stream.resume_reading()

    while len(handler.data) < len(content):
        handler.wait(lambda: handler.paused, "received")
        world.transport.call(resume)
    sender.join()
    assert handler.data == content


# --- ends ------------------------------------------------------------------------------------------------------------


def test_lost_is_called_after_the_last_byte_of_an_orderly_end(world):
    stream, raw, keeper = world.kept()
    world.transport.call(lambda: stream.write([b"from us"]))
    content = noise(MIB)
    sender = threading.Thread(target=lambda: (raw.sendall(content), raw.shutdown(socket.SHUT_WR)))
    sender.start()
    assert keeper.wait_lost() is None
    sender.join()
    assert keeper.data == content
    assert read_all(raw) == b"from us", "a half-closed peer still gets what was written before"
    assert world.transport.call(lambda: stream.write([b"x"])) == 0
    world.transport.call(lambda: (stream.close(), stream.abort(), stream.pause_reading(), stream.resume_reading()))
    assert keeper.losses == [None]


def test_close_sends_the_accepted_bytes_before_the_end(world):
    ours, theirs = world.pair()
    ends = Keeper(ours), Keeper(theirs)
    content = noise(40_000)
    world.other.call(lambda: theirs.start(ends[1]))

    def write_and_close():
        ours.start(ends[0])
        assert ours.write([content]) == len(content)
        ours.close()
        ours.close()
        assert ends[0].losses == [], "never from inside the call"

    world.transport.call(write_and_close)
    assert ends[0].wait_lost() is None
    assert ends[1].wait_lost() is None
    assert ends[1].data == content
    wait_until(lambda: not world.transport.statistics().lingering, "the end of the lingering")
    assert [end.losses for end in ends] == [[None], [None]]


def test_close_with_unread_input_does_not_drop_bytes_the_peer_has_not_read(world):
    """Without lingering, the kernel answers unread input with a reset, and the peer's read fails."""
    stream, raw, keeper = world.kept()
    world.transport.call(stream.pause_reading)
    raw.sendall(noise(200_000))
    content = noise(100_000)

    def write_and_close():
        assert stream.write([content]) == len(content)
        stream.close()

    world.transport.call(write_and_close)
    assert keeper.wait_lost() is None
    assert not keeper.data, "nothing is received any more"
    raw.sendall(noise(200_000))
    assert read_all(raw) == content
    raw.sendall(b"more, until we close")
    assert world.transport.statistics().lingering == 1
    raw.close()
    wait_until(lambda: not world.transport.statistics().lingering, "the end of the lingering")


def test_closing_does_not_wait_for_ever_for_the_peer(world, monkeypatch):
    monkeypatch.setattr(socket_stream, "LINGER_NS", 1_000_000)
    stream, raw, keeper = world.kept()
    world.transport.call(stream.close)
    assert keeper.wait_lost() is None
    wait_until(lambda: not world.transport.statistics().lingering, "the end of the lingering")
    assert raw.recv(1) == b""
    assert_gone(raw)


def test_abort_is_a_reset_for_the_peer(world):
    stream, raw, keeper = world.kept()

    def abort():
        stream.abort()
        stream.abort()
        assert keeper.losses == []

    world.transport.call(abort)
    assert keeper.wait_lost() is None
    with pytest.raises(ConnectionResetError):
        raw.recv(1)
    assert keeper.losses == [None]
    assert world.transport.statistics().streams == 0


def test_abort_after_close_ends_the_lingering(world):
    stream, raw, keeper = world.kept()
    raw.sendall(b"unread")
    world.transport.call(lambda: (stream.close(), stream.abort()))
    assert keeper.wait_lost() is None
    assert world.transport.statistics().lingering == 0
    assert read_all(raw) == b""
    assert_gone(raw)


def test_a_reset_by_the_peer_is_an_error_that_names_it(world):
    _, raw, keeper = world.kept()
    peer = str(Address(*raw.getsockname()))
    reset(raw)
    error = keeper.wait_lost()
    assert isinstance(error, TransportError)
    assert error.peer == peer
    assert peer in str(error)
    assert "reset" in str(error)
    assert keeper.losses == [error]


def test_a_write_that_fails_takes_nothing_and_lost_follows_from_the_loop(world):
    stream, raw, keeper = world.kept()
    world.transport.call(stream.pause_reading)
    reset(raw)

    def write():
        taken = stream.write([b"x" * 1000])
        assert stream.write([b"again"]) == 0
        assert keeper.losses == [], "never from inside the call"
        return taken

    wait_until(lambda: world.transport.call(write) == 0, "the failure of a write")
    error = keeper.wait_lost()
    assert isinstance(error, TransportError)
    assert error.peer == stream.peer
    for _ in range(5):
        world.transport.call(lambda: (stream.close(), stream.abort()))
    assert keeper.losses == [error]


def test_the_last_bytes_of_a_peer_are_received_after_a_failed_write(world):
    stream, raw, keeper = world.kept()
    world.transport.call(stream.pause_reading)
    last_words = noise(40_000)  # no more than the kernel on our side takes before the reset
    raw.sendall(last_words)
    reset(raw)

    def write():
        stream.resume_reading()
        assert stream.write([b"x" * 1000]) == 0

    world.transport.call(write)
    error = keeper.wait_lost()
    assert keeper.data == last_words
    assert isinstance(error, TransportError)
    assert keeper.events == ["received", "lost"]


def test_close_between_a_failed_write_and_its_lost_receives_nothing(world):
    stream, raw, keeper = world.kept()
    world.transport.call(stream.pause_reading)
    raw.sendall(b"too late")
    reset(raw)

    def write_and_close():
        stream.resume_reading()
        assert stream.write([b"x"]) == 0
        stream.close()

    world.transport.call(write_and_close)
    assert isinstance(keeper.wait_lost(), TransportError)
    world.transport.call(lambda: None)
    assert keeper.events == ["lost"]


def test_starting_an_ended_stream_calls_lost(world):
    stream, raw = world.facing_raw()
    keeper = Keeper(stream)
    world.transport.call(lambda: (stream.close(), stream.start(keeper)))
    assert keeper.wait_lost() is None
    raw.close()
    world.transport.call(lambda: None)
    assert keeper.events == ["lost"]


def test_received_bytes_wait_for_the_start(world):
    stream, raw = world.facing_raw()
    raw.sendall(b"early")
    raw.close()
    keeper = Keeper(stream)
    world.transport.call(lambda: stream.start(keeper))
    assert keeper.wait_lost() is None
    assert keeper.data == b"early"


@pytest.mark.parametrize("where", ["received", "writable"])
def test_a_handler_that_raises_loses_only_its_own_stream(world, caplog, where):
    stream, raw, _ = *world.facing_raw(), None
    healthy, healthy_raw, healthy_keeper = world.kept()

    class Bad(Keeper):
        def received(self, data):
            raise ValueError("bad handler")

        def writable(self):
            raise ValueError("bad handler")

    bad = Bad(stream)
    with caplog.at_level(logging.ERROR):
        world.transport.call(lambda: stream.start(bad))
        if where == "received":
            raw.sendall(b"x")
            with pytest.raises(ConnectionResetError):
                raw.recv(1)
        else:
            taken = world.transport.call(lambda: stream.write([bytes(32 * MIB)]))
            with contextlib.suppress(ConnectionResetError):
                while taken:
                    taken -= len(raw.recv(MIB))
        error = bad.wait_lost()
    assert isinstance(error, TransportError)
    assert "bad handler" in str(error)
    world.transport.call(lambda: None)
    assert bad.losses == [error]
    assert "bad handler" in caplog.text
    healthy_raw.sendall(b"well")
    healthy_keeper.wait_for_bytes(4)
    assert healthy.peer != stream.peer


def test_a_handler_that_raises_in_lost_is_logged(world, caplog):
    stream, raw = world.facing_raw()

    class Bad(Keeper):
        def lost(self, error):
            super().lost(error)
            raise ValueError("bad handler")

    bad = Bad(stream)
    with caplog.at_level(logging.ERROR):
        world.transport.call(lambda: stream.start(bad))
        raw.close()
        bad.wait_lost()
        world.transport.call(lambda: None)
    assert bad.losses == [None]
    assert "bad handler" in caplog.text


def test_options_reach_both_ends(monkeypatch):
    monkeypatch.setattr(sockets, "_CLOSE_GRACE_NS", 0)
    options = SocketOptions(keepalive=True, send_buffer_bytes=65_536, receive_buffer_bytes=131_072)
    for wanted in (options, SocketOptions(keepalive=False)):
        with new_world("shared", wanted) as world:
            for stream in world.pair():
                option = stream._socket.getsockopt
                assert not stream._socket.getblocking()
                assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == wanted.keepalive
                if wanted.send_buffer_bytes:
                    assert option(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 65_536, "the kernel doubles it"
                    assert option(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 131_072


# --- the transport ---------------------------------------------------------------------------------------------------


def test_closing_the_transport_ends_everything(world):
    ours, theirs = world.pair()
    unstarted, raw = world.facing_raw()
    mine, peer, answers = Keeper(ours), Keeper(theirs), []
    world.transport.call(lambda: ours.start(mine))
    world.other.call(lambda: theirs.start(peer))
    world.transport.call(lambda: world.transport.listen(LOCAL, 0, lambda stream: None))
    with full_backlog() as address:
        world.transport.call(lambda: world.transport.connect(address, LONG_NS, answers.append))
        world.transport.call(lambda: ours.write([b"last words"]))
        raw.close()
        world.transport.close()
        world.transport.close()
    assert mine.losses == [None]
    assert peer.wait_lost() is None
    assert peer.data == b"last words"
    [error] = answers
    assert isinstance(error, TransportError)
    assert "closed" in str(error)
    statistics = world.transport.statistics()
    assert (statistics.streams, statistics.lingering, statistics.connecting, statistics.listeners) == (0, 0, 0, 0)
    assert unstarted.write([b"x"]) == 0
    with pytest.raises(Cancelled):
        world.transport.call(lambda: None)


def test_a_stubborn_peer_does_not_keep_the_transport_open(world, monkeypatch):
    monkeypatch.setattr(sockets, "_CLOSE_GRACE_NS", 10_000_000)
    _, raw, keeper = world.kept()
    world.transport.close()
    assert keeper.losses == [None]
    assert raw.recv(1) == b""


def test_a_transport_can_be_closed_by_its_own_thread(world):
    stream, raw, keeper = world.kept()
    raw.close()
    world.transport.call(world.transport.close)
    world.transport.close()
    assert keeper.losses == [None]
    assert stream.write([b"x"]) == 0


@pytest.mark.parametrize("name", LOOPS)
def test_a_transport_that_never_started_is_closed_too(name):
    before, answers = open_files(), []
    transport = SocketTransport(open_loop(name))
    transport.listen(LOCAL, 0, lambda stream: None)
    transport.connect(Address("nowhere", 1), LONG_NS, answers.append)
    transport.close()
    assert open_files() <= before
    assert len(answers) == 1


def test_a_closed_transport_refuses(world):
    refused, answers = [], []

    class Again(Keeper):
        def lost(self, error):
            super().lost(error)
            world.transport.connect(Address(LOCAL, 1), LONG_NS, answers.append)
            try:
                world.transport.listen(LOCAL, 0, lambda stream: None)
            except TransportError as refusal:
                refused.append(refusal)

    stream, raw = world.facing_raw()
    again = Again(stream)
    world.transport.call(lambda: stream.start(again))
    raw.settimeout(None)
    closer = threading.Thread(target=world.transport.close)
    closer.start()
    again.wait_lost()  # the transport still waits for the raw end then
    wait_until(lambda: answers, "the answer")
    raw.close()
    closer.join()
    assert "closed" in str(refused[0])
    assert "closed" in str(answers[0])


def test_a_call_returns_or_raises_the_result_of_its_function(world, request):
    shared = request.node.callspec.params["world"] == "shared"  # there who calls may do it
    caller = threading.current_thread().name
    assert world.transport.call(lambda: threading.current_thread().name) in {THREAD_NAME, caller if shared else None}
    with pytest.raises(ZeroDivisionError):
        world.transport.call(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        world.transport.call(lambda: exec("raise SystemExit"))


def test_timers_and_calls_reach_the_loop(world):
    seen = threading.Semaphore(0)
    before = world.transport.now_ns()
    world.transport.post(seen.release)
    world.transport.call(lambda: world.transport.call_at(before, seen.release))
    for _ in range(2):
        assert seen.acquire(timeout=PATIENCE_S)
    assert world.transport.now_ns() >= before
