"""The suite `wire`: the exchange between two workers in two processes, beside other ways to carry bytes.

This module has the cases of throughput and latency; `slow_consumers` has those of `slow-neighbour` and `response`.
Workers have default settings but for what a case varies; docs/benchmarks.md describes each case.
"""

from __future__ import annotations

import time
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate.bench.baselines import (
    LIBRARIES,
    RAW,
    busy_thread,
    check_installed,
    message_delays_ms,
    paced,
)
from headgate.bench.baselines import throughput as baseline_throughput
from headgate.bench.harness import Case, Contest, percentile
from headgate.bench.processes import START_S, ProcessPair
from headgate.bench.slow_consumers import NeighbourPhases, neighbours, response
from headgate.bench.workers import consuming, producing, run_workers
from headgate.config import BufferTimeout, ExecutionSettings, FlushMode, NetworkSettings, Settings
from headgate.config.units import KIB, MIB, format_size
from headgate.errors import InvariantViolated
from headgate.output import Forward
from headgate.record import Batch, Record
from headgate.record.fixed import StructSerializer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headgate.bench.harness import Bench, Row
    from headgate.bench.processes import Parent
    from headgate.bench.workers import WorkerEnd
    from headgate.buffer import Buffer

__all__ = ["WireAmounts", "wire"]

_SLOWEST: Final = 20e6  # bytes/s: a slower run hangs
_TEN: Final = "10 channels"
_CHANNELS: Final = {"1 channel": 1, _TEN: 10, "100 channels": 100, "1,000 channels": 1_000}
_UNIT_SIZES: Final = {"Flight": 64 * KIB, "gRPC": 32 * KIB, "ZeroMQ": 32 * KIB}  # a message is about one buffer of ours
_BEST_SIZES: Final = dict.fromkeys(LIBRARIES, MIB)
_RATES_HZ: Final = (1_000, 50_000)
_TIMEOUTS: Final = ("auto", "0", "1 ms", "10 ms", "100 ms")
_RECORD: Final = "<q92x"  # when it was sent, and padding to 100 bytes
_BARE, _WORKING = "bare socket", "bare socket with as much Python"
_WORK_S: Final = 60e-6  # before and after each send and receipt: about what headgate computes for 25 records
_QUIET_S: Final = 0.05  # between the last record and the end, which would compete with its receipt


class WireAmounts(NamedTuple):
    """How much one run of each case does."""

    total: int  # bytes of throughput
    latency_s: float
    neighbours: NeighbourPhases
    response_s: float  # of each of three phases


_FULL: Final = WireAmounts(1024 * MIB, 2.0, NeighbourPhases(0.5, 1.5), 1.5)
_QUICK: Final = WireAmounts(64 * MIB, 0.3, NeighbourPhases(0.25, 0.5), 0.3)


def wire(bench: Bench, amounts: WireAmounts | None = None) -> Iterable[Row]:
    """Run all cases; see the module. Each group of cases starts with two fresh processes."""
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    with ProcessPair() as pair:
        yield from bench.run(
            _throughput(pair, amounts.total),
            [_latency(pair, rate_hz, amounts.latency_s) for rate_hz in _RATES_HZ],
            [neighbours(pair, amounts.neighbours)],
            [response(pair, amounts.response_s)],
            after_group=pair.close,
        )


# Throughput ------------------------------------------------------------------------------------------------------


def _throughput(pair: ProcessPair, total: int) -> list[Contest[float]]:
    def ours(**varied: object) -> Callable[[], float]:
        return partial(_carry, pair, total, **varied)  # type: ignore[arg-type]

    def baseline(library: str, size: int) -> float:
        if library != RAW:
            check_installed()  # all of them, before the first is measured
        return baseline_throughput(library, total, size) / 1e9

    def contest(runs: Mapping[str, Callable[[], float]], cases: list[Case[float]]) -> Contest[float]:
        return Contest(name="throughput", rounds=3, runs=runs, cases=cases)

    def libraries(sizes: Mapping[str, int], which: str, goal: float | None) -> Contest[float]:
        names = {library: f"{library} {format_size(size)}" for library, size in sizes.items()}
        best = f"best of {', '.join(names.values())}"
        return contest(
            {**{library: partial(baseline, library, size) for library, size in sizes.items()}, _TEN: ours()},
            [
                *(_case(name, library) for library, name in names.items()),
                _case(f"10 channels, libraries {which}", _TEN, best, *sizes, goal=goal),
            ],
        )

    sockets = contest(
        {
            **{name: ours(channels=channels) for name, channels in _CHANNELS.items()},
            "raw 32 KiB": partial(baseline, RAW, 32 * KIB),
            "raw 1 MiB": partial(baseline, RAW, MIB),
        },
        [
            _case("raw sockets, 32 KiB", "raw 32 KiB"),
            _case("raw sockets, 1 MiB", "raw 1 MiB"),
            _case("1 channel", "1 channel", "raw sockets, 32 KiB", "raw 32 KiB"),
            _case("10 channels", _TEN, "raw sockets, 32 KiB", "raw 32 KiB", goal=1.0),
            _case("100 channels", "100 channels", "raw sockets, 32 KiB", "raw 32 KiB"),
            _case("1,000 channels", "1,000 channels", "10 channels", _TEN, goal=0.7),
            _case("10 channels, large chunks", _TEN, "raw sockets, 1 MiB", "raw 1 MiB", goal=0.5),
        ],
    )
    varied = {"TLS": ours(tls=True)}
    for name in ("shared", "asyncio"):
        varied[f"transport {name}"] = ours(network=NetworkSettings(transport=name))
    if find_spec("crc32c"):
        varied["checksum"] = ours(network=NetworkSettings(checksum=True))
    variants = [_case(f"10 channels, {name}", name, "default settings", _TEN) for name in varied]
    return [
        sockets,
        libraries(_UNIT_SIZES, "at our own size", 1.5),
        libraries(_BEST_SIZES, "at their best size (no goal)", None),
        contest({_TEN: ours(), **varied}, variants),
    ]


def _case(name: str, run: str, against: str | None = None, *baseline: str, goal: float | None = None) -> Case[float]:
    return Case(f"throughput, {name}", "GB/s", run, against=against, baseline=baseline, goal=goal)


def _carry(
    pair: ProcessPair, total: int, *, channels: int = 10, network: NetworkSettings | None = None, tls: bool = False
) -> float:
    """Return the GB/s of one run: from the first buffer until the consumer has read the end."""
    settings = Settings() if network is None else Settings(network=network)
    size = settings.memory.segment_size
    buffers = max(channels, total // size)
    started_ns, (received, ended_ns) = run_workers(
        pair,
        partial(_produce, subpartitions=channels, buffers=buffers),
        partial(_consume, channels=channels),
        settings=settings,
        channels=channels,
        tls=tls,
        limit_s=total / _SLOWEST,
    )
    if received != buffers * size:
        raise InvariantViolated(f"{received} of {buffers * size} bytes arrived")
    return received / (ended_ns - started_ns)


def _produce(parent: Parent, end: WorkerEnd, *, subpartitions: int, buffers: int) -> int:
    """Publish full buffers, unfilled, one for each channel in turn; return the start."""
    with producing(parent, end, subpartitions=subpartitions) as (_, (partition,)):
        size, next_buffer = end.settings.memory.segment_size, partition.next_buffer
        filled: list[Buffer | None] = [None] * subpartitions
        started_ns = time.monotonic_ns()
        for number in range(buffers):
            channel = number % subpartitions
            filled[channel] = buffer = next_buffer(channel, filled[channel], mid_record=False)
            assert buffer is not None, "next_buffer blocks until there is one"
            buffer.publish(size)
        for channel, last in enumerate(filled):
            assert last is not None, "every channel had a buffer"
            partition.end_buffer(channel, last)
        partition.finish()
    return started_ns


def _consume(parent: Parent, end: WorkerEnd, *, channels: int) -> tuple[int, int]:
    """Read everything; return the number of bytes and the time of the end."""
    with consuming(parent, end, channels=channels) as (_, (gate,)):
        received, taken = 0, gate.read()
        while taken is not None:
            if taken.event is None:
                received += len(taken.memory)
            taken = gate.read(done=taken)
        return received, time.monotonic_ns()


# Latency ---------------------------------------------------------------------------------------------------------

_Delays = tuple[float, float]
"""The 50th and the 99th percentile of one run, in milliseconds."""


def _latency(pair: ProcessPair, rate_hz: int, seconds: float) -> Contest[_Delays]:
    auto = "buffer_timeout auto"
    runs: dict[str, Callable[[], _Delays]] = {
        _BARE: partial(_socket_delays, rate_hz, seconds),
        _WORKING: partial(_socket_delays, rate_hz, seconds, _WORK_S),
        **{f"buffer_timeout {text}": partial(_delays, pair, rate_hz, seconds, text) for text in _TIMEOUTS},
    }

    goal: dict[str, Any] = {
        "against": "p50 of a bare socket",
        "baseline": (_BARE,),
        "baseline_figure": itemgetter(0),
        "goal": 10.0,
    }

    def cases() -> Iterator[Case[_Delays]]:
        for run in runs:
            name = f"latency, {rate_hz:,}/s, {run}"
            yield Case(f"{name}, p50", "ms", run, itemgetter(0))
            yield Case(f"{name}, p99", "ms", run, itemgetter(1), at_most=True, **(goal if run == auto else {}))

    return Contest(name=f"latency, {rate_hz:,}/s", runs=runs, cases=list(cases()))


def _percentiles(delays_ms: list[float]) -> _Delays:
    return percentile(delays_ms, 50), percentile(delays_ms, 99)


def _socket_delays(rate_hz: float, seconds: float, work_s: float = 0.0) -> _Delays:
    interval_s = Settings().execution.switch_interval.seconds  # a worker sets this one
    return _percentiles(message_delays_ms(rate_hz, seconds, switch_interval_s=interval_s, work_s=work_s))


def _delays(pair: ProcessPair, rate_hz: float, seconds: float, timeout: str) -> _Delays:
    settings = Settings(execution=ExecutionSettings(buffer_timeout=BufferTimeout.parse(timeout)))
    count = max(1, round(rate_hz * seconds))
    _, delays_ms = run_workers(
        pair,
        partial(_produce_records, rate_hz=rate_hz, count=count),
        _consume_records,
        settings=settings,
        limit_s=10 * seconds,
    )
    if len(delays_ms) != count:
        raise InvariantViolated(f"{len(delays_ms)} of {count} records arrived")
    return _percentiles(delays_ms)


def _produce_records(parent: Parent, end: WorkerEnd, *, rate_hz: float, count: int) -> None:
    """Emit what is due, each record with the time of its emission, flush as a task does, and sleep."""
    with producing(parent, end) as (worker, (partition,)):
        writer = worker.writer(partition, Forward(), StructSerializer[int](_RECORD))
        timeout, emit = writer.buffer_timeout, writer.emit
        auto = timeout.mode is FlushMode.AUTO
        parent.receive(START_S)  # the consumer's busy thread runs
        for sent_ns, number in paced(rate_hz, count):
            for _ in range(number):
                emit(sent_ns)
            if auto:
                writer.flush()  # as a task does before it blocks for input
        # The timer, not the end, flushes the last records.
        time.sleep(_QUIET_S + (2 * timeout.interval_ns / 1e9 if timeout.mode is FlushMode.INTERVAL else 0))
        writer.finish()
        writer.close()


def _consume_records(parent: Parent, end: WorkerEnd) -> list[float]:
    """Return the milliseconds from emission to receipt of every record, beside a busy thread."""
    delays_ms: list[float] = []
    with (
        consuming(parent, end) as (worker, (gate,)),
        busy_thread(),
    ):
        parent.send("busy")
        reader = worker.reader(gate, StructSerializer[int](_RECORD))
        for element in reader:
            received_ns = time.monotonic_ns()
            if isinstance(element, Batch):
                delays_ms += [(received_ns - sent_ns) / 1e6 for sent_ns in element.values]
            elif isinstance(element, Record):
                delays_ms.append((received_ns - element.value) / 1e6)
        reader.close()
    return delays_ms
