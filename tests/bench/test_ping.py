"""The latency baseline: every message is timed, and the load is what it says."""

import socket
import sys
import threading
import time

import pytest
from tests.support import Thread
from tests.support_children import receive_conditions, send_one_less

from headgate.bench import _ping
from headgate.bench._children import START_S, child
from headgate.bench._ping import bare_ping, busy_thread, percentile
from headgate.errors import InvariantViolated


@pytest.mark.parametrize(("rate_hz", "busy"), [(1_000, 0.5), (50_000, 0.5), (300, 0.0), (1_000, 1.0)])
def test_every_message_is_timed(rate_hz: int, busy: float) -> None:
    delays_ms = bare_ping(rate_hz, 0.2, busy, switch_interval_s=0.0005)
    assert len(delays_ms) == rate_hz * 0.2
    assert all(0 < delay_ms < 60_000 for delay_ms in delays_ms)


def test_work_at_both_ends_delays_every_message() -> None:
    assert min(bare_ping(200, 0.1, 0.0, work_s=0.002)) >= 4.0, "in milliseconds"


def test_a_lost_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ping, "_send", send_one_less)
    with pytest.raises(InvariantViolated, match="19 of 20 messages arrived"):
        bare_ping(1_000, 0.02)


@pytest.mark.parametrize(("busy", "threads"), [(0.5, {"MainThread", "bench-busy"}), (0.0, {"MainThread"})])
def test_the_receiver_works_under_the_conditions_asked_for(busy: float, threads: set[str]) -> None:
    with (
        child(receive_conditions, busy, 0.01, 0.0003, 0.0) as process,
        socket.create_connection(("127.0.0.1", process.receive(START_S)), timeout=START_S),
    ):
        assert process.result(START_S) == (pytest.approx(0.0003), threads)


def test_messages_in_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = Thread(lambda: _ping._delays_ms(theirs, 0.0))
        sent_ns = time.monotonic_ns()
        stream = b"".join(_ping._MESSAGE.pack(sent_ns - number * 10**12) for number in range(3))
        for start in range(0, len(stream), 70):
            ours.sendall(stream[start : start + 70])
            time.sleep(0.01)
        ours.shutdown(socket.SHUT_WR)
        assert [delay_ms // 1e6 for delay_ms in receiver.end()] == [0, 1, 2]


def test_a_sender_that_wakes_late_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sleep's length, the rate holds: 1,000/s for 0.1 s, though each nap takes 20 ms."""
    nap = time.sleep
    monkeypatch.setattr(_ping.time, "sleep", lambda seconds: nap(max(seconds, 0.02)))
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Told:
            def receive(self, timeout_s: float) -> int:
                return server.getsockname()[1]

        started_s = time.monotonic()
        sender = Thread(lambda: _ping._send(Told(), 1_000, 100, 0.0))
        connection, _ = server.accept()
        with connection:
            connection.sendall(_ping._GO)
            sizes = []
            while data := connection.recv(65_536):
                sizes.append(len(data))
        sender.end()
    assert sum(sizes) == 100 * 100
    assert max(sizes) >= 1_000, "several messages in one send"
    assert time.monotonic() - started_s < 100 * 0.02, "not one message a nap"


@pytest.mark.parametrize(("rate_hz", "seconds"), [(0, 1), (1, 0), (-10, -10), (1, 0.1)])
def test_no_message_is_refused(rate_hz: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="send at least one"):
        bare_ping(rate_hz, seconds)


def cpu_share(share: float) -> float:
    with busy_thread(share, period_s=0.01):
        started_s, cpu_s = time.monotonic(), time.process_time()
        time.sleep(0.3)
        return (time.process_time() - cpu_s) / (time.monotonic() - started_s)


def test_a_busy_thread_takes_its_share() -> None:
    """Wide limits: other processes may want the processor too."""
    assert 0.05 < cpu_share(0.5) < 0.8
    assert cpu_share(0.0) < 0.05
    assert cpu_share(1.0) > 0.1


def _held_up_s() -> float:
    started_s = time.monotonic()
    time.sleep(0.001)
    return time.monotonic() - started_s


def test_a_busy_thread_holds_the_interpreter() -> None:
    """Computing outside the interpreter, it would be no load for another thread that wants to go on."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    try:
        with busy_thread(1.0):
            # Where the system has others to run as well, the thread may have lost its CPU, and with it the interpreter.
            assert any(_held_up_s() > 0.015 for _ in range(100))
    finally:
        sys.setswitchinterval(before_s)


def test_a_busy_thread_ends_with_its_block() -> None:
    before = threading.active_count()
    with busy_thread(0.5):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(KeyError), busy_thread(0.5):
        raise KeyError
    assert threading.active_count() == before
    with busy_thread(0.0):
        assert threading.active_count() == before


@pytest.mark.parametrize(("share", "period_s"), [(-0.1, 0.01), (1.1, 0.01), (0.5, 0), (0.5, -1)])
def test_an_impossible_load_is_refused(share: float, period_s: float) -> None:
    with (
        pytest.raises(ValueError, match=r"share is from 0 to 1|need some length"),
        busy_thread(share, period_s=period_s),
    ):
        pass
    with pytest.raises(ValueError, match=r"share is from 0 to 1|need some length"):
        bare_ping(1_000, 1, share, busy_period_s=period_s)


@pytest.mark.parametrize(("q", "expected"), [(0, 1), (1, 1), (1.5, 2), (50, 50), (99, 99), (99.5, 100), (100, 100)])
def test_percentile_of_a_hundred(q: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], q) == expected


def test_percentile_of_nothing_and_beyond_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    for q in (-1, 101, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 100"):
            percentile([1.0], q)
