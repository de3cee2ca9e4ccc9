"""Short runs of an exchange with racing threads: `threads/` repeats them thousands of times, the soak for minutes.

Each function plays one round from a seed and raises if anything was lost, doubled or reordered, a thread hangs,
an error is not of the right class, or a segment is missing.
"""

import random
import threading
from queue import SimpleQueue

import pyarrow as pa
from tests.support.exchange import Exchange, partition_id, values_of
from tests.support.threads import Thread

from headgate.clock import SystemClock
from headgate.config import load_settings
from headgate.errors import Cancelled, HeadgateError, PartitionNotFound, ProducerFailed
from headgate.ids import JobId, SubpartitionIndex
from headgate.input import Backoff, InputGate, LocalSource, RecordReader, UnionGate
from headgate.output import (
    Broadcast,
    Custom,
    Forward,
    Hash,
    PartitionType,
    RecordWriter,
    Rescale,
    ResultPartition,
)
from headgate.output.columns import ColumnWriter
from headgate.record import BytesSerializer, CheckpointBarrier, LatencyMarker, Record, UserEvent, Watermark
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment


def pause(chance: random.Random) -> None:
    """Let other threads run for a random time."""
    for _ in range(chance.choice([0, 0, 1, 3, 10, 40, 200])):
        threading.Event().is_set()


def records_of(chance: random.Random, count: int) -> list[bytes]:
    return [b"%d:" % i + bytes(chance.choice([0, 0, 1, 5, 20, 70])) for i in range(count)]


def number(record: bytes) -> int:
    return int(record[: record.index(b":")])


# Nothing is lost.


def small_exchange(seed: int) -> None:
    """Race one writer with a reader for each channel, with very few buffers."""
    chance = random.Random(seed)
    channels = chance.choice([1, 2, 3])
    selector = chance.choice([Rescale(), Hash(number), Broadcast(), Custom(lambda record, n: number(record) % 7 % n)])
    records = records_of(chance, chance.choice([1, 10, 60]))
    exchange = Exchange(
        selector,
        channels=channels,
        segment_size=chance.choice([16, 24, 64, 200]),
        segments=channels + chance.choice([1, 1, 2, 8]),
        max_per_channel=chance.choice([None, 1, 2]),
        overdraft=chance.choice([0, 2]),
        buffer_timeout=chance.choice(["-1", "0", "10ms"]),
    )

    def write() -> None:
        i = 0
        while i < len(records):
            step = chance.choice([1, 1, 1, 5])
            if step == 1:
                exchange.writer.emit(records[i])
            else:
                exchange.writer.emit_batch(records[i : i + step])
            i += step
            if chance.random() < 0.1:
                exchange.writer.flush()
        exchange.writer.finish()

    with exchange:
        readers = [Thread(lambda reader=reader: values_of(reader)) for reader in exchange.readers]
        Thread(write).end()
        got = [reader.end() for reader in readers]
        if selector.broadcast:
            assert got == [records] * channels
        else:
            assert sorted(number(record) for one in got for record in one) == list(range(len(records)))
            assert all(list(map(number, one)) == sorted(map(number, one)) for one in got)
        assert exchange.used == 0


def flushed_exchange(seed: int) -> None:
    """Race the flusher with a writer that uses all its methods."""
    chance = random.Random(seed)
    channels = chance.choice([1, 2])
    selector = chance.choice([Rescale(), Broadcast()]) if channels > 1 else Forward()
    exchange = Exchange(
        selector,
        channels=channels,
        segment_size=chance.choice([16, 40, 100]),
        segments=channels + chance.choice([1, 3]),
        buffer_timeout="10ms",
    )
    expected: list[list[object]] = [[] for _ in range(channels)]
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            exchange.writer.tick()

    def write() -> None:
        turn = 0
        for i, record in enumerate(records_of(chance, 60)):
            kind = chance.choice(["emit", "emit", "emit", "at", "batch", "watermark", "event"])
            match kind:
                case "emit":
                    exchange.writer.emit(record)
                case "at":
                    exchange.writer.emit_at(record, i)
                case "batch":
                    exchange.writer.emit_batch([record, record])
                case "watermark":
                    exchange.writer.emit_element(Watermark(i))
                case "event":
                    exchange.writer.emit_event(UserEvent(str(i)))
            if kind in {"watermark", "event"}:
                for channel in expected:
                    channel.append(Watermark(i) if kind == "watermark" else UserEvent(str(i)))
                continue
            for _ in range(2 if kind == "batch" else 1):
                value = Record(record, i) if kind == "at" else record
                for channel in expected if selector.broadcast else [expected[turn % channels]]:
                    channel.append(value)
                turn += 1
        exchange.writer.finish()

    with exchange:
        readers = [Thread(lambda reader=reader: values_of(reader)) for reader in exchange.readers]
        ticker = Thread(tick)
        try:
            Thread(write).end()
            assert [reader.end() for reader in readers] == expected
        finally:
            over.set()
            ticker.end()
        assert exchange.used == 0


def fan_in(seed: int) -> None:
    """Race several writers with a union of two gates that are connected meanwhile."""
    chance = random.Random(seed)
    producers = chance.choice([2, 3, 4])
    exchange = Exchange(segments=producers * 3 + 2, segment_size=32, connect=False)
    clock = SystemClock()
    gates = [InputGate(f"gate-{i}", n, sync=exchange.sync, clock=clock) for i, n in enumerate([1, producers - 1])]
    union = UnionGate("union", gates, sync=exchange.sync, clock=clock)
    reader = RecordReader(union, BytesSerializer())
    sent = [records_of(chance, 30) for _ in range(producers)]

    def produce(i: int) -> RecordWriter[bytes]:
        writer = exchange.writer
        if i:
            pool = exchange.memory.create_pool(f"p{i}", required=2, maximum=3, channels=1)
            partition = ResultPartition(partition_id(i), PartitionType.PIPELINED_BOUNDED, 1, pool)
            exchange.registry.register(partition)
            writer = RecordWriter(partition, Forward(), BytesSerializer(), sync=exchange.sync, below=lambda n: 0)
        for record in sent[i]:
            writer.emit(record)
        writer.finish()
        return writer

    def read() -> dict[int, list[bytes]]:
        got: dict[int, list[bytes]] = {i: [] for i in range(producers)}
        for element in reader:
            got[reader.channel] += values_of([element])
        return got

    def connect() -> None:
        for i in range(producers):
            source = LocalSource(exchange.registry, partition_id(i), SubpartitionIndex(0), Backoff(100_000, 10**10))
            gates[min(i, 1)].connect(max(0, i - 1), source)
            pause(chance)

    with exchange:
        reading, connecting = Thread(read), Thread(connect)
        producing = [Thread(lambda i=i: produce(i)) for i in range(producers)]
        writers = [thread.end() for thread in producing]
        connecting.end()
        assert reading.end() == dict(enumerate(sent))
        for writer in writers:
            writer.close()
        exchange.registry.release_all()
        reader.close()
        assert exchange.used == 0


def dropped_batches(seed: int) -> None:
    """Race a writer that waits for a buffer with a thread that drops record batches of the same pool."""
    chance = random.Random(seed)
    exchange = Exchange(
        serializer=ArrowSerializer(),
        writer=ColumnWriter,
        segment_size=512,
        segments=4,
        required=2,
        buffer_timeout="-1",
    )
    batches = [pa.record_batch({"n": list(range(i, i + chance.choice([1, 20, 100])))}) for i in range(20)]
    dropped: SimpleQueue = SimpleQueue()
    sums = []

    def drop() -> None:
        while (batch := dropped.get()) is not None:
            sums.append(sum(batch.column("n").to_pylist()))
            del batch

    def write() -> None:
        for batch in batches:
            exchange.writer.emit(batch)
        exchange.writer.finish()

    def read() -> None:
        for element in exchange.reader:
            if isinstance(element, Record):
                dropped.put(element.value)
            del element

    with exchange:
        dropper, reader, writer = Thread(drop), Thread(read), Thread(write)
        try:
            writer.end()
            reader.end()
        finally:
            dropped.put(None)
            dropper.end()
        assert sums == [sum(batch.column("n").to_pylist()) for batch in batches]
        assert exchange.used == 0


# Everything may be cancelled.

WRITES = {
    "emit": lambda writer, chance: writer.emit(bytes(chance.choice([0, 5, 50]))),
    "emit_at": lambda writer, chance: (writer.emit_at(bytes(5), 1), writer.emit(b"x")),
    "emit_batch": lambda writer, chance: writer.emit_batch([bytes(10)] * chance.choice([1, 3, 30])),
    "emit_element": lambda writer, chance: writer.emit_element(chance.choice([Watermark(1), LatencyMarker(1, 2, 3)])),
    "emit_event": lambda writer, chance: (writer.emit(b"x"), writer.emit_event(CheckpointBarrier(1, 2))),
    "flush": lambda writer, chance: (writer.emit(b"x"), writer.flush()),
    "tick": lambda writer, chance: (writer.emit(b"x"), writer.tick()),
}
CALLS = [*WRITES, "finish", "poll", "read", "connect"]
CANCELS = ["partition", "failure", "gates", "job", "environment"]


class Boom(Exception):
    pass


def cancelled(call: str, cancel: str, seed: int) -> None:
    """Race threads that write, read, flush and connect with one that releases everything."""
    chance = random.Random(seed)
    values = {
        "memory.segment_size": chance.choice([16, 32, 100]),
        "execution.buffer_timeout": chance.choice(["-1", "1 ms"]),
        "network.partition_request_backoff.initial": "1 ms",
        "network.partition_request_backoff.max": "1 ms",
        "network.buffers_request_timeout": "1 h",
        "network.max_buffers_per_channel": chance.choice([1, 2, 10]),
    }
    env = Environment(load_settings(code=values), memory_bytes=values["memory.segment_size"] * 4, seed=seed)
    partition = env.partition(partition_id(), subpartitions=2)
    selector = chance.choice([Rescale, Broadcast])()
    writer = env.writer(partition, selector, BytesSerializer())
    gates = [env.gate(f"gate-{i}", channels=1) for i in range(2)]
    readers = [env.reader(gate, BytesSerializer()) for gate in gates]
    cause = Boom("boom")
    start = threading.Barrier(6)
    over = threading.Event()

    def connect(i: int) -> None:
        try:
            gates[i].connect(0, env.local_source(partition_id(), SubpartitionIndex(i)))
        except HeadgateError:
            gates[i].release()  # as a task does whose set-up fails
            raise

    def write() -> None:
        start.wait()
        mine = random.Random(seed + 1)
        if call == "finish":
            writer.emit_batch([bytes(10)] * 5)
            pause(mine)
            writer.finish()
            return
        while True:
            WRITES.get(call, WRITES["emit"])(writer, mine)

    def read(i: int) -> None:
        start.wait()
        if call == "connect":
            pause(random.Random(seed + 2 + i))
            connect(i)
        reader = readers[i]
        while not reader.finished:
            if call == "poll":
                reader.poll()
            else:
                reader.read()

    def tick() -> None:
        start.wait()
        while not over.is_set():
            writer.tick()

    def end() -> None:
        start.wait()
        pause(chance)
        pause(chance)
        match cancel:
            case "partition":
                partition.release()
            case "failure":
                partition.release(cause)
            case "gates":
                for gate in gates:
                    gate.release()
            case "job":
                env.release_job(JobId("job"), cause)
            case "environment":
                env.close()

    if call != "connect":
        for i in range(2):
            connect(i)
    actors = [Thread(write), Thread(lambda: read(0)), Thread(lambda: read(1)), Thread(tick), Thread(end)]
    start.wait()
    try:
        for actor in [actors[4], *actors[:3]]:
            actor.join(30)
            assert not actor.is_alive(), f"a thread hangs: {call} while {cancel}"
    finally:
        over.set()
        actors[3].end()
    allowed = {0: (Cancelled,), 1: (Cancelled, ProducerFailed), 2: (Cancelled, ProducerFailed), 3: (), 4: ()}
    if call == "connect" and cancel in {"job", "environment"}:
        allowed[1] = allowed[2] = (Cancelled, ProducerFailed, PartitionNotFound)
    for i, actor in enumerate(actors):
        if actor.error is not None and not isinstance(actor.error, allowed[i]):
            raise AssertionError(f"{call} while {cancel}, thread {i}") from actor.error
        if isinstance(actor.error, ProducerFailed):
            assert actor.error.cause is cause
        actor.error = None
    if call != "finish":
        assert not actors[0].is_alive()
    writer.close()
    for reader in readers:
        reader.close()
    env.close()
    statistics = env.memory.statistics()
    assert statistics.free == statistics.total, f"{call} while {cancel}: {statistics}"
