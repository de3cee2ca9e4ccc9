"""The exchange inside one worker: what it costs to hand records from a writer's thread to a reader's.

Each case runs real pools, partitions and gates beside the barest Python that does the same without bounds,
back pressure or reuse of memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from headgate.bench import _memory
from headgate.bench._pickle import pickled_and_back
from headgate.bench.harness import Bench, Rows, per_second, suite
from headgate.config import MemorySettings, NetworkSettings, Settings
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import Forward, Hash, PartitionType
from headgate.output.columns import HashColumns
from headgate.record import BytesSerializer, MsgpackSerializer, Record, Serializer, stable_hash
from headgate.record.arrow import ArrowSerializer
from headgate.record.keys import group_channels
from headgate.worker import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.input import InputGate
    from headgate.output import AnyPartition

__all__ = ["local"]

T = TypeVar("T")

_MIB = 1024 * 1024
_MEMORY_BYTES = 64 * _MIB
_GROUPS = 128


@suite("local", "The exchange inside one worker: buffers, records, emit, Arrow, many channels, memory.")
def local(bench: Bench) -> Rows:
    """All cases; see the module.

    >>> from headgate.bench.harness import find_suite
    >>> find_suite("local").meaning
    'The exchange inside one worker: ...'
    """
    bench.expect(23)
    yield from _buffers(bench)
    yield from _records(bench)
    yield from _emit(bench)
    yield from _arrow(bench)
    yield from _channels(bench)
    yield from _memory_growth(bench)


@contextmanager
def _exchange(
    *,
    partitions: int = 1,
    subpartitions: int = 1,
    kind: PartitionType = PartitionType.PIPELINED_BOUNDED,
    mib: int = 64,
    settings: Settings | None = None,
) -> Iterator[tuple[Environment, list[AnyPartition], InputGate]]:
    """Partitions and one gate that reads all their subpartitions."""
    with Environment(settings, memory_bytes=mib * _MIB) as environment:
        gate = environment.gate("bench", channels=partitions * subpartitions)
        made = []
        for subtask in range(partitions):
            partition_id = PartitionId(JobId("bench"), AttemptId(1), 0, 0, subtask)
            made.append(environment.partition(partition_id, subpartitions=subpartitions, kind=kind))
            for index in range(subpartitions):
                source = environment.local_source(partition_id, SubpartitionIndex(index))
                gate.connect(subtask * subpartitions + index, source)
        yield environment, made, gate


def _beside(write: Callable[[], object], read: Callable[[], object]) -> None:
    """Run one function on a thread of its own and the other here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="bench-writer")
    thread.start()
    read()
    thread.join()
    if errors:
        raise errors[0]


def _drain(gate: InputGate) -> None:
    """Take every buffer and give it back unread."""
    taken = gate.read()
    while taken is not None:
        taken = gate.read(done=taken)


def _take_all(gate: InputGate) -> None:
    """As `_drain`, without waiting."""
    taken = gate.poll()
    while taken is not None:
        taken = gate.poll(taken)


# Buffers -------------------------------------------------------------------------------------------------


def _buffers(bench: Bench) -> Rows:
    count = bench.pick(full=300_000, quick=60_000)
    against = "deque + Condition, unbounded"
    for case, kind, goal in (
        ("buffers", PartitionType.PIPELINED, 0.5),
        ("buffers, at most 10 queued", PartitionType.PIPELINED_BOUNDED, None),
    ):
        yield bench.compare(
            case,
            partial(_hand_over, count, kind),
            partial(_bare_hand_over, count),
            unit="buffers/s",
            against=against,
            goal=goal,
        )


def _hand_over(count: int, kind: PartitionType) -> float:
    with _exchange(kind=kind) as (_, (partition,), gate):

        def write() -> None:
            buffer = None
            for _ in range(count):
                buffer = partition.next_buffer(0, buffer, mid_record=False)
                assert buffer is not None, "it waits for one"
                buffer.publish(buffer.capacity)
            assert buffer is not None, "there was at least one"
            partition.end_buffer(0, buffer)
            partition.finish()

        return per_second(count, lambda: _beside(write, lambda: _drain(gate)))


def _bare_hand_over(count: int) -> float:
    views = [memoryview(bytearray(32 * 1024)) for _ in range(64)]
    queue: deque[memoryview] = deque()
    changed = threading.Condition()

    def write() -> None:
        for number in range(count):
            with changed:
                queue.append(views[number % 64])
                changed.notify()

    def read() -> None:
        for _ in range(count):
            with changed:
                while not queue:
                    changed.wait()
                queue.popleft()

    return per_second(count, lambda: _beside(write, read))


# Records -------------------------------------------------------------------------------------------------


# Two threads under the GIL change places whenever the queue is full or empty, and here a change costs as much as
# twenty buffers. A longer queue measures the exchange; the one of the default settings is shown beside it.
_LONG_QUEUE = Settings(network=NetworkSettings(floating_buffers_per_gate=62, max_buffers_per_channel=64))


def _records(bench: Bench) -> Rows:
    kinds: list[tuple[str, Serializer[object], Callable[[int], object]]] = [
        ("100-byte bytes", BytesSerializer(), lambda number: b"%0100d" % number),  # type: ignore[list-item]
        ("(str, int)", MsgpackSerializer(tuple[str, int]), lambda number: (f"key-{number % 1000}", number)),
    ]
    for name, serializer, make in kinds:
        for size, settings in (*((size, _LONG_QUEUE) for size in (1, 10, 100, 1_000, 10_000)), (1_000, Settings())):
            total = bench.pick(full=500_000, quick=100_000) // (5 if size == 1 else 1)
            batch = [make(number) for number in range(size)]
            long = settings is _LONG_QUEUE
            yield bench.compare(
                f"records, {name}, batches of {size:,}" + ("" if long else ", at most 10 queued"),
                partial(_records_through, serializer, batch, total, settings),
                partial(_pickled, batch, total),
                unit="records/s",
                against="pickle dumps + loads, one thread",
                goal=0.6 if size == 1_000 and long else None,
            )


def _pickled(batch: list[object], total: int) -> float:
    return per_second(total, lambda: pickled_and_back(batch, total // len(batch)))


def _records_through(serializer: Serializer[T], batch: list[T], total: int, settings: Settings) -> float:
    with _exchange(settings=settings) as (environment, (partition,), gate):
        writer = environment.writer(partition, Forward(), serializer)
        reader = environment.reader(gate, serializer)

        def write() -> None:
            for _ in range(total // len(batch)):
                writer.emit_batch(batch)
            writer.finish()

        def read() -> None:
            for _ in reader:
                pass

        figure = per_second(total, lambda: _beside(write, read))
        assert reader.records_in.value == total, "every record arrived"
        writer.close()
        return figure


# One call per record -------------------------------------------------------------------------------------


def _first(pair: tuple[str, int]) -> str:
    return pair[0]


def _emit(bench: Bench) -> Rows:
    pairs = [(f"key-{number % 1000}", number) for number in range(bench.pick(full=300_000, quick=80_000))]
    yield bench.compare(
        "emit, 8 hash channels",
        lambda: _emit_each(pairs),
        lambda: per_second(len(pairs), lambda: _append_each(pairs)),
        unit="records/s",
        against="a loop that appends to 8 lists",
        goal=0.5,
    )


def _emit_each(pairs: list[tuple[str, int]]) -> float:
    """One thread, which takes the buffers back itself now and then: the cost of emitting, not of switching."""
    with _exchange(subpartitions=8) as (environment, (partition,), gate):
        writer = environment.writer(partition, Hash(_first, _GROUPS), MsgpackSerializer(tuple[str, int]))

        def write() -> None:
            emit = writer.emit
            for start in range(0, len(pairs), 4_000):
                for pair in pairs[start : start + 4_000]:
                    emit(pair)
                _take_all(gate)
            writer.finish()
            _take_all(gate)

        figure = per_second(len(pairs), write)
        writer.close()
        return figure


def _append_each(pairs: list[tuple[str, int]]) -> None:
    channel_of, lists = group_channels(_GROUPS, 8), [[] for _ in range(8)]  # type: ignore[var-annotated]
    for pair in pairs:
        lists[channel_of[stable_hash(_first(pair)) % _GROUPS]].append(pair)


# Arrow ---------------------------------------------------------------------------------------------------


def _arrow(bench: Bench) -> Rows:
    for rows in (1_000, 10_000, 100_000):
        numbers = np.arange(rows)
        words = [f"word-{number * 7919 % 5000}" for number in range(rows)]
        batch = pa.record_batch({"id": numbers, "price": numbers / 7, "word": words})
        rounds = bench.pick(full=4_000_000, quick=1_000_000) // rows
        yield bench.compare(
            f"arrow, 8 hash channels, batches of {rows:,}",
            partial(_arrow_through, batch, rounds),
            partial(_scatter_only, batch, rounds),
            unit="rows/s",
            against="the partitioning alone",
            goal=0.6 if rows == 100_000 else None,
        )


def _scatter_only(batch: pa.RecordBatch, rounds: int) -> float:
    selector = HashColumns(["word"], _GROUPS)
    selector.connect(8)

    def scatter() -> None:
        for _ in range(rounds):
            selector.scatter(batch)

    return per_second(rounds * batch.num_rows, scatter)


def _arrow_through(batch: pa.RecordBatch, rounds: int) -> float:
    """One thread, as the baseline: Arrow's short calls outside the GIL make two threads wait for each other.

    Buffers are large enough for a channel's share of a batch, so every one is read where it lies.
    """
    settings = Settings(memory=MemorySettings(segment_size=512 * 1024))
    with _exchange(subpartitions=8, settings=settings) as (environment, (partition,), gate):
        arrow = ArrowSerializer(validate_fully=False)
        writer = environment.writer(partition, HashColumns(["word"], _GROUPS), arrow)
        reader = environment.reader(gate, arrow)
        received = 0

        def write_and_read(rounds: int) -> None:
            nonlocal received
            for _ in range(rounds):
                writer.emit(batch)
                writer.flush()
                while (element := reader.poll()) is not None:
                    assert isinstance(element, Record), "nothing but record batches was written"
                    received += element.value.num_rows

        write_and_read(1)  # the first use of a buffer is when the system finds the memory for it
        figure = per_second(rounds * batch.num_rows, lambda: write_and_read(rounds))
        assert received == (rounds + 1) * batch.num_rows, "every row arrived"
        reader.close()
        writer.close()
        return figure


# Many channels -------------------------------------------------------------------------------------------


def _channels(bench: Bench) -> Rows:
    count = bench.pick(full=100_000, quick=20_000)
    for channels in (1, 10, 100):
        yield bench.measure(f"channels, {channels}", partial(_buffer_cost, channels, count), unit="us/buffer")
    yield bench.compare(
        "channels, 1,000",
        lambda: _buffer_cost(1_000, count),
        lambda: _buffer_cost(10, count),
        unit="us/buffer",
        against="10 channels",
        goal=1.5,
        at_most=True,
    )


def _buffer_cost(channels: int, count: int) -> float:
    """Microseconds for a buffer to be requested, filled, polled and returned, one per channel in turn."""
    with _exchange(partitions=channels, mib=256) as (_, partitions, gate):
        rounds = count // channels
        started = time.perf_counter_ns()
        for _ in range(rounds):
            for partition in partitions:
                buffer = partition.next_buffer(0, None, mid_record=False)
                assert buffer is not None, "it waits for one"
                buffer.publish(buffer.capacity)
                partition.end_buffer(0, buffer)
            _take_all(gate)
        return (time.perf_counter_ns() - started) / 1e3 / (rounds * channels)


# Memory --------------------------------------------------------------------------------------------------


def _memory_growth(bench: Bench) -> Rows:
    seconds = bench.pick(full=6.0, quick=2.0)
    yield bench.measure(
        "memory, reader at 1 %",
        lambda: _memory.measure(_MEMORY_BYTES, seconds)["growth_bytes"] / _MIB,
        unit="MiB grown",
        goal=_MEMORY_BYTES / _MIB + 32,
        at_most=True,
    )
