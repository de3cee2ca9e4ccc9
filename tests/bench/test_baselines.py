"""The baselines of the wire suite: they move every byte, time every message, and notice what is lost."""

import socket
import sys
import threading
import time
from importlib.util import find_spec

import pytest
from tests.support.bench_children import die_halfway, lose_some, raise_at_once, receive_conditions, send_one_less
from tests.support.threads import Thread

from headgate.bench import baselines
from headgate.bench.baselines import RAW, busy_thread, check_installed, message_delays_ms, throughput
from headgate.bench.processes import START_S, ChildFailed, child
from headgate.errors import ConfigError, InvariantViolated

TOTAL = 8 * 2**20 + 12_345  # no multiple of any size
NEEDS = {"gRPC": "grpc", "ZeroMQ": "zmq"}


@pytest.mark.parametrize("library", [RAW, *baselines.LIBRARIES])
@pytest.mark.parametrize(("total", "size"), [(TOTAL, 32 * 1024), (TOTAL, 2**20), (100, 2**20)])
def test_every_byte_arrives(library: str, total: int, size: int) -> None:
    if library in NEEDS and find_spec(NEEDS[library]) is None:
        pytest.skip(f"{NEEDS[library]} is not installed")
    before = set(sys.modules)
    assert throughput(library, total, size) > 0
    imported = sys.modules.keys() - before
    assert not {"grpc", "pyarrow.flight", "zmq"} & imported, "they leave threads and sockets behind"


def test_the_error_for_a_missing_library_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing, name in (("grpc", "grpcio"), ("zmq", "pyzmq")):
        monkeypatch.setattr(baselines, "find_spec", lambda module, missing=missing: module != missing or None)
        with pytest.raises(ConfigError, match=rf"{name} is not installed.*pip install 'headgate\[bench\]'"):
            check_installed()


@pytest.mark.parametrize(
    ("receive", "error", "message"),
    [
        (lose_some, InvariantViolated, f"raw sockets: {TOTAL - 1} of {TOTAL} bytes arrived"),
        (die_halfway, ChildFailed, r"ended with exit status 7 .*out of luck"),
    ],
)
def test_lost_bytes_and_dead_receivers_are_errors(
    monkeypatch: pytest.MonkeyPatch, receive, error: type, message: str
) -> None:
    monkeypatch.setitem(baselines._ENDS, RAW, (baselines._send_raw, receive))
    with pytest.raises(error, match=message):
        throughput(RAW, TOTAL, 32 * 1024)


@pytest.mark.parametrize("receive", [baselines._receive_raw, baselines._receive_flight])
def test_the_error_of_a_sender_is_raised(monkeypatch: pytest.MonkeyPatch, receive) -> None:
    monkeypatch.setitem(baselines._ENDS, RAW, (raise_at_once, receive))
    with pytest.raises(ChildFailed, match="no mood to send"):
        throughput(RAW, TOTAL, 32 * 1024)


@pytest.mark.parametrize("ack", [b"", b"not"])
def test_the_acknowledgement_is_checked(ack: bytes) -> None:
    with pytest.raises(InvariantViolated, match="instead of its acknowledgement"):
        baselines._check_ack(ack)


@pytest.mark.parametrize("rate_hz", [300, 1_000, 50_000])
def test_every_message_is_timed(rate_hz: int) -> None:
    delays_ms = message_delays_ms(rate_hz, 0.2, switch_interval_s=0.0005)
    assert len(delays_ms) == rate_hz * 0.2
    assert all(0 < delay_ms < 60_000 for delay_ms in delays_ms)


def test_work_at_both_ends_delays_every_message() -> None:
    assert min(message_delays_ms(200, 0.1, switch_interval_s=0.005, work_s=0.002)) >= 4.0, "in milliseconds"


def test_a_lost_message_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_send_messages", send_one_less)
    with pytest.raises(InvariantViolated, match="19 of 20 messages arrived"):
        message_delays_ms(1_000, 0.02, switch_interval_s=0.005)


def test_the_receiver_has_a_busy_thread_and_the_switch_interval() -> None:
    with (
        child(receive_conditions, 0.0003, 0.0) as process,
        socket.create_connection(("127.0.0.1", process.receive(START_S)), timeout=START_S),
    ):
        assert process.result(START_S) == (pytest.approx(0.0003), {"MainThread", "bench-busy"})


def test_messages_in_pieces_are_put_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = Thread(lambda: baselines._read_delays_ms(theirs, 0.0))
        sent_ns = time.monotonic_ns()
        stream = b"".join(baselines._MESSAGE.pack(sent_ns - number * 10**12) for number in range(3))
        for start in range(0, len(stream), 70):
            ours.sendall(stream[start : start + 70])
            time.sleep(0.01)
        ours.shutdown(socket.SHUT_WR)
        assert [delay_ms // 1e6 for delay_ms in receiver.end()] == [0, 1, 2]


def test_a_late_wake_up_does_not_lower_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, late_ns = [0], 20_000_000
    monkeypatch.setattr(baselines.time, "monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr(baselines.time, "sleep", lambda seconds: now_ns.append(now_ns.pop() + late_ns))
    assert list(baselines.paced(1_000, 50)) == [(20_000_000, 20), (40_000_000, 20), (60_000_000, 10)]


@pytest.mark.timing
def test_a_busy_thread_computes_for_a_part_of_the_time() -> None:
    with busy_thread():
        started_s, cpu_s = time.monotonic(), time.process_time()
        time.sleep(0.3)
        share = (time.process_time() - cpu_s) / (time.monotonic() - started_s)
    assert 0.05 < share < 0.8, "wide limits: other processes may need the processor too"


def test_a_busy_thread_ends_with_the_block() -> None:
    before = threading.active_count()
    with busy_thread():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(KeyError), busy_thread():
        raise KeyError
    assert threading.active_count() == before
