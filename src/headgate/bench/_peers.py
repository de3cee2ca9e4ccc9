"""What else carries bytes from one process to another on this machine: the baselines of the wire suite.

Each public function moves `total` bytes over loopback TCP between two children (`_children`) and returns
bytes per second. The sender sends one buffer of random bytes again and again; the receiver receives and
counts. The clock is the sender's: from the first byte until the receiver has told it that all arrived, with
the connection made before. Where a library's speed depends on the size of its messages, the faster size counts.

Each library is set up as its documentation has it, and imported only in the children: they leave threads
and sockets behind. What a queue may hold is bounded, as in the exchange that it is compared with.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain, repeat
from os import urandom
from queue import SimpleQueue
from typing import Any, TypeVar

from headgate.bench._children import START_S, Parent, child, results_of
from headgate.errors import ConfigError, InvariantViolated

__all__ = ["check_installed", "flight", "grpc_streaming", "raw_sockets", "zeromq"]

T = TypeVar("T")

_KIB = 1024
_MIB = 1024 * _KIB
_LOOPBACK = "127.0.0.1"
_SLOWEST = 20e6  # bytes/s: below it something hangs
_ACK = b"all"
_QUEUED_BYTES = 4 * _MIB  # that ZeroMQ may hold at either end; its default of 1,000 messages is slower, and 1 GiB
_GRPC_METHOD = ("headgate.bench", "put")
_NO_PROXY = [("grpc.enable_http_proxy", 0)]  # an http_proxy in the environment is not for loopback

_Receive = Callable[[Parent, int, int], int]
"""Says its port, receives that many bytes in pieces of that size, acknowledges them, returns how many came."""

_Send = Callable[[Parent, int, int], int]
"""Is told the port, sends that many bytes in pieces of that size, returns the nanoseconds to the acknowledgement."""


def raw_sockets(total: int, chunk: int) -> float:
    """Bytes/s of `sendall` and `recv_into`, `chunk` bytes a call: the least that Python can do.

    >>> raw_sockets(2**20, chunk=32 * 1024) > 0
    True
    """
    return _measure(_receive_raw, _send_raw, total, chunk)


def flight(total: int, sizes: Sequence[int] = (_MIB, 64 * _KIB)) -> float:
    """Bytes/s of Arrow Flight's DoPut, with record batches of 1 MiB or of 64 KiB: the faster size counts.

    >>> flight(2**20) > 0
    True
    """
    return max(_measure(_receive_flight, _send_flight, total, size) for size in sizes)


def grpc_streaming(total: int, sizes: Sequence[int] = (_MIB, 32 * _KIB)) -> float:
    """Bytes/s of a gRPC stream of bare bytes, no protobuf, in messages of 1 MiB or of 32 KiB: the faster size counts.

    >>> grpc_streaming(2**20) > 0
    True
    """
    _need("grpc", "grpcio")
    return max(_measure(_receive_grpc, _send_grpc, total, size) for size in sizes)


def zeromq(total: int, sizes: Sequence[int] = (_MIB, 32 * _KIB)) -> float:
    """Bytes/s of ZeroMQ push/pull over TCP, in messages of 1 MiB or of 32 KiB: the faster size counts.

    >>> zeromq(2**20) > 0
    True
    """
    _need("zmq", "pyzmq")
    return max(_measure(_receive_zmq, _send_zmq, total, size) for size in sizes)


def check_installed() -> None:
    """Raise if a library is missing that one of the others needs."""
    _need("grpc", "grpcio")
    _need("zmq", "pyzmq")


def _need(module: str, distribution: str) -> None:
    if find_spec(module) is None:
        raise ConfigError(f"{distribution} is not installed, to compare with: pip install 'headgate[bench]'")


def _limit_s(total: int) -> float:
    """How long moving that many bytes may take before it counts as hanging."""
    return START_S + total / _SLOWEST


def _limit_ms(total: int) -> int:
    return int(1000 * _limit_s(total))


def _measure(receive: _Receive, send: _Send, total: int, size: int) -> float:
    if total < 1 or size < 1:
        raise ValueError(f"{total} bytes in pieces of {size}: move at least one byte, in pieces of at least one")
    with child(receive, total, size) as receiver, child(send, total, size) as sender:
        sender.send(receiver.receive(START_S))
        elapsed_ns, received = results_of(sender, receiver, timeout_s=_limit_s(total))
    if received != total:
        raise InvariantViolated(f"{receive.__qualname__} received {received} bytes of {total}")
    bytes_per_second: float = total * 1e9 / elapsed_ns
    return bytes_per_second


def _pieces(total: int, size: int, make: Callable[[memoryview], T]) -> Iterator[T]:
    """The same random bytes again and again, `size` at a time, `total` altogether, as what `make` makes of them.

    >>> [len(piece) for piece in _pieces(10, 4, bytes)]
    [4, 4, 2]
    """
    # Random, so that every page is real: fresh zeroes would be one page of the system's, read from the cache.
    whole = memoryview(urandom(min(size, total)))
    rest = [make(whole[: total % size])] if total % size else []
    return chain(repeat(make(whole), total // size), rest)


# Sockets -------------------------------------------------------------------------------------------------


def _receive_raw(parent: Parent, total: int, size: int) -> int:
    with socket.create_server((_LOOPBACK, 0)) as server:
        parent.send(server.getsockname()[1])
        server.settimeout(START_S)
        connection, _ = server.accept()
    with connection:
        # No timeout in Python, here and in the sender: it would poll before every call.
        received, into = 0, bytearray(size)
        while received < total and (count := connection.recv_into(into)):
            received += count
        connection.sendall(_ACK)
    return received


def _send_raw(parent: Parent, total: int, size: int) -> int:
    port = parent.receive(START_S)
    with socket.create_connection((_LOOPBACK, port), timeout=START_S) as connection:
        connection.settimeout(None)
        pieces = _pieces(total, size, bytes)
        started_ns = time.perf_counter_ns()
        for piece in pieces:
            connection.sendall(piece)
        _check_ack(connection.recv(len(_ACK), socket.MSG_WAITALL))
        return time.perf_counter_ns() - started_ns


def _check_ack(ack: bytes) -> None:
    if ack != _ACK:
        raise InvariantViolated(f"the receiver said {ack!r} where it should have acknowledged all bytes")


# Arrow Flight --------------------------------------------------------------------------------------------


def _receive_flight(parent: Parent, total: int, size: int) -> int:  # noqa: ARG001 - as the other receivers
    from pyarrow import flight  # noqa: PLC0415 - see the module

    counts: SimpleQueue[int] = SimpleQueue()

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context: object, descriptor: object, reader: Any, writer: Any) -> None:  # noqa: ARG002
            received = sum(chunk.data.nbytes for chunk in reader)
            writer.write(_ACK)
            counts.put(received)

    with Server(f"grpc://{_LOOPBACK}:0") as server:  # leaving it waits for the call to end
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


# gRPC ----------------------------------------------------------------------------------------------------


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
        server.stop(START_S).wait()  # the call may end, the acknowledgement with it
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


# ZeroMQ --------------------------------------------------------------------------------------------------


def _receive_zmq(parent: Parent, total: int, size: int) -> int:
    import zmq  # noqa: PLC0415 - see the module

    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as back:
        pull.set_hwm(max(1, _QUEUED_BYTES // size))
        pull.rcvtimeo = back.sndtimeo = back.linger = _limit_ms(total)
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
        push.set_hwm(max(1, _QUEUED_BYTES // size))
        push.sndtimeo = back.rcvtimeo = _limit_ms(total)
        push.linger = 0
        push.immediate = True  # no queue before there is a connection
        back.connect(f"tcp://{_LOOPBACK}:{back_port}")
        push.connect(f"tcp://{_LOOPBACK}:{port}")
        push.poll(int(1000 * START_S), zmq.POLLOUT)  # until there is one
        started_ns = time.perf_counter_ns()
        for piece in pieces:
            push.send(piece, copy=False)  # faster than a copy, at both ends and with both sizes
        _check_ack(back.recv())
        return time.perf_counter_ns() - started_ns
