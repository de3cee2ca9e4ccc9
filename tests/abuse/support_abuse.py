"""Two good workers with a transfer between them, and those who would spoil it: strangers, bad members, bad producers.

A `Site` is left only when the good transfer, which ran beside the attack all the time, has arrived whole, nothing was
logged as a bug, and every segment is back.
"""

import logging
import random
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import pytest
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.config import load_settings
from headgate.errors import HeadgateError
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Address, Identity
from headgate.output import Forward, Rescale
from headgate.record import Batch, BytesSerializer, EndOfPartition
from headgate.wire import (
    CONNECTION,
    CancelRequest,
    Close,
    Data,
    Decoder,
    Frame,
    KeepAlive,
    Payload,
    ReportError,
    encode_frame,
)
from headgate.wire.codec import PREFIX
from headgate.wire.handshake import NONCE_BYTES, ClientHandshake, Handshake, ServerHandshake
from headgate.worker import Environment

JOB = JobId("harvest")
ATTEMPT = AttemptId(3)
SECRET = bytes(range(32))
SEGMENT_BYTES = 4096
BAD_WORKER = 7  # the number under which bad members and bad producers appear
_GOOD_VERTEX, _BAIT_VERTEX = 0, 1
_RECORDS_AFTER = 40  # of the good transfer, once the attack is over


def pid(vertex: int = _BAIT_VERTEX, *, job: JobId = JOB, attempt: AttemptId = ATTEMPT, subtask: int = 0) -> PartitionId:
    return PartitionId(job, attempt, vertex=vertex, output=0, subtask=subtask)


def raw_frame(kind: int, flags: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A frame that our own types would refuse to make."""
    return PREFIX.pack(2 + len(body) if length is None else length, kind, flags) + body


# The good -------------------------------------------------------------------------------------------------


class Transfer:
    """Records from one worker to another, on and on; each that arrives is compared with the one that was sent."""

    def __init__(self, producer: Environment, consumer: Environment, address: Address) -> None:
        partition = producer.partition(pid(_GOOD_VERTEX), subpartitions=1)
        self._writer = producer.writer(partition, Forward(), BytesSerializer())
        gate = consumer.gate("good", channels=1)
        source = consumer.remote_source(gate, partition.id, SubpartitionIndex(0), worker=0, address=address)
        gate.connect(0, source)
        self._reader = consumer.reader(gate, BytesSerializer())
        self._enough = threading.Event()
        self.sent = self.received = 0
        self._threads = [Thread(self._write), Thread(self._read)]

    @staticmethod
    def _record(number: int) -> bytes:
        return b"%d:" % number + random.Random(number).randbytes(number * 37 % 1500)

    def _write(self) -> None:
        while not self._enough.is_set():
            for _ in range(20):
                self._writer.emit(self._record(self.sent))
                self.sent += 1
            time.sleep(0.005)  # leaves the machine to the attack
        self._writer.finish()

    def _read(self) -> None:
        for element in self._reader:
            if isinstance(element, EndOfPartition):
                return
            values = element.values if isinstance(element, Batch) else [element.value]
            for value in values:
                assert value == self._record(self.received), f"record {self.received} was harmed"
                self.received += 1
        raise AssertionError("the good transfer has no end")

    def _advance(self, count: int) -> None:
        goal = self.received + count
        wait_until(lambda: self.received >= goal or not all(t.is_alive() for t in self._threads), "the good transfer")

    def start(self) -> None:
        """Return when it runs."""
        self._advance(1)

    def finish(self) -> None:
        """It goes on after all that happened, ends, and was complete."""
        self._advance(_RECORDS_AFTER)
        self.stop()
        for thread in self._threads:
            thread.end()
        assert self.received == self.sent
        self.close()

    def stop(self) -> None:
        self._enough.set()

    def close(self) -> None:
        self.stop()
        self._writer.close()
        self._reader.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)


class Site:
    """Worker 0, which produces, and worker 1, which reads from it; either may be attacked."""

    def __init__(
        self, caplog: pytest.LogCaptureFixture, *, credentials=(None, None), behind=None, **settings: object
    ) -> None:
        caplog.set_level(logging.DEBUG, logger="headgate")  # each refusal has a line there, or at a higher level
        self._caplog = caplog
        code = {
            "memory.segment_size": SEGMENT_BYTES,
            "network.partition_request_backoff.initial": "1 ms",
            "network.partition_request_backoff.max": "1 ms",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        self._gates = []
        self.producer = Environment(load_settings(code=code), memory_bytes=256 * SEGMENT_BYTES)
        self.consumer = Environment(load_settings(code=code), memory_bytes=256 * SEGMENT_BYTES)
        try:
            self.address = self.producer.join(Identity(JOB, ATTEMPT, 0, SECRET, credentials[0]))
            self.consumer_address = self.consumer.join(Identity(JOB, ATTEMPT, 1, SECRET, credentials[1]))
            self.door = None if behind is None else behind(self.address)  # the consumer connects by way of it
            way = self.address if self.door is None else self.door.address
            self.transfer = Transfer(self.producer, self.consumer, way)
        except BaseException:
            self.consumer.close()
            self.producer.close()
            raise

    def __enter__(self) -> Self:
        try:
            self.transfer.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.transfer.finish()
                for reader in self._gates:
                    reader.close()
                self.producer.registry.release(pid())  # the bait
                for one in (self.producer, self.consumer):
                    wait_until(lambda one=one: self.used(one) == 0, f"free == total in {one.statistics().memory}")
                bugs = [record.getMessage() for record in self._caplog.records if record.levelno >= logging.ERROR]
                assert not bugs
        finally:
            for reader in self._gates:
                reader.close()
            self.transfer.close()
            self.consumer.close()
            self.producer.close()
            if self.door is not None:
                self.door.close()

    # What is to be seen.

    @staticmethod
    def used(one: Environment) -> int:
        """Segments that are not free."""
        memory = one.statistics().memory
        return memory.total - memory.free

    @property
    def refused(self) -> int:
        """How many the producer has refused."""
        return self.producer.statistics().network.refused

    @property
    def connections(self) -> int:
        """How many connections the producer has, strangers included."""
        return len(self.producer.statistics().network.connections)

    def logged(self, peer: str) -> list[str]:
        """All that was logged about a peer."""
        return [message for record in self._caplog.records if peer in (message := record.getMessage())]

    def assert_logged_once(self, peer: str, text: str) -> None:
        wait_until(lambda: self.logged(peer), f"a log record about {peer}")
        [message] = self.logged(peer)
        assert re.search(text, message), message

    # What there is to be attacked.

    def bait(self, *, subpartitions: int = 1, vertex: int = _BAIT_VERTEX):
        """A partition of worker 0 for the bad to ask for, and its writer."""
        partition = self.producer.partition(pid(vertex), subpartitions=subpartitions)
        return self.producer.writer(partition, Forward() if subpartitions == 1 else Rescale(), BytesSerializer())

    def read_from(
        self,
        address: Address,
        *,
        worker: int = BAD_WORKER,
        partition: PartitionId | None = None,
        packed: bool = False,
    ):
        """A reader of worker 1 that reads from a bad producer."""
        gate = self.consumer.gate("bad", channels=1)
        which = pid() if partition is None else partition
        source = self.consumer.remote_source(
            gate, which, SubpartitionIndex(0), worker=worker, address=address, packed=packed
        )
        reader = self.consumer.reader(gate, BytesSerializer())
        self._gates.append(reader)
        gate.connect(0, source)
        return reader


def error_of(reader) -> HeadgateError:
    """What a reader raises in the end; it must not end otherwise, nor wait for ever."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while reader.read(timeout_s=deadline - time.monotonic()) is not None:
            assert time.monotonic() < deadline, "there is no end to it"
    except HeadgateError as error:
        return error
    assert not reader.finished, "the reader ended as if all were well"
    raise AssertionError("the reader waits for ever")


# The bad --------------------------------------------------------------------------------------------------


class Stranger:
    """A socket to a worker, without the secret."""

    def __init__(self, address: Address, *, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        try:
            if receive_buffer:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise
        self.name = str(Address(*self.socket.getsockname()[:2]))

    @classmethod
    def accepted(cls, connected: socket.socket) -> Self:
        """At the other end of a connection that a worker has made."""
        made = cls.__new__(cls)
        made.socket = connected
        connected.settimeout(PATIENCE_S)
        made.name = str(Address(*connected.getsockname()[:2]))
        return made

    def say(self, *data: bytes) -> bool:
        """Send bytes. Whether the worker still takes them."""
        try:
            self.socket.sendall(b"".join(data))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def hear(self) -> bytes:
        """All that comes until the worker closes the connection; a reset closes it, too."""
        heard = bytearray()
        try:
            while data := self.socket.recv(1 << 16):
                heard += data
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise AssertionError("the worker keeps the connection open") from None
        return bytes(heard)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Member(Stranger):
    """One that knows the secret and says so, and only then misbehaves."""

    def __init__(
        self,
        address: Address,
        *,
        worker: int = BAD_WORKER,
        secret: bytes = SECRET,
        job: JobId = JOB,
        attempt: AttemptId = ATTEMPT,
        prove: bool = True,
        receive_buffer: int = 0,
    ) -> None:
        super().__init__(address, receive_buffer=receive_buffer)
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.handshake: Handshake = ClientHandshake(secret, job, attempt, worker=worker, nonce=nonce)
        self._start()
        if prove:
            try:
                self.prove()
            except BaseException:
                self.close()
                raise

    @classmethod
    def serving(cls, connected: socket.socket, *, worker: int = BAD_WORKER, duplicate: bool = False) -> Self:
        """At the other end of a connection that a worker has made: it is proved to, and proves itself."""
        made = cls.accepted(connected)
        nonce = secrets.token_bytes(NONCE_BYTES)
        made.handshake = ServerHandshake(
            SECRET, JOB, ATTEMPT, worker=worker, nonce=nonce, connected=lambda *_: duplicate
        )
        made._start()
        made.prove()
        return made

    def _start(self) -> None:
        self._decoder = Decoder(1 << 16)
        self._frames: list[Frame | Payload] = []

    def prove(self) -> None:
        handshake = self.handshake
        while True:
            self.say(handshake.data_to_send())
            if handshake.done or handshake.duplicate:
                return
            data = self.socket.recv(1 << 16)
            assert data, "the worker did not like the handshake"
            self._take(handshake.receive(data))

    def _take(self, data: bytes) -> None:
        for one in self._decoder.feed(memoryview(data)):
            self._frames.append(Payload(memoryview(bytes(one.data)), one.last) if isinstance(one, Payload) else one)

    def tell(self, *frames: Frame) -> bool:
        return self.say(*map(encode_frame, frames))

    def next(self, kind: type[Frame] | None = None) -> Frame | Payload:
        """The next frame, or the next of a kind; keep-alives are passed over."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if not isinstance(frame, KeepAlive) and (kind is None or isinstance(frame, kind)):
                    return frame
            data = self.socket.recv(1 << 16)
            assert data, "the worker has closed the connection"
            self._take(data)

    def part(self) -> None:
        """Wait until the worker has had enough: it cancels, closes, or hangs up."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            self._take(data)
            if not data or any(isinstance(frame, CancelRequest | Close) for frame in self._frames):
                return

    def last_words(self) -> ReportError:
        """What the worker says before it closes the connection: exactly one error of the connection."""
        self._take(self.hear())
        [error] = [one for one in self._frames if isinstance(one, ReportError) and one.receiver == CONNECTION]
        assert self._frames[-1] is error, "nothing after that"
        return error


class BadProducer:
    """A port that a worker connects to; each connection is given to `script` as a `Member`, or as a `Stranger`."""

    def __init__(
        self, script: Callable[..., object], *, proves: bool = True, receive_buffer: int = 0, **handshake: object
    ) -> None:
        self._script = script
        self._proves = proves
        self._handshake = handshake
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(PATIENCE_S)
        if receive_buffer:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.address = Address(*self._server.getsockname()[:2])
        self._over = threading.Event()
        self.served = 0
        self._thread = Thread(self._serve)

    def _serve(self) -> None:
        while not self._over.is_set():
            connected, _ = self._server.accept()
            with connected:
                if self._over.is_set():
                    return
                self.served += 1
                peer = Member.serving(connected, **self._handshake) if self._proves else Stranger.accepted(connected)
                self._script(peer)

    def close(self) -> None:
        """No more of it; what went wrong in the script is raised."""
        self._over.set()
        try:
            socket.create_connection(self.address, PATIENCE_S).close()  # so that it need not wait
            self._thread.end()
        finally:
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def data_frame(
    receiver: int, sequence: int, payload: bytes = b"", *, backlog: int = 0, flags: int = 0, skew: int = 0
) -> bytes:
    """Any `Data` frame, right or wrong."""
    body = struct.pack("<IIIB", receiver, sequence, backlog, skew) + payload
    return raw_frame(Data.TYPE, flags, body)


def packed_frame(
    receiver: int, sequence: int, payload: bytes, unpacked: int, *, codec: int = 1, flags: int = 0, skew: int = 0
) -> bytes:
    """Any compressed `Data` frame, right or wrong."""
    body = struct.pack("<BI", codec, unpacked) + payload
    return data_frame(receiver, sequence, body, flags=flags | 2, skew=skew)


def record_bytes(value: bytes) -> bytes:
    """A buffer with one record in it, as a writer would fill it."""
    return struct.pack("<I", 1 + len(value)) + b"\x01" + value


@contextmanager
def keeping_little(blocks: int = 20_000) -> Iterator[Callable[[], None]]:
    """What is given is to be called while it is worst: no more small blocks of memory may be in use than at first."""
    before = sys.getallocatedblocks()

    def look() -> None:
        more = sys.getallocatedblocks() - before
        assert more < blocks, f"{more} blocks of memory more"

    yield look
    look()


@contextmanager
def closing_all(*bad: Stranger) -> Iterator[None]:
    try:
        yield
    finally:
        for one in bad:
            one.close()
