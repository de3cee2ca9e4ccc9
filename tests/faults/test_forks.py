"""User functions that fork: the child does not touch the parent's connections, and the job ends with every record."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import pytest

import headgate as hg
from headgate import forks
from headgate.net import Address
from headgate.net.loop import open_loop
from headgate.net.sockets import SocketTransport

COUNT = 400
PATIENCE_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def square(n):
    return n * n


class Forks(hg.MapFunction):
    """Forks every now and then; `child` is what the child does."""

    def __init__(self, child, *, wait=True):
        self.child, self.wait = child, wait

    def open(self, context):
        self.parent = os.getpid()

    def map(self, value):
        if value % 40 == 0 and os.getpid() == self.parent:  # a child that goes on with the batch does not fork again
            pid = os.fork()
            if pid == 0:
                self.child()
                return value
            if self.wait:
                status = os.waitpid(pid, 0)[1]
                assert os.WIFEXITED(status), f"the child was killed: {status}"
        return value


def go_on():
    """Return to headgate, as if it were the parent."""


def fail():
    raise ValueError("in the child")


CHILDREN = {
    "_exit": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(3),
    "raises": fail,
    "goes on": go_on,
}


@pytest.fixture(autouse=True)
def hung_children_end():
    """A child that hangs must not keep the tests from ending."""
    before = children()
    yield
    for one in children() - before:
        os.kill(one, signal.SIGKILL)
        os.waitpid(one, 0)


def children():
    found = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as lines:  # the thread has ended
            found.update(map(int, lines.read().split()))
    return found


def run(function, *, mode="STREAMING", transport="auto"):
    env = hg.environment(local=True, parallelism=2, runtime_mode=mode, settings={"network.transport": transport})
    stream = env.from_collection(range(COUNT)).rebalance().map(function).key_by(lambda value: value % 5)
    results = []
    gathering = threading.Thread(
        target=lambda: results.extend(stream.map(lambda value: value).execute_and_collect()), daemon=True
    )
    gathering.start()
    gathering.join(PATIENCE_S)
    assert not gathering.is_alive(), "the job hangs"
    return sorted(results)


@pytest.mark.spec("K6")
@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN.keys())
@pytest.mark.parametrize("transport", ["shared", "asyncio"])
def test_a_function_that_forks(child, transport, capfd):
    for _ in range(2):
        assert run(Forks(child), transport=transport) == list(range(COUNT))
    said = capfd.readouterr().err
    assert ("a child ends with os._exit" in said) == (child is go_on)
    assert ("in a forked child: ValueError: in the child" in said) == (child is fail)


@pytest.mark.spec("K6")
@pytest.mark.parametrize("child", [CHILDREN["sys.exit"], go_on], ids=["sys.exit", "goes on"])
def test_a_function_that_forks_in_batch(child):
    assert run(Forks(child), mode="BATCH") == list(range(COUNT))


@pytest.mark.spec("K6")
def test_children_that_outlive_the_job_do_not_keep_its_connections_open():
    assert run(Forks(lambda: (time.sleep(2 * PATIENCE_S), os._exit(0)), wait=False)) == list(range(COUNT))


def in_a_pool(value):
    if value % 100:
        return value * value
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(square, [value])[0]


@pytest.mark.spec("K6")
def test_a_pool_of_forked_processes():
    for _ in range(4):
        assert run(in_a_pool) == [square(n) for n in range(COUNT)]


def test_the_exit_status_is_that_of_the_child():
    statuses = []

    def status_of(value):
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return value

    env = hg.environment(local=True, parallelism=1)
    env.from_collection([1]).map(status_of).for_each(lambda _: None)
    env.execute()
    assert statuses == [7]


def test_a_child_may_run_a_job_of_its_own():
    def own_job():
        env = hg.environment(local=True, parallelism=2)
        found = sorted(env.from_collection([1, 2]).rebalance().map(square).execute_and_collect())
        os._exit(found == [1, 4])

    def fork(value):
        pid = os.fork()
        if pid == 0:
            own_job()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        return value

    env = hg.environment(local=True, parallelism=1)
    assert list(env.from_collection([5]).map(fork).execute_and_collect()) == [5]


@pytest.mark.parametrize("name", ["shared", "asyncio"])
def test_a_child_has_no_copy_of_a_connection_and_asks_nothing_of_the_loop(name):
    with socket.create_server(("127.0.0.1", 0)) as server, SocketTransport(open_loop(name)) as transport:
        got = []
        transport.call(lambda: transport.connect(Address(*server.getsockname()[:2]), 10**10, got.append))
        with server.accept()[0] as peer:
            peer.settimeout(PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not got:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            transport.call(lambda: got[0].start(Ignore()))
            if (child := os.fork()) == 0:
                transport.post(lambda: got[0].write([b"from the child"]))
                transport.poll_once()
                transport.poll_once(reply_expected=True)
                time.sleep(2 * PATIENCE_S)
                os._exit(0)
            try:
                transport.call(got[0].abort)
                with suppress(ConnectionResetError):
                    assert peer.recv(100) == b"", "the end, though the child lives"
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


class Ignore:
    def received(self, data): ...

    def writable(self): ...

    def lost(self, error): ...


def test_registered_objects_are_abandoned_in_the_child_only():
    class One:
        def __init__(self):
            self.abandoned = False

        def abandon(self):
            self.abandoned = True

    one = One()
    forks.register(one)
    if (child := os.fork()) == 0:
        os._exit(one.abandoned)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert not one.abandoned
