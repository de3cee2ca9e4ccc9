"""How late small messages come over a bare TCP socket to a process that is busy: the wire suite's latency baseline.

`bare_ping` sends between two children (`_children`), at a steady rate, to a thread that blocks in `recv` beside one
that is busy in pure Python (`busy_thread`, which the suite runs beside its own consumer too). What is measured is
the interpreter as much as the network: a thread that got data waits for the other to let go of it.

Each message carries the time it was sent. Both ends read `time.monotonic_ns`, on Linux CLOCK_MONOTONIC, which is one
clock for all processes of a machine: so one way is measured, not half of a round trip.
"""

import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headgate.bench._children import START_S, Parent, child, results_of
from headgate.errors import InvariantViolated
from headgate.slices import Slices

__all__ = ["bare_ping", "bursts", "busy_thread", "percentile"]

_MESSAGE = struct.Struct("<q92x")  # when it was sent, and padding to 100 bytes
_BURST_NS = 500_000  # the least time between two sends: a faster rate puts several messages into one
_SPIN = range(50)  # a microsecond or so between two looks at the clock
_GO = b"!"
_QUIET_S = 0.05  # between the last message and the sender's end, which would compete with its receipt
_READ_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"


def bare_ping(
    rate_hz: float,
    seconds: float,
    busy: float = 0.5,
    *,
    busy_period_s: float = 0.01,
    switch_interval_s: float = 0.005,
    work_s: float = 0.0,
) -> list[float]:
    """Milliseconds from send to receipt of every 100-byte message sent in that time, in the order they came.

    The receiver's process is busy for the share `busy` of each `busy_period_s`, and hands the interpreter over
    after `switch_interval_s` (5 ms is Python's default). Both ends sleep between messages; above 2,000 a second,
    several leave together. Before and after each send, and before and after the time of each receipt is taken, the
    thread that does it computes for `work_s`.

    >>> delays_ms = bare_ping(1_000, 0.05)
    >>> len(delays_ms), min(delays_ms) > 0
    (50, True)
    """
    count = round(rate_hz * seconds)
    if rate_hz <= 0 or count < 1:
        raise ValueError(f"{rate_hz:g} messages/s for {seconds:g} s: send at least one")
    _check_share(busy, busy_period_s)
    with (
        child(_receive, busy, busy_period_s, switch_interval_s, work_s) as receiver,
        child(_send, rate_hz, count, work_s) as sender,
    ):
        sender.send(receiver.receive(START_S))
        delays_ms: list[float] = results_of(receiver, sender, timeout_s=START_S + 2 * seconds)[0]
    if len(delays_ms) != count:
        raise InvariantViolated(f"{len(delays_ms)} of {count} messages arrived")
    return delays_ms


@contextmanager
def busy_thread(share: float = 0.5, *, period_s: float = 0.01, slices: Slices | None = None) -> Iterator[None]:
    """Beside the block, a thread computes in pure Python for `share` of each period and sleeps for the rest.

    With 0 there is no thread; with 1 it never sleeps. It only gives up the interpreter when asked to: how soon
    is up to `sys.setswitchinterval`. With `slices` it is treated as the thread of a task.

    >>> with busy_thread(share=0.5):
    ...     time.sleep(0.01)
    """
    _check_share(share, period_s)
    if share == 0:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_be_busy, args=(stop, share, period_s, slices), name="bench-busy")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def bursts(rate_hz: float, count: int) -> Iterator[tuple[int, int]]:
    """When to send how many of `count` messages, sleeping in between: a late wake-up does not lower the rate.

    The time is that at which they are sent, not that at which they were due, and one for all that leave together.

    >>> [number for sent_ns, number in bursts(100_000, 3)]
    [3]
    """
    pause_ns = max(_BURST_NS, 1e9 / rate_hz)
    sent, sleeps, started_ns = 0, 0, time.monotonic_ns()
    while sent < count:
        sleeps += 1
        due_ns = started_ns + math.ceil(sleeps * pause_ns)
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        sent_ns = time.monotonic_ns()
        due = min(count, math.floor((sent_ns - started_ns) * rate_hz / 1e9))
        yield sent_ns, due - sent
        sent = due


def percentile(values: Sequence[float], q: float) -> float:
    """The least of the values that `q` per cent of them do not exceed.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 50), percentile([4.0, 1.0, 3.0, 2.0], 99), percentile([7.0], 0)
    (2.0, 4.0, 7.0)
    """
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 <= q <= 100:
        raise ValueError(f"q = {q:g}: a percentile is from 0 to 100")
    return sorted(values)[max(0, math.ceil(len(values) * q / 100) - 1)]


def _check_share(share: float, period_s: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"busy for {share:g} of the time: a share is from 0 to 1")
    if period_s <= 0:
        raise ValueError(f"periods of {period_s:g} s: they need some length")


def _be_busy(stop: threading.Event, share: float, period_s: float, slices: Slices | None) -> None:
    busy_s, idle_s = share * period_s, (1 - share) * period_s
    if slices is not None:
        slices.begin()
    while not stop.is_set():
        started_ns = time.monotonic_ns()
        _compute(busy_s)
        if slices is not None:
            slices.ran(time.monotonic_ns() - started_ns)
        if idle_s:
            stop.wait(idle_s)


def _compute(seconds: float) -> None:
    now_ns = time.monotonic_ns
    until_ns = now_ns() + round(seconds * 1e9)
    while now_ns() < until_ns:
        for _ in _SPIN:
            pass


def _receive(parent: Parent, busy: float, busy_period_s: float, switch_interval_s: float, work_s: float) -> list[float]:
    """The consumer's process: busy, and receiving until the sender closes."""
    sys.setswitchinterval(switch_interval_s)
    with socket.create_server((_LOOPBACK, 0)) as server:
        server.settimeout(START_S)
        parent.send(server.getsockname()[1])
        connection, _ = server.accept()
    with connection, busy_thread(busy, period_s=busy_period_s):
        connection.sendall(_GO)
        return _delays_ms(connection, work_s)


def _delays_ms(connection: socket.socket, work_s: float) -> list[float]:
    """Milliseconds from send to receipt of every message."""
    delays_ms: list[float] = []
    into = memoryview(bytearray(_READ_BYTES))
    filled = 0
    while count := connection.recv_into(into[filled:]):
        _compute(work_s)
        received_ns = time.monotonic_ns()
        filled += count
        whole = filled - filled % _MESSAGE.size
        delays_ms += [(received_ns - sent_ns) / 1e6 for (sent_ns,) in _MESSAGE.iter_unpack(into[:whole])]
        # The start of a message whose rest is still to come moves to the front.
        into[: filled - whole] = into[whole:filled]
        filled -= whole
        _compute(work_s)
    return delays_ms


def _send(parent: Parent, rate_hz: float, count: int, work_s: float) -> None:
    """Send all messages when they are due."""
    port = parent.receive(START_S)
    with socket.create_connection((_LOOPBACK, port), timeout=START_S) as connection:
        connection.recv(len(_GO))  # so that no message waits for the receiver's load to start
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent_ns, number in bursts(rate_hz, count):
            _compute(work_s)
            connection.sendall(_MESSAGE.pack(sent_ns) * number)
            _compute(work_s)
        time.sleep(_QUIET_S)
