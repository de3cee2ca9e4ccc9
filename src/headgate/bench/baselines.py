"""The baselines of the suite `wire`: sockets and libraries that carry bytes between two processes over loopback.

`throughput` moves bytes. The sender sends one buffer of random bytes again and again, the receiver counts. The clock is
the sender's: from the first byte until the receiver's acknowledgement of all bytes; the connection exists before. Each
library is set up as in its documentation, with bounded queues, and imported only in the child processes: libraries
leave threads and sockets behind.

`message_delays_ms` sends messages over a bare socket at a steady rate to a thread that blocks in `recv`, in a process
that a second thread keeps busy: the receiving thread has to wait for the interpreter. Each message carries the time at
which it was sent. Both processes read `time.monotonic_ns`, which on Linux is one clock for all processes.
"""

import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from os import urandom
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from headgate.bench.processes import START_S, Parent, ProcessPair
from headgate.config.units import KIB, MIB
from headgate.errors import ConfigError, InvariantViolated

__all__ = ["LIBRARIES", "RAW", "busy_thread", "check_installed", "message_delays_ms", "paced", "throughput"]

T = TypeVar("T")

RAW: Final = "raw sockets"
"""The name of the baseline without a library."""
LIBRARIES: Final = ("Flight", "gRPC", "ZeroMQ")
"""The names of the libraries."""

_LOOPBACK: Final = "127.0.0.1"
_SLOWEST: Final = 20e6  # bytes/s: a slower run hangs
_ACK: Final = b"all"
_GO: Final = b"!"
_ZMQ_QUEUE_BYTES: Final = 4 * MIB  # at either end; ZeroMQ's default of 1,000 messages is slower, and 1 GiB
_GRPC_METHOD: Final = ("headgate.bench", "put")
_NO_PROXY: Final = [("grpc.enable_http_proxy", 0)]  # an http_proxy in the environment is not for loopback
_MESSAGE: Final = struct.Struct("<q92x")  # when it was sent, and padding to 100 bytes
_SEND_NS: Final = 500_000  # the least time between two sends: a faster rate sends several messages at once
_SPIN: Final = range(50)  # about a microsecond between two reads of the clock
_BUSY_S: Final = 0.005  # of each period
_PERIOD_S: Final = 0.01
_QUIET_S: Final = 0.05  # between the last message and the sender's end, which would compete with its receipt


# Throughput ------------------------------------------------------------------------------------------------------


def throughput(library: str, total: int, size: int) -> float:
    """Return the bytes/s of `total` bytes in messages of `size` bytes, through `RAW` or one of `LIBRARIES`."""
    send, receive = _ENDS[library]
    with ProcessPair() as pair:
        elapsed_ns, received = pair.run(
            partial(send, total=total, size=size), partial(receive, total=total, size=size), limit_s=total / _SLOWEST
        )
    if received != total:
        raise InvariantViolated(f"{library}: {received} of {total} bytes arrived")
    return total * 1e9 / elapsed_ns


def check_installed() -> None:
    """Raise ConfigError if one of `LIBRARIES` is missing."""
    for module, distribution in (("grpc", "grpcio"), ("zmq", "pyzmq")):
        if find_spec(module) is None:
            raise ConfigError(f"{distribution} is not installed, to compare with: pip install 'headgate[bench]'")


def _limit_s(total: int) -> float:
    return START_S + total / _SLOWEST


def _pieces(total: int, size: int, make: Callable[[memoryview], T]) -> Iterator[T]:
    """Return the same random bytes again and again, `size` at a time, `total` in all, each passed through `make`.

    >>> [len(piece) for piece in _pieces(10, 4, bytes)]
    [4, 4, 2]
    """
    # Random, so that every page is real: fresh zeroes would all be the system's one zero page, read from the cache.
    whole = memoryview(urandom(min(size, total)))
    rest = [make(whole[: total % size])] if total % size else []
    return chain(repeat(make(whole), total // size), rest)


def _check_ack(ack: bytes) -> None:
    if ack != _ACK:
        raise InvariantViolated(f"the receiver sent {ack!r} instead of its acknowledgement of all bytes")


@contextmanager
def _accepted(parent: Parent) -> Iterator[socket.socket]:
    with socket.create_server((_LOOPBACK, 0)) as server:
        server.settimeout(START_S)
        parent.send(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:  # without a timeout, here and in `_connected`: Python would poll before every call
        yield connection


@contextmanager
def _connected(parent: Parent) -> Iterator[socket.socket]:
    port = parent.receive(START_S)
    with socket.create_connection((_LOOPBACK, port), timeout=START_S) as connection:
        connection.settimeout(None)
        yield connection


def _receive_raw(parent: Parent, total: int, size: int) -> int:
    with _accepted(parent) as connection:
        received, into = 0, bytearray(size)
        while received < total and (count := connection.recv_into(into)):
            received += count
        connection.sendall(_ACK)
    return received


def _send_raw(parent: Parent, total: int, size: int) -> int:
    with _connected(parent) as connection:
        pieces = _pieces(total, size, bytes)
        started_ns = time.perf_counter_ns()
        for piece in pieces:
            connection.sendall(piece)
        _check_ack(connection.recv(len(_ACK), socket.MSG_WAITALL))
        return time.perf_counter_ns() - started_ns


def _receive_flight(parent: Parent, total: int, size: int) -> int:  # noqa: ARG001 - as the other receivers
    from pyarrow import flight  # noqa: PLC0415 - see the module

    counts: SimpleQueue[int] = SimpleQueue()

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context: object, descriptor: object, reader: Any, writer: Any) -> None:  # noqa: ARG002
            received = sum(chunk.data.nbytes for chunk in reader)
            writer.write(_ACK)
            counts.put(received)

    with Server(f"grpc://{_LOOPBACK}:0") as server:  # the end of the block waits for the call's end
        parent.send(server.port)
        return counts.get(timeout=_limit_s(total))


def _send_flight(parent: Parent, total: int, size: int) -> int:
    import pyarrow as pa  # noqa: PLC0415 - see the module
    from pyarrow import flight  # noqa: PLC0415

    def batch(piece: memoryview) -> pa.RecordBatch:
        column = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])
        return pa.record_batch([column], names=["bytes"])

    batches = _pieces(total, size, batch)
    port = parent.receive(START_S)
    with flight.connect(f"grpc://{_LOOPBACK}:{port}", generic_options=_NO_PROXY) as client:
        client.wait_for_available(timeout=int(START_S))
        options = flight.FlightCallOptions(timeout=_limit_s(total))
        schema = pa.schema([("bytes", pa.uint8())])
        writer, acks = client.do_put(flight.FlightDescriptor.for_path("bench"), schema, options)
        with writer:
            started_ns = time.perf_counter_ns()
            for one in batches:
                writer.write_batch(one)
            writer.done_writing()
            _check_ack(acks.read().to_pybytes())
            return time.perf_counter_ns() - started_ns


def _receive_grpc(parent: Parent, total: int, size: int) -> int:  # noqa: ARG001 - as the other receivers
    import grpc  # noqa: PLC0415 - see the module

    counts: SimpleQueue[int] = SimpleQueue()

    def put(messages: Iterator[bytes], context: object) -> bytes:  # noqa: ARG001 - gRPC's signature
        counts.put(sum(map(len, messages)))
        return _ACK

    service, method = _GRPC_METHOD
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        # Without serializers, messages are bytes.
        handlers = {method: grpc.stream_unary_rpc_method_handler(put)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        port = server.add_insecure_port(f"{_LOOPBACK}:0")
        server.start()
        parent.send(port)
        received = counts.get(timeout=_limit_s(total))
        server.stop(START_S).wait()  # the call ends, and with it the acknowledgement
        return received


def _send_grpc(parent: Parent, total: int, size: int) -> int:
    import grpc  # noqa: PLC0415 - see the module

    messages = _pieces(total, size, bytes)
    port = parent.receive(START_S)
    with grpc.insecure_channel(f"{_LOOPBACK}:{port}", options=_NO_PROXY) as channel:
        grpc.channel_ready_future(channel).result(timeout=START_S)
        put = channel.stream_unary("/{}/{}".format(*_GRPC_METHOD))
        started_ns = time.perf_counter_ns()
        _check_ack(put(messages, timeout=_limit_s(total)))
        return time.perf_counter_ns() - started_ns


def _receive_zmq(parent: Parent, total: int, size: int) -> int:
    import zmq  # noqa: PLC0415 - see the module

    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as back:
        pull.set_hwm(max(1, _ZMQ_QUEUE_BYTES // size))
        pull.rcvtimeo = back.sndtimeo = back.linger = int(1000 * _limit_s(total))
        endpoint = f"tcp://{_LOOPBACK}"
        parent.send((pull.bind_to_random_port(endpoint), back.bind_to_random_port(endpoint)))
        received = 0
        while received < total:
            received += len(pull.recv(copy=False))
        back.send(_ACK)
    return received


def _send_zmq(parent: Parent, total: int, size: int) -> int:
    import zmq  # noqa: PLC0415 - see the module

    pieces = _pieces(total, size, bytes)
    port, back_port = parent.receive(START_S)
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as back:
        push.set_hwm(max(1, _ZMQ_QUEUE_BYTES // size))
        push.sndtimeo = back.rcvtimeo = int(1000 * _limit_s(total))
        push.linger = 0
        push.immediate = True  # no queue before there is a connection
        back.connect(f"tcp://{_LOOPBACK}:{back_port}")
        push.connect(f"tcp://{_LOOPBACK}:{port}")
        push.poll(int(1000 * START_S), zmq.POLLOUT)  # until there is a connection
        started_ns = time.perf_counter_ns()
        for piece in pieces:
            push.send(piece, copy=False)  # faster than a copy, at both ends and with both sizes
        _check_ack(back.recv())
        return time.perf_counter_ns() - started_ns


_ENDS: Final = {
    RAW: (_send_raw, _receive_raw),
    "Flight": (_send_flight, _receive_flight),
    "gRPC": (_send_grpc, _receive_grpc),
    "ZeroMQ": (_send_zmq, _receive_zmq),
}


# Latency ---------------------------------------------------------------------------------------------------------


def message_delays_ms(rate_hz: float, seconds: float, *, switch_interval_s: float, work_s: float = 0.0) -> list[float]:
    """Return the milliseconds from send to receipt of every 100-byte message.

    A thread keeps the receiver's process busy; the interpreter changes threads after `switch_interval_s`. Both ends
    sleep between messages. They compute for `work_s` before and after each send, and before and after each receipt.
    """
    count = round(rate_hz * seconds)
    with ProcessPair() as pair:
        _, delays_ms = pair.run(
            partial(_send_messages, rate_hz=rate_hz, count=count, work_s=work_s),
            partial(_receive_messages, switch_interval_s=switch_interval_s, work_s=work_s),
            limit_s=2 * seconds,
        )
    if len(delays_ms) != count:
        raise InvariantViolated(f"{len(delays_ms)} of {count} messages arrived")
    return delays_ms


def paced(rate_hz: float, count: int) -> Iterator[tuple[int, int]]:
    """Yield the time and the number of messages to send now, `count` in all, and sleep in between.

    The time is that of the send. A late wake-up does not lower the rate: the next send has more messages.

    >>> [number for sent_ns, number in paced(100_000, 3)]
    [3]
    """
    pause_ns = max(_SEND_NS, 1e9 / rate_hz)
    sent, sleeps, started_ns = 0, 0, time.monotonic_ns()
    while sent < count:
        sleeps += 1
        due_ns = started_ns + math.ceil(sleeps * pause_ns)
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        sent_ns = time.monotonic_ns()
        due = min(count, math.floor((sent_ns - started_ns) * rate_hz / 1e9))
        yield sent_ns, due - sent
        sent = due


@contextmanager
def busy_thread() -> Iterator[None]:
    """Beside the block, a thread computes in pure Python for 5 ms of every 10 ms and sleeps for the rest."""
    stop = threading.Event()

    def be_busy() -> None:
        while not stop.is_set():
            _compute(_BUSY_S)
            stop.wait(_PERIOD_S - _BUSY_S)

    thread = threading.Thread(target=be_busy, name="bench-busy")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _compute(seconds: float) -> None:
    now_ns = time.monotonic_ns
    until_ns = now_ns() + round(seconds * 1e9)
    while now_ns() < until_ns:
        for _ in _SPIN:
            pass


def _receive_messages(parent: Parent, switch_interval_s: float, work_s: float) -> list[float]:
    sys.setswitchinterval(switch_interval_s)
    with _accepted(parent) as connection, busy_thread():
        connection.sendall(_GO)
        return _read_delays_ms(connection, work_s)


def _read_delays_ms(connection: socket.socket, work_s: float) -> list[float]:
    delays_ms: list[float] = []
    into = memoryview(bytearray(64 * KIB))
    filled = 0
    while count := connection.recv_into(into[filled:]):
        _compute(work_s)
        received_ns = time.monotonic_ns()
        filled += count
        whole = filled - filled % _MESSAGE.size
        delays_ms += [(received_ns - sent_ns) / 1e6 for (sent_ns,) in _MESSAGE.iter_unpack(into[:whole])]
        # The start of an incomplete message moves to the front.
        into[: filled - whole] = into[whole:filled]
        filled -= whole
        _compute(work_s)
    return delays_ms


def _send_messages(parent: Parent, rate_hz: float, count: int, work_s: float) -> None:
    with _connected(parent) as connection:
        connection.recv(len(_GO))  # no message is sent before the receiver's busy thread runs
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent_ns, number in paced(rate_hz, count):
            _compute(work_s)
            connection.sendall(_MESSAGE.pack(sent_ns) * number)
            _compute(work_s)
        time.sleep(_QUIET_S)
