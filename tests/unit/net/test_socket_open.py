"""Connecting and listening over TCP: answers, errors that say what to do, and a kernel that runs out of things."""

import contextlib
import logging
import resource
import socket
import threading

import pytest
from tests.support.leaks import open_files
from tests.support.sockets import LOCAL, LONG_NS, SECOND_NS, full_backlog, new_world
from tests.support.streams import LOOPS, Keeper, Taker
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import TransportError
from headgate.net import Address, socket_open, sockets


@pytest.fixture(params=LOOPS)
def world(request, monkeypatch):
    monkeypatch.setattr(sockets, "_CLOSE_GRACE_NS", SECOND_NS // 5)  # some tests leave their peers open
    with new_world(request.param) as made:
        yield made


# --- connecting ------------------------------------------------------------------------------------------------------


def attempt(world, address, timeout_ns=LONG_NS):
    """Connect and wait for the answer; all answers there were."""
    taker = Taker()
    world.transport.call(lambda: world.transport.connect(address, timeout_ns, taker))
    taker.wait_for()
    for _ in range(5):
        world.transport.call(lambda: None)
    return taker.answers


@pytest.fixture
def closed_port():
    """A port that nobody listens on: bound, so that nobody else gets it."""
    with socket.socket() as holder:
        holder.bind((LOCAL, 0))
        yield Address(*holder.getsockname())


def test_a_refused_connection_names_the_peer(world, closed_port):
    [error] = attempt(world, closed_port)
    assert isinstance(error, TransportError)
    assert error.peer == str(closed_port)
    assert "refused" in str(error)
    assert world.transport.statistics().connecting == 0


def test_a_connection_that_takes_too_long_names_the_peer(world):
    with full_backlog() as address:
        [error] = attempt(world, address, timeout_ns=20_000_000)
        assert isinstance(error, TransportError)
        assert error.peer == str(address)
        assert "within 0.02 s" in str(error)
        assert "network.connect_timeout" in str(error)
        assert world.transport.statistics().connecting == 0


def test_a_cancelled_connection_is_not_answered(world, closed_port):
    answers = []

    def connect_and_cancel(address):
        under_way = world.transport.connect(address, 10_000_000, answers.append)
        under_way.cancel()
        under_way.cancel()

    with full_backlog() as address:
        world.transport.call(lambda: connect_and_cancel(address))
        world.transport.call(lambda: connect_and_cancel(closed_port))
        world.transport.call(lambda: connect_and_cancel(Address("not an address", 1)))
        assert world.transport.statistics().connecting == 0
        # Longer than its timeout, by the same clock.
        passed = threading.Event()
        world.transport.call(lambda: world.transport.call_at(world.transport.now_ns() + 20_000_000, passed.set))
        assert passed.wait(PATIENCE_S)
    assert answers == []


def test_cancelling_after_the_answer_leaves_the_stream_alone(world):
    connected = Taker()
    listener = world.other.call(lambda: world.other.listen(LOCAL, 0, lambda stream: None))
    timer = world.transport.call(lambda: world.transport.connect(listener.address, LONG_NS, connected))
    [stream] = connected.wait_for()
    assert world.transport.call(world.transport._loop._timers.next_ns) is None, "nobody waits for its timeout"
    world.transport.call(timer.cancel)
    assert world.transport.call(lambda: stream.write([b"still here"])) == 10
    assert stream.peer == str(listener.address)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address("localhost", 80), "not an IP address"),
        (Address("", 80), "not an IP address"),
        (Address("127.1", 80), "not an IP address"),
        (Address(LOCAL, 65_536), "not an IP address and a port"),
        (Address(LOCAL, -1), "not an IP address and a port"),
        (Address("255.255.255.255", 80), "cannot connect"),
    ],
)
def test_an_address_that_cannot_be_is_an_error_and_no_crash(world, address, text):
    [error] = attempt(world, address)
    assert isinstance(error, TransportError)
    assert text in str(error)
    assert error.peer == str(address)


def test_the_answer_never_comes_from_inside_connect(world, closed_port):
    answered, inside = threading.Event(), []

    def connect(address):
        calling = True

        def connected(answer):
            inside.append(calling)
            answered.set()

        world.transport.connect(address, LONG_NS, connected)
        calling = False

    for address in (closed_port, Address("nowhere", 1)):
        answered.clear()
        world.transport.call(lambda address=address: connect(address))
        assert answered.wait(PATIENCE_S)
    assert inside == [False, False]


def test_a_socket_that_connects_to_itself_is_not_connected(world, monkeypatch, closed_port):
    """The kernel may do so when nobody listens on a port it can choose for the caller's end."""
    with socket.socket() as finder:
        finder.bind((LOCAL, 0))
        address = Address(*finder.getsockname())
    opened = socket_open._open_socket

    def open_at_that_port(*arguments):
        made = opened(*arguments)
        made.bind(address)
        return made

    monkeypatch.setattr(socket_open, "_open_socket", open_at_that_port)
    [error] = attempt(world, address)
    assert isinstance(error, TransportError)
    assert "no process listens" in str(error)
    assert world.transport.statistics().streams == 0


def test_a_taker_that_raises_gets_its_stream_aborted(world, caplog):
    raised = threading.Event()

    def bad(stream):
        raised.set()
        raise ValueError("bad taker")

    with caplog.at_level(logging.ERROR):
        listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, bad))

        def connect_and_read():
            with socket.create_connection(listener.address, PATIENCE_S) as raw:
                raw.recv(1)

        for _ in range(3):
            with pytest.raises(ConnectionResetError):
                connect_and_read()
        with socket.create_server((LOCAL, 0)) as server:
            raised.clear()
            address = Address(*server.getsockname())
            world.transport.call(lambda: world.transport.connect(address, LONG_NS, bad))
            assert raised.wait(PATIENCE_S)
            with server.accept()[0] as raw, pytest.raises(ConnectionResetError):
                raw.recv(1)
        world.transport.call(lambda: None)
    assert caplog.text.count("ValueError: bad taker") == 4
    assert world.transport.statistics().streams == 0


# --- listening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_both_kinds_of_addresses(world, host):
    ours, theirs = world.pair(host)
    keeper = Keeper(theirs)
    world.other.call(lambda: theirs.start(keeper))
    world.transport.call(lambda: ours.write([b"hello"]))
    keeper.wait_for_bytes(5)
    assert ours.peer.startswith("[::1]:" if ":" in host else "127.0.0.1:")
    assert theirs.peer.startswith("[::1]:" if ":" in host else "127.0.0.1:")


def test_a_port_in_use_is_an_error_that_names_the_setting(world):
    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, lambda stream: None))
    with pytest.raises(TransportError, match=r"in use.*network\.port") as refused:
        world.other.call(lambda: world.other.listen(LOCAL, listener.address.port, lambda stream: None))
    assert refused.value.peer == str(listener.address)
    world.transport.call(lambda: (listener.close(), listener.close()))
    again = world.other.call(lambda: world.other.listen(LOCAL, listener.address.port, lambda stream: None))
    assert again.address == listener.address


def test_a_port_of_a_closed_listener_can_be_used_at_once(world):
    accepted = Taker()
    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, accepted))
    with socket.create_connection(listener.address, PATIENCE_S) as raw:
        [stream] = accepted.wait_for()
        world.transport.call(stream.close)  # the side that ends first keeps the port's number for a minute
        assert raw.recv(1) == b""
    wait_until(lambda: not world.transport.statistics().lingering, "the end of the connection")
    world.transport.call(listener.close)
    again = world.transport.call(lambda: world.transport.listen(*listener.address, accepted))
    assert again.address == listener.address


@pytest.mark.parametrize("host", ["203.0.113.77", "localhost", "2001:db8::77", ""])
def test_an_address_of_another_machine_is_an_error_that_names_the_setting(world, host):
    with pytest.raises(TransportError, match=r"network\.bind_address"):
        world.transport.call(lambda: world.transport.listen(host, 0, lambda stream: None))
    assert world.transport.statistics().listeners == 0


def test_a_closed_listener_accepts_no_more(world, caplog):
    accepted = []

    def accept_one(stream):
        accepted.append(stream)
        listener.close()

    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, accept_one))
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket()) for _ in range(3)]

        def connect_all():  # on the network thread, so that all of them wait when it looks
            for raw in waiting:
                raw.setblocking(False)
                raw.connect_ex(listener.address)

        world.transport.call(connect_all)
        wait_until(lambda: accepted, "accepting")
        world.transport.call(lambda: None)
        assert len(accepted) == 1
        assert caplog.records == [], "nor does it try"


def test_many_at_once_are_all_accepted(world):
    accepted = Taker()
    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, accepted))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(listener.address, PATIENCE_S))
        assert len(set(accepted.wait_for(200))) == 200
        assert world.transport.statistics().streams == 200


def test_without_file_descriptors_a_listener_waits_and_goes_on(world, caplog):
    accepted = threading.Event()
    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, lambda stream: accepted.set()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as raw, caplog.at_level(logging.WARNING):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_files())) + 1, hard))
        holes = []
        try:
            with contextlib.suppress(OSError):
                while True:  # files below the limit
                    holes.append(socket.socket())
            raw.connect(listener.address)
            wait_until(lambda: "accepts no connection for 100 ms" in caplog.text, "the warning")
            for _ in range(200):
                world.transport.call(lambda: None)
            assert caplog.text.count("accepts no connection") < 20, "it does not spin"
            assert not accepted.is_set()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for hole in holes:
                hole.close()
        assert accepted.wait(PATIENCE_S)


@pytest.mark.parametrize("code", sorted(socket_open._PASSING))
def test_a_connection_that_failed_before_it_was_accepted_is_passed_over(world, caplog, code):
    accepted = threading.Event()
    listener = world.transport.call(lambda: world.transport.listen(LOCAL, 0, lambda stream: accepted.set()))

    class Failing:
        def __init__(self, real):
            self.real, self.failures = real, 3
            self.fileno, self.close = real.fileno, real.close

        def accept(self):
            if self.failures:
                self.failures -= 1
                raise OSError(code, "passing")
            return self.real.accept()

    def replace():
        listener._socket = Failing(listener._socket)

    world.transport.call(replace)
    with socket.create_connection(listener.address, PATIENCE_S):
        assert accepted.wait(PATIENCE_S)
    assert caplog.records == [], "no pause"
