"""A worker without sockets or threads, with everything that a peer can reach, and the peer's end of the connection.

For tests that say anything whatever to it: properties choose what, or a fuzzer does. Whatever it is, the worker may
answer with frames or give the connection up by one of a few errors; it may not break, and in the end it has all its
segments again.
"""

import contextlib
import functools
import logging
import struct
from typing import Self
from unittest import mock

from crc32c import crc32c

from headgate.config import Settings, load_settings
from headgate.errors import (
    AuthError,
    Cancelled,
    ChecksumMismatch,
    CorruptStream,
    HeadgateError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    SerializationError,
    TransportError,
)
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Identity, Network
from headgate.net.connection import Connection
from headgate.net.memory import MemoryTransport
from headgate.output import Broadcast
from headgate.record import BytesSerializer, EndOfPartition, UserEvent
from headgate.record.element import encode_event
from headgate.wire import CancelRequest, Data, RequestPartition, encode_frame
from headgate.wire.codec import PREFIX
from headgate.wire.handshake import ClientHandshake
from headgate.worker import Environment

SEGMENT_BYTES = 64
JOB, ATTEMPT = JobId("etl"), AttemptId(1)
SECRET, NONCE = bytes(32), bytes(range(32))
PEER = 7
CHANNELS = 3
"""The number of channels that the worker reads from its peer."""

WRITTEN = PartitionId(JOB, ATTEMPT, 0, 0, 0)
FINISHED = PartitionId(JOB, ATTEMPT, 0, 0, 1)
MISSING = PartitionId(JOB, ATTEMPT, 0, 0, 2)
OTHERS = PartitionId(JobId("other"), ATTEMPT, 0, 0, 0)

ENDS = (RemoteProtocolError, AuthError, TransportError, ChecksumMismatch)
"""The errors that a connection may end with, whatever the peer sends."""

READS = (*ENDS, CorruptStream, SerializationError, ProducerFailed, PartitionNotFound, Cancelled)
"""The errors that a reader may then raise."""

EVENTS = [encode_event(EndOfPartition()), encode_event(UserEvent("reload")), b"", b"\x93\x93"]
RECORDS = [struct.pack("<I", 6) + b"\x01sheaf", struct.pack("<I", 200) + b"\x01" * 40, b"\xff" * 9, b""]


class Bugs(logging.Handler):
    """Collects errors that were logged as a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@functools.cache
def settings(*, credited: bool, checksum: bool) -> Settings:
    return load_settings(
        code={
            "memory.segment_size": SEGMENT_BYTES,
            "execution.buffer_timeout": -1,
            "network.flow_control": "credit" if credited else "tcp",
            "network.checksum": checksum,
            "network.floating_buffers_per_gate": 3,
            "network.max_channels_per_connection": 6,
            "network.partition_request_backoff.initial": "1 ms",
            "network.partition_request_backoff.max": "4 ms",
        }
    )


def conversation() -> bytes:
    """Return the handshake bytes of a correct client; always the same, because the nonces are."""
    client = ClientHandshake(SECRET, JOB, ATTEMPT, worker=PEER, nonce=bytes(32))
    hello = client.data_to_send()
    challenge = struct.pack("<BI32s", 1, 0, NONCE)
    client.receive(PREFIX.pack(2 + len(challenge), 2, 0) + challenge)
    return hello + client.data_to_send()


class Victim:
    """The worker: two partitions, a subscribed task event, and channels that read from the peer."""

    def __init__(self, *, proved: bool = True, credited: bool = True, checksum: bool = False) -> None:
        self.errors: list[HeadgateError | None] = []  # what connections ended with
        self.read_errors: list[HeadgateError] = []
        self.heard = b""  # from the worker
        self._finished = False
        self._bugs = Bugs()
        logging.getLogger("headgate").addHandler(self._bugs)
        self._patch = mock.patch.object(Connection, "_end", self._recording(Connection._end))
        self._patch.start()
        self.worker = Environment(settings(credited=credited, checksum=checksum), memory_bytes=80 * SEGMENT_BYTES)
        self.transport = MemoryTransport()
        network = self.worker.settings.network
        self.network = Network(
            Identity(JOB, ATTEMPT, 0, SECRET),
            self.worker.registry,
            network,
            self.transport,
            segment_size=SEGMENT_BYTES,
            nonce=lambda: NONCE,
        )
        self.worker._network = self.network  # as `join` would, but with sockets
        self.writers = [self._written(WRITTEN), self._written(FINISHED)]
        self.writers[1].finish()
        self.worker.registry.subscribe(WRITTEN, "reload", lambda event: None)
        self.transport.connect(self.network.listen(), 10**9, self._connected)
        self.transport.run_until_idle()
        self._readers = []
        if proved:
            self.say(conversation())
            assert [one.worker for one in self.network.connections] == [PEER]
            self._read_from_peer()

    def _recording(self, end):
        def record(connection: Connection, error: HeadgateError | None) -> None:
            before = connection.state
            end(connection, error)
            if connection.state is not before:
                self.errors.append(error)

        return record

    def _written(self, which: PartitionId):
        partition = self.worker.partition(which, subpartitions=2)
        writer = self.worker.writer(partition, Broadcast(), BytesSerializer())
        for i in range(4):
            writer.emit(bytes(20 * i))
        writer.flush()
        return writer

    def _read_from_peer(self) -> None:
        for i in range(CHANNELS):
            gate = self.worker.gate(f"gate-{i}", channels=1)
            source = self.worker.remote_source(gate, WRITTEN, SubpartitionIndex(i), worker=PEER)
            gate.connect(0, source)
            self._readers.append(self.worker.reader(gate, BytesSerializer()))
        self.transport.run_until_idle()

    # The peer's end of the line.

    def _connected(self, stream) -> None:
        self._stream = stream
        stream.start(self)

    def received(self, data: memoryview) -> None:
        self.heard += bytes(data)

    def writable(self) -> None: ...

    def lost(self, error: Exception | None) -> None: ...

    def say(self, data: bytes) -> None:
        """Deliver bytes at once, unless the worker has stopped reading."""
        self._stream.write([data])
        self.transport.run_until_idle()

    def hang_up(self, *, reset: bool = False) -> None:
        if reset:
            self._stream.abort()
        else:
            self._stream.close()
        self.transport.run_until_idle()

    # What the worker's tasks do meanwhile.

    def read(self, channel: int) -> None:
        """Read all elements that there are, as a task does."""
        reader = self._readers[channel]
        try:
            while reader.poll() is not None:
                pass
        except HeadgateError as error:
            self.read_errors.append(error)
        self.transport.run_until_idle()

    def write(self) -> None:
        """Write, as a task does, if that does not block."""
        writer = self.writers[0]
        pool = writer.partition.pool.statistics()
        try:
            if not self._finished and pool.held - pool.available + 2 < pool.size:
                writer.emit(bytes(30))
                writer.flush()
        except Cancelled:
            pass  # its reader is gone
        self.transport.run_until_idle()

    def finish(self) -> None:
        """Finish a partition, as a task does."""
        try:
            if not self._finished:
                self._finished = True
                self.writers[0].finish()
        except Cancelled:
            pass  # its reader is gone
        self.transport.run_until_idle()

    def fail(self) -> None:
        """Release a partition with an error, as a failed task does."""
        self.worker.registry.release(WRITTEN, PartitionNotFound("what it reads is gone"))
        self.transport.run_until_idle()

    def release(self, channel: int) -> None:
        """Release a gate, as a cancelled task does."""
        self._readers[channel].close()
        self.transport.run_until_idle()

    def call_back(self, channel: int) -> None:
        """Send a task event to the peer's producer."""
        with contextlib.suppress(Cancelled):  # it is not read any more
            self._readers[channel].gate.send_task_event(0, UserEvent("reload"))
        self.transport.run_until_idle()

    def wait(self, milliseconds: int) -> None:
        self.transport.advance(milliseconds * 1_000_000)

    # The end.

    @property
    def over(self) -> bool:
        """True if the worker or the peer has ended the connection."""
        return not self.network.connections

    @property
    def starved(self) -> bool:
        """True if the worker has stopped reading because it has no buffer; only without credit."""
        return any(one._unread is not None for one in self.network.connections)

    def close(self) -> None:
        """End everything, and check that all memory is free and no bug was logged."""
        try:
            for channel in range(len(self._readers)):
                self.read(channel)
            self._let_go()
            memory = self.worker.memory.statistics()
            assert memory.free == memory.total, f"segments are missing: {memory}"
            assert memory.exclusive == 0, f"exclusive segments are missing: {memory}"
            assert not self._bugs.found, self._bugs.found
            for error in self.errors:
                allowed = error is None or isinstance(error, ENDS) or str(error).startswith("worker 0 is closed")
                assert allowed, f"a connection ended with {error!r}"
            for error in self.read_errors:
                assert isinstance(error, READS), f"a reader raised {error!r}"
        finally:
            self._forget()

    def _let_go(self) -> None:
        for channel in range(len(self._readers)):
            self.release(channel)
        for writer in self.writers:
            writer.close()
        self.network.abort()
        self.transport.run_until_idle()
        self.worker._network = None
        self.worker.close()

    def _forget(self) -> None:
        self._patch.stop()
        logging.getLogger("headgate").removeHandler(self._bugs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):  # what went wrong first is what counts
            self._let_go()
        self._forget()


class Script:
    """Builds frames that are valid now, or nearly: it counts receivers and sequence numbers."""

    def __init__(self, *, credited: bool = True, checksum: bool = False) -> None:
        self._credited = credited
        self._checksum = checksum
        self._sequences = dict.fromkeys(range(CHANNELS), 0)
        self._next_receiver = 0
        self._requested: list[int] = []

    def data(self, receiver: int, payload: bytes, *, flags: int = 0, off: int = 0, backlog: int = 0, skew: int = 0):
        """Return the next data of a channel; `off` is added to its sequence number. Flag 4: an unexpected checksum."""
        sequence = (self._sequences.get(receiver, 0) + off) & 0xFFFF_FFFF
        if receiver in self._sequences:
            self._sequences[receiver] = sequence + 1
        head = struct.pack("<IIIB", receiver, sequence, backlog, skew)
        checksum = b""
        if (flags & 4 > 0) is not self._checksum:
            checksum = struct.pack("<I", crc32c(payload))
        body = head + checksum + payload
        return PREFIX.pack(2 + len(body), Data.TYPE, flags & ~4 | (4 if checksum else 0)) + body

    def request(self, which: PartitionId, subpartition: int, *, credit: int = 2, off: int = 0) -> bytes:
        """Return the next request."""
        receiver = max(0, self._next_receiver + off)
        self._next_receiver = receiver + 1
        self._requested.append(receiver)
        initial = credit if self._credited else None
        return encode_frame(RequestPartition(receiver, which, SubpartitionIndex(subpartition), initial))

    def requested(self, number: int) -> int:
        """Return the receiver of a request that was not cancelled; an unknown one if there is none."""
        return self._requested[number % len(self._requested)] if self._requested else number

    def cancel(self, number: int, attempt: AttemptId = ATTEMPT, *, again: bool = False) -> bytes:
        """Return the cancellation of one of the requests."""
        receiver = self.requested(number)
        if receiver in self._requested and not again:
            self._requested.remove(receiver)
        return encode_frame(CancelRequest(receiver, attempt))
