"""The in-process pipe and its transport: everything by hand, in an order that is always the same."""

import hashlib
import random
import socket
import threading
from collections import deque

import pytest
from tests.support.streams import Keeper, Pusher

from headgate.errors import InvariantViolated, TransportError
from headgate.net import Address
from headgate.net.memory import MemoryTransport, pipe

SECOND_NS = 1_000_000_000
WORKER = Address("10.0.0.1", 7077)


class Steps(deque):
    """Calls that wait until the test lets them happen."""

    post = deque.append

    def step(self):
        self.popleft()()

    def run(self):
        while self:
            self.step()


@pytest.fixture
def steps():
    return Steps()


def started(steps, capacity_bytes=10):
    """Both ends of a pipe with their handlers: (left, right, of left, of right)."""
    left, right = pipe(steps.post, capacity_bytes)
    handlers = Keeper(left), Keeper(right)
    left.start(handlers[0])
    right.start(handlers[1])
    return left, right, *handlers


# --- the pipe --------------------------------------------------------------------------------------------------------


def test_bytes_arrive_when_the_step_is_made(steps):
    left, right, _, at_right = started(steps)
    assert (left.peer, right.peer) == ("right", "left")
    assert left.write([b"abc", memoryview(b"de")]) == 5
    assert at_right.events == [], "not from inside the call"
    steps.run()
    assert at_right.data == b"abcde"
    assert right.write([b"back"]) == 4
    steps.run()
    assert left.write([]) == left.write([b""]) == 0


def test_no_more_than_the_capacity_is_on_its_way(steps):
    left, right, at_left, at_right = started(steps, capacity_bytes=10)
    assert left.write([b"abcdef", b"ghijkl", b"m"]) == 10
    assert left.write([b"klm"]) == 0, "nothing until `writable`"
    steps.run()
    assert at_right.data == b"abcdefghij"
    assert at_left.events == ["writable"], "once"
    assert left.write([b"klm"]) == 3
    steps.run()
    assert at_right.data == b"abcdefghijklm"
    assert at_left.events == ["writable"], "all was taken: nothing is owed"
    assert right.write([b"0123456789"]) == 10, "the other direction has its own"


def test_a_paused_stream_stops_its_peer(steps):
    left, right, at_left, at_right = started(steps, capacity_bytes=10)
    right.pause_reading()
    right.pause_reading()
    assert left.write([b"x" * 25]) == 10
    steps.run()
    assert (at_left.events, at_right.events) == ([], [])
    right.resume_reading()
    right.resume_reading()
    steps.run()
    assert at_right.data == b"x" * 10
    assert at_left.events == ["writable"]


def test_a_pause_holds_back_bytes_already_written(steps):
    left, right, _, at_right = started(steps)
    left.write([b"abc"])
    right.pause_reading()
    steps.run()
    assert at_right.events == []
    right.resume_reading()
    right.pause_reading()
    right.resume_reading()
    steps.run()
    assert at_right.data == b"abc"


def test_bytes_and_ends_wait_for_the_start(steps):
    left, right = pipe(steps.post, capacity_bytes=4)
    assert left.write([b"abcdef"]) == 4
    steps.run()
    at_right = Keeper(right)
    right.start(at_right)
    steps.run()
    assert at_right.data == b"abcd"
    at_left = Keeper(left)
    left.start(at_left)
    steps.run()
    assert at_left.events == ["writable"], "what was owed before the start"
    right.close()
    left.close()
    steps.run()
    assert (at_left.losses, at_right.losses) == ([None], [None])
    with pytest.raises(AssertionError, match="once"):
        left.start(at_left)


def test_a_view_is_worth_nothing_after_received(steps):
    left, right = pipe(steps.post)
    views = []

    class Careless(Keeper):
        def received(self, data):
            views.append(data[1:])

    right.start(Careless())
    left.write([b"abc"])
    steps.run()
    assert bytes(views[0]) == b"\xdd\xdd"


def test_close_lets_the_peer_receive_the_accepted_bytes_first(steps):
    left, right, at_left, at_right = started(steps)
    right.pause_reading()
    left.write([b"last"])
    left.close()
    left.close()
    assert at_left.losses == [], "not from inside the call"
    steps.run()
    assert at_left.losses == [None]
    assert at_right.events == [], "paused: it has not come to the end yet"
    right.resume_reading()
    steps.run()
    assert at_right.data == b"last"
    assert at_right.events == ["received", "lost"]
    assert at_right.losses == [None]
    assert right.write([b"x"]) == left.write([b"x"]) == 0
    right.close()
    right.abort()
    left.abort()
    steps.run()
    assert (at_left.losses, at_right.losses) == ([None], [None])


def test_after_close_incoming_bytes_are_discarded(steps):
    left, right, at_left, at_right = started(steps, capacity_bytes=10)
    right.pause_reading()
    assert right.write([b"on its way"]) == 10
    left.close()
    steps.run()
    assert at_left.events == ["lost"]
    assert at_right.events == [], "`writable` was not owed: all had been taken"
    assert right.write([b"y" * 100]) == 100, "taken, and thrown away, as a closing socket does"


def test_a_writer_that_waits_for_room_goes_on_when_its_peer_closes(steps):
    left, right, _, at_right = started(steps, capacity_bytes=10)
    left.pause_reading()
    right.pause_reading()
    assert right.write([b"x" * 11]) == 10
    left.close()
    steps.run()
    assert at_right.events == ["writable"]
    assert right.write([b"x"]) == 1


def test_abort_is_a_reset_for_the_peer_even_if_it_is_paused(steps):
    left, right, at_left, at_right = started(steps)
    right.pause_reading()
    left.write([b"never seen"])
    left.abort()
    left.abort()
    assert right.write([b"x"]) == 0
    assert (at_left.losses, at_right.losses) == ([], [])
    steps.run()
    assert at_left.losses == [None]
    [error] = at_right.losses
    assert isinstance(error, TransportError)
    assert error.peer == right.peer == "left"
    assert at_right.events == ["lost"]
    right.resume_reading()
    steps.run()
    assert len(at_right.losses) == 1


def test_abort_after_close_drops_bytes_the_peer_has_not_received(steps):
    left, right, at_left, at_right = started(steps)
    left.write([b"never seen"])
    left.close()
    left.abort()
    steps.run()
    assert at_left.losses == [None]
    assert at_right.events == ["lost"]
    assert isinstance(at_right.losses[0], TransportError)
    assert right.write([b"x"]) == 0


def test_a_handler_may_do_anything_from_inside(steps):
    left, right = pipe(steps.post, capacity_bytes=10)

    class Closer(Keeper):
        def received(self, data):
            super().received(data)
            assert self.stream.write([b"answer"]) == 6
            self.stream.close()
            assert self.losses == []

    closer, at_left = Closer(right), Keeper(left)
    left.start(at_left)
    right.start(closer)
    left.write([b"one"])
    steps.run()
    assert closer.events == ["received", "lost"]
    assert at_left.data == b"answer"
    assert at_left.losses == [None]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_of_steps_the_bytes_are_the_same(steps, seed):
    dice = random.Random(seed)
    left, right = pipe(steps.post, dice.randint(1, 300))
    contents = dice.randbytes(20_000), dice.randbytes(15_000)
    pushers = [
        Pusher(stream, content, dice.randint(1, 200), dice.randint(1, 5))
        for stream, content in zip((left, right), contents, strict=True)
    ]
    for stream, pusher in zip((left, right), pushers, strict=True):
        stream.start(pusher)
        pusher.push()
    while steps or any(stream._paused for stream in (left, right)):
        stream = dice.choice((left, right))
        dice.choice((stream.pause_reading, stream.resume_reading, stream.resume_reading))()
        if steps:
            steps.step()
        assert all(len(one._inbox) <= one._capacity_bytes for one in (left, right))
    assert [pusher.digest.digest() for pusher in pushers] == [hashlib.sha256(c).digest() for c in reversed(contents)]
    left.close()
    steps.run()
    assert [pusher.losses for pusher in pushers] == [[None], [None]]


# --- the transport ---------------------------------------------------------------------------------------------------


def connected(transport, address=WORKER):
    """Listen, connect, start: (listener, client's stream, server's stream, of client, of server)."""
    accepted, answers = [], []
    listener = transport.listen(*address, accepted.append)
    transport.connect(listener.address, SECOND_NS, answers.append)
    assert (accepted, answers) == ([], []), "not from inside the call"
    transport.run_until_idle()
    [client], [server] = answers, accepted
    handlers = Keeper(client), Keeper(server)
    client.start(handlers[0])
    server.start(handlers[1])
    return listener, client, server, *handlers


def test_streams_by_address():
    transport = MemoryTransport(capacity_bytes=100)
    listener, client, server, at_client, at_server = connected(transport)
    assert client.peer == str(listener.address) == "10.0.0.1:7077"
    assert server.peer == "10.0.0.1:49152"
    assert client.write([b"x" * 1000]) == 100
    transport.run_until_idle()
    assert at_server.data == b"x" * 100
    assert at_client.events == ["writable"]
    server.close()
    transport.run_until_idle()
    assert (at_client.losses, at_server.losses) == ([None], [None])


def test_ports_are_in_use_until_they_are_closed():
    transport = MemoryTransport()
    listener = transport.listen(*WORKER, print)
    with pytest.raises(TransportError, match=r"in use.*network\.port"):
        transport.listen(*WORKER, print)
    free = [transport.listen("10.0.0.1", 0, print).address.port for _ in range(3)]
    assert len(set(free)) == 3
    assert transport.listen("10.0.0.2", WORKER.port, print).address == Address("10.0.0.2", WORKER.port)
    listener.close()
    listener.close()
    again = transport.listen(*WORKER, print)
    listener.close()
    with pytest.raises(TransportError, match="in use"):
        transport.listen(*WORKER, print)
    assert again.address == WORKER


def test_a_free_port_is_not_one_that_was_asked_for_by_number():
    transport = MemoryTransport()
    taken = transport.listen("10.0.0.1", 49_152, print)
    assert transport.listen("10.0.0.1", 0, print).address != taken.address


def test_a_connection_to_an_address_without_a_listener_is_refused():
    transport, answers = MemoryTransport(), []
    transport.connect(WORKER, SECOND_NS, answers.append)
    transport.run_until_idle()
    [error] = answers
    assert isinstance(error, TransportError)
    assert error.peer == str(WORKER)
    assert "refused" in str(error)


def test_a_silent_address_runs_into_the_timeout():
    transport, answers = MemoryTransport(), []
    transport.listen(*WORKER, print)
    transport.silent.add(WORKER)
    transport.connect(WORKER, SECOND_NS, lambda error: answers.append((transport.now_ns(), str(error))))
    transport.advance(SECOND_NS - 1)
    assert answers == []
    transport.advance(1)
    assert answers == [(SECOND_NS, "no connection within 1 s (10.0.0.1:7077)")]


@pytest.mark.parametrize("silent", [True, False])
def test_a_cancelled_connection_is_not_answered(silent):
    transport, accepted, answers = MemoryTransport(), [], []
    transport.listen(*WORKER, accepted.append)
    if silent:
        transport.silent.add(WORKER)
    under_way = transport.connect(WORKER, SECOND_NS, answers.append)
    under_way.cancel()
    under_way.cancel()
    transport.advance(10 * SECOND_NS)
    assert (accepted, answers) == ([], [])


def test_a_listener_that_closes_before_it_accepts_resets():
    transport, answers = MemoryTransport(), []
    listener = transport.listen(*WORKER, lambda stream: pytest.fail("accepted"))
    keeper = Keeper()

    def on_connected(stream):
        answers.append(stream)
        stream.start(keeper)
        listener.close()

    transport.connect(WORKER, SECOND_NS, on_connected)
    transport.run_until_idle()
    assert len(answers) == 1
    assert isinstance(keeper.losses[0], TransportError)


def test_timers_happen_in_order_at_their_own_time():
    transport, seen = MemoryTransport(), []

    def note(what):
        return lambda: seen.append((what, transport.now_ns()))

    transport.call_at(30, note("c"))
    transport.call_at(10, note("a"))
    transport.call_at(10, lambda: (note("b")(), transport.call_at(20, note("added")), transport.post(note("soon"))))
    transport.call_at(25, note("cancelled")).cancel()
    transport.call_at(-5, note("past"))
    transport.run_until_idle()
    assert seen == [("past", 0)]
    transport.advance(29)
    assert seen[1:] == [("a", 10), ("b", 10), ("soon", 10), ("added", 20)]
    assert transport.now_ns() == 29
    transport.advance(1)
    assert seen[-1] == ("c", 30)
    transport.advance(0)
    assert transport.now_ns() == 30
    with pytest.raises(AssertionError, match="backwards"):
        transport.advance(-1)


def test_a_timer_may_cancel_one_that_is_due_with_it():
    transport, seen = MemoryTransport(), []
    transport.call_at(5, lambda: second.cancel())  # noqa: PLW0108 - it is not there yet
    second = transport.call_at(5, lambda: seen.append("second"))
    transport.advance(5)
    assert seen == []


def test_an_error_of_a_callback_reaches_the_test():
    transport = MemoryTransport()
    transport.post(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        transport.run_until_idle()
    transport.run_until_idle()


def test_a_loop_without_end_is_found(monkeypatch):
    monkeypatch.setattr("headgate.net.memory._MOST_STEPS", 1000)
    transport = MemoryTransport()

    def again():
        transport.post(again)

    again()
    with pytest.raises(InvariantViolated, match="after 1000 steps"):
        transport.run_until_idle()


def test_neither_thread_nor_socket_is_needed(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    before = threading.active_count()
    transport = MemoryTransport()
    _, client, _, _, at_server = connected(transport)
    client.write([b"hello"])
    transport.run_until_idle()
    assert at_server.data == b"hello"
    assert threading.active_count() == before


def test_the_same_calls_give_the_same_events_twice():
    def story():
        transport, told = MemoryTransport(capacity_bytes=50), []
        _, client, server, at_client, at_server = connected(transport)
        pusher_content = bytes(range(200))
        sent = client.write([pusher_content])
        transport.call_at(7, lambda: told.append(client.write([pusher_content[sent:]])))
        transport.call_at(8, server.pause_reading)
        transport.call_at(9, lambda: told.append(client.write([b"again"])))
        transport.call_at(10, server.abort)
        transport.advance(100)
        return told, at_client.events, at_server.events, bytes(at_server.data), str(at_client.losses)

    assert story() == story()
