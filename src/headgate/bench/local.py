"""The suite `local`: what the exchange costs between a writer's and a reader's thread of one worker.

The baselines are the barest Python that does the same without bounds, back pressure or reuse of memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from headgate.bench._pickle import pickled_and_back
from headgate.bench.harness import Case, Contest, per_second
from headgate.bench.processes import START_S, child
from headgate.bench.workers import partition_id
from headgate.config import MemorySettings, NetworkSettings, Settings
from headgate.config.units import KIB, MIB
from headgate.ids import SubpartitionIndex
from headgate.output import Forward, Hash, PartitionType
from headgate.output.columns import HashColumns
from headgate.record import BytesSerializer, MsgpackSerializer, Record, Serializer, stable_hash
from headgate.record.arrow import ArrowSerializer
from headgate.record.keys import group_channels
from headgate.worker import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headgate.bench.harness import Bench, Row
    from headgate.bench.processes import Parent
    from headgate.input import InputGate, RecordReader
    from headgate.output import AnyPartition

__all__ = ["local"]

T = TypeVar("T")

_GROUPS: Final = 128
_MEMORY_MIB: Final = 64
_FULL_SPEED_S: Final = 0.2  # the reader's full speed is measured for this long before it slows down

# Under the GIL, two threads change places whenever the queue is full or empty, which here costs as much as twenty
# buffers. A longer queue measures the exchange; the default length is a case of its own.
_LONG_QUEUE: Final = Settings(network=NetworkSettings(floating_buffers_per_gate=62, max_buffers_per_channel=64))


def local(bench: Bench) -> Iterable[Row]:
    """Run all cases; see the module."""
    return bench.run(
        [*_buffers(bench), *_records(bench), _emit(bench), *_arrow(bench), *_channels(bench), _memory(bench)]
    )


def _beside(
    case: str, ours: Callable[[], float], baseline: Callable[[], float], unit: str, against: str, **goal: Any
) -> Contest[float]:
    row: Case[float] = Case(case, unit, "headgate", against=against, baseline=("baseline",), **goal)
    return Contest(name=case, runs={"headgate": ours, "baseline": baseline}, cases=[row])


def _alone(case: str, run: Callable[[], float], unit: str, **goal: Any) -> Contest[float]:
    row: Case[float] = Case(case, unit, "headgate", **goal)
    return Contest(name=case, runs={"headgate": run}, cases=[row])


@contextmanager
def _exchange(
    *,
    partitions: int = 1,
    subpartitions: int = 1,
    kind: PartitionType = PartitionType.PIPELINED_BOUNDED,
    mib: int = _MEMORY_MIB,
    settings: Settings | None = None,
) -> Iterator[tuple[Environment, list[AnyPartition], InputGate]]:
    """Yield partitions, and one gate that reads all their subpartitions."""
    with Environment(settings, memory_bytes=mib * MIB) as environment:
        gate = environment.gate("bench", channels=partitions * subpartitions)
        made = []
        for number in range(partitions):
            made.append(environment.partition(partition_id(number), subpartitions=subpartitions, kind=kind))
            for index in range(subpartitions):
                source = environment.local_source(partition_id(number), SubpartitionIndex(index))
                gate.connect(number * subpartitions + index, source)
        yield environment, made, gate


def _run_both(write: Callable[[], object], read: Callable[[], object]) -> None:
    """Call `write` on a thread of its own and `read` on this one; raise what either raises."""
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


def _fill_one(partition: AnyPartition) -> None:
    buffer = partition.next_buffer(0, None, mid_record=False)
    assert buffer is not None, "next_buffer blocks until there is one"
    buffer.publish(buffer.capacity)
    partition.end_buffer(0, buffer)


def _drain(reader: RecordReader[Any]) -> None:
    for _ in reader:
        pass


def _poll_all(gate: InputGate) -> None:
    """Take and recycle all queued buffers, without blocking."""
    taken = gate.poll()
    while taken is not None:
        taken = gate.poll(taken)


# Buffers and records ---------------------------------------------------------------------------------------------


def _buffers(bench: Bench) -> Iterator[Contest[float]]:
    count = bench.pick(full=300_000, quick=60_000)
    for case, kind, goal in (
        ("buffers", PartitionType.PIPELINED, 0.5),
        ("buffers, at most 10 queued", PartitionType.PIPELINED_BOUNDED, None),
    ):
        ours, baseline = partial(_hand_over, count, kind), partial(_bare_hand_over, count)
        yield _beside(case, ours, baseline, "buffers/s", "deque + Condition, unbounded", goal=goal)


def _hand_over(count: int, kind: PartitionType) -> float:
    with _exchange(kind=kind) as (_, (partition,), gate):

        def write() -> None:
            buffer = None
            for _ in range(count):
                buffer = partition.next_buffer(0, buffer, mid_record=False)
                assert buffer is not None, "next_buffer blocks until there is one"
                buffer.publish(buffer.capacity)
            assert buffer is not None, "there was at least one"
            partition.end_buffer(0, buffer)
            partition.finish()

        def read() -> None:
            taken = gate.read()
            while taken is not None:
                taken = gate.read(done=taken)

        return per_second(count, lambda: _run_both(write, read))


def _bare_hand_over(count: int) -> float:
    views = [memoryview(bytearray(32 * KIB)) for _ in range(64)]
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

    return per_second(count, lambda: _run_both(write, read))


def _records(bench: Bench) -> Iterator[Contest[float]]:
    kinds: list[tuple[str, Serializer[object], Callable[[int], object]]] = [
        ("100-byte bytes", BytesSerializer(), lambda number: b"%0100d" % number),  # type: ignore[list-item]
        ("(str, int)", MsgpackSerializer(tuple[str, int]), lambda number: (f"key-{number % 1000}", number)),
    ]
    for name, serializer, make in kinds:
        for size, settings in (*((size, _LONG_QUEUE) for size in (1, 10, 100, 1_000, 10_000)), (1_000, Settings())):
            total = bench.pick(full=500_000, quick=100_000) // (5 if size == 1 else 1)
            batch, long = [make(number) for number in range(size)], settings is _LONG_QUEUE
            yield _beside(
                f"records, {name}, batches of {size:,}" + ("" if long else ", at most 10 queued"),
                partial(_records_through, serializer, batch, total, settings),
                partial(per_second, total, partial(pickled_and_back, batch, total // len(batch))),
                "records/s",
                "pickle dumps + loads, one thread",
                goal=0.6 if size == 1_000 and long else None,
            )


def _records_through(serializer: Serializer[T], batch: list[T], total: int, settings: Settings) -> float:
    with _exchange(settings=settings) as (environment, (partition,), gate):
        writer = environment.writer(partition, Forward(), serializer)
        reader = environment.reader(gate, serializer)

        def write() -> None:
            for _ in range(total // len(batch)):
                writer.emit_batch(batch)
            writer.finish()

        figure = per_second(total, lambda: _run_both(write, lambda: _drain(reader)))
        assert reader.records_in.value == total, "every record arrived"
        writer.close()
        return figure


# One call per record, and Arrow ----------------------------------------------------------------------------------


def _first(pair: tuple[str, int]) -> str:
    return pair[0]


def _emit(bench: Bench) -> Contest[float]:
    pairs = [(f"key-{number % 1000}", number) for number in range(bench.pick(full=300_000, quick=80_000))]
    baseline = partial(per_second, len(pairs), partial(_append_each, pairs))
    against = "a loop that appends to 8 lists"
    return _beside("emit, 8 hash channels", partial(_emit_each, pairs), baseline, "records/s", against, goal=0.5)


def _emit_each(pairs: list[tuple[str, int]]) -> float:
    """Use one thread, which also recycles the buffers: the cost of `emit`, not of changing threads."""
    with _exchange(subpartitions=8) as (environment, (partition,), gate):
        writer = environment.writer(partition, Hash(_first, _GROUPS), MsgpackSerializer(tuple[str, int]))

        def write() -> None:
            emit = writer.emit
            for start in range(0, len(pairs), 4_000):
                for pair in pairs[start : start + 4_000]:
                    emit(pair)
                _poll_all(gate)
            writer.finish()
            _poll_all(gate)

        figure = per_second(len(pairs), write)
        writer.close()
        return figure


def _append_each(pairs: list[tuple[str, int]]) -> None:
    channel_of, lists = group_channels(_GROUPS, 8), [[] for _ in range(8)]  # type: ignore[var-annotated]
    for pair in pairs:
        lists[channel_of[stable_hash(_first(pair)) % _GROUPS]].append(pair)


def _arrow(bench: Bench) -> Iterator[Contest[float]]:
    for rows in (1_000, 10_000, 100_000):
        numbers = np.arange(rows)
        words = [f"word-{number * 7919 % 5000}" for number in range(rows)]
        batch = pa.record_batch({"id": numbers, "price": numbers / 7, "word": words})
        rounds = bench.pick(full=4_000_000, quick=1_000_000) // rows
        yield _beside(
            f"arrow, 8 hash channels, batches of {rows:,}",
            partial(_arrow_through, batch, rounds),
            partial(_scatter_only, batch, rounds),
            "rows/s",
            "the partitioning alone",
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
    """Use one thread, as the baseline does: Arrow's short calls outside the GIL make two threads wait for each other.

    A buffer is large enough for a channel's share of a batch, so every batch is read in place.
    """
    settings = Settings(memory=MemorySettings(segment_size=512 * KIB))
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
                    assert isinstance(element, Record), "only record batches were written"
                    received += element.value.num_rows

        write_and_read(1)  # the system allocates a buffer's memory at its first use
        figure = per_second(rounds * batch.num_rows, lambda: write_and_read(rounds))
        assert received == (rounds + 1) * batch.num_rows, "every row arrived"
        reader.close()
        writer.close()
        return figure


# Many channels, and memory ---------------------------------------------------------------------------------------


def _channels(bench: Bench) -> Iterator[Contest[float]]:
    count = bench.pick(full=100_000, quick=20_000)
    for channels in (1, 10, 100):
        yield _alone(f"channels, {channels}", partial(_buffer_cost, channels, count), "us/buffer")
    many, ten = partial(_buffer_cost, 1_000, count), partial(_buffer_cost, 10, count)
    yield _beside("channels, 1,000", many, ten, "us/buffer", "10 channels", goal=1.5, at_most=True)


def _buffer_cost(channels: int, count: int) -> float:
    """Return the microseconds to request, fill, poll and recycle a buffer, one per channel in turn."""
    with _exchange(partitions=channels, mib=256) as (_, partitions, gate):
        rounds = count // channels
        started_ns = time.perf_counter_ns()
        for _ in range(rounds):
            for partition in partitions:
                _fill_one(partition)
            _poll_all(gate)
        return (time.perf_counter_ns() - started_ns) / 1e3 / (rounds * channels)


def _memory(bench: Bench) -> Contest[float]:
    run = partial(_memory_growth, bench.pick(full=6.0, quick=2.0))
    return _alone("memory, reader at 1 %", run, "MiB grown", goal=_MEMORY_MIB + 32, at_most=True)


def _memory_growth(seconds: float) -> float:
    with child(_slow_reader, seconds) as process:  # a process of its own: earlier growth would hide this one
        return process.result(START_S + seconds) / MIB


def _slow_reader(parent: Parent, seconds: float) -> int:  # noqa: ARG001 - a child's function
    """Return the bytes by which this process grows while a reader at 1 % of its speed holds back a writer."""
    stop, records = threading.Event(), [b"x" * 100] * 1000
    with _exchange() as (environment, (partition,), gate):
        writer = environment.writer(partition, Forward(), BytesSerializer())
        reader = environment.reader(gate, BytesSerializer())

        def write() -> None:
            while not stop.is_set():
                writer.emit_batch(records)
            writer.finish()

        before, peak = _status_bytes("VmRSS"), 0

        def read() -> None:
            nonlocal peak
            started_s, batches = time.perf_counter(), 0
            while time.perf_counter() < started_s + _FULL_SPEED_S:
                reader.read()
                batches += 1
            pause_s = 99 * _FULL_SPEED_S / batches
            while time.perf_counter() < started_s + seconds:
                reader.read()
                time.sleep(pause_s)
            peak = _status_bytes("VmHWM")
            stop.set()
            _drain(reader)

        _run_both(write, read)
        writer.close()
        reader.close()
    return peak - before


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith(field))
