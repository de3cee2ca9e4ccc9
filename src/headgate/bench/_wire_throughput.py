"""Bytes a second from one process to another, beside everything else that carries bytes on this machine.

Contests of the wire suite. Our producer publishes whole buffers without filling them, as the others send one buffer
again and again; our consumer's thread takes them and gives them back. The clock goes from the producer's first buffer
until the consumer has read the end, with all channels connected before.
"""

from __future__ import annotations

import time
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from headgate.bench._figures import Case, Contest
from headgate.bench._peers import check_installed, flight, grpc_streaming, raw_sockets, zeromq
from headgate.bench._wire_ends import consuming, producing
from headgate.config import NetworkSettings, Settings
from headgate.config.units import format_size
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headgate.bench._children import Parent
    from headgate.bench._wire_ends import Ends, Place
    from headgate.buffer import Buffer

__all__ = ["throughput"]

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_ROUNDS: Final = 3
_SLOWEST: Final = 20e6  # bytes/s: below it something hangs
_OURS: Final = "10 channels"
_CHANNELS: Final = {"1 channel": 1, _OURS: 10, "100 channels": 100, "1,000 channels": 1_000}
_LIBRARIES: Final = {"Flight": flight, "gRPC": grpc_streaming, "ZeroMQ": zeromq}
_UNIT_SIZES: Final = {"Flight": 64 * _KIB, "gRPC": 32 * _KIB, "ZeroMQ": 32 * _KIB}  # about one buffer of ours a message
_BEST_SIZES: Final = dict.fromkeys(_LIBRARIES, _MIB)


def throughput(ends: Ends, total: int) -> Iterator[Contest[float]]:
    """All contests of the case, of `total` bytes a run."""
    yield _beside_sockets(ends, total)
    yield _beside_libraries(ends, total, _UNIT_SIZES, "at our own size", goal=1.5)
    yield _beside_libraries(ends, total, _BEST_SIZES, "at their best size (no goal)", goal=None)
    yield _variants(ends, total)


def _beside_sockets(ends: Ends, total: int) -> Contest[float]:
    beside_small = partial(_case, against="raw sockets, 32 KiB", baseline=("raw 32 KiB",))
    return Contest(
        name="throughput",
        rounds=_ROUNDS,
        runs={
            **{name: partial(_ours, ends, total, channels=channels) for name, channels in _CHANNELS.items()},
            "raw 32 KiB": lambda: raw_sockets(total, 32 * _KIB) / 1e9,
            "raw 1 MiB": lambda: raw_sockets(total, _MIB) / 1e9,
        },
        cases=[
            _case("raw sockets, 32 KiB", "raw 32 KiB"),
            _case("raw sockets, 1 MiB", "raw 1 MiB"),
            beside_small("1 channel", "1 channel"),
            beside_small("10 channels", _OURS, goal=1.0),
            beside_small("100 channels", "100 channels"),
            _case("1,000 channels", "1,000 channels", against="10 channels", baseline=(_OURS,), goal=0.7),
            _case("10 channels, large chunks", _OURS, against="raw sockets, 1 MiB", baseline=("raw 1 MiB",), goal=0.5),
        ],
    )


def _beside_libraries(
    ends: Ends, total: int, sizes: Mapping[str, int], which: str, *, goal: float | None
) -> Contest[float]:
    def run(library: str) -> float:
        check_installed()  # of all three, before the first is measured
        return _LIBRARIES[library](total, [sizes[library]]) / 1e9

    names = {library: f"{library} {format_size(size)}" for library, size in sizes.items()}
    return Contest(
        name="throughput",
        rounds=_ROUNDS,
        runs={**{library: partial(run, library) for library in sizes}, _OURS: partial(_ours, ends, total)},
        cases=[
            *(_case(name, library) for library, name in names.items()),
            _case(
                f"10 channels, libraries {which}",
                _OURS,
                against=f"best of {', '.join(names.values())}",
                baseline=tuple(sizes),
                goal=goal,
            ),
        ],
    )


def _variants(ends: Ends, total: int) -> Contest[float]:
    """What settings cost or bring; those that need a package that is not installed are left out."""
    drivers = ["shared", "epoll", *(["uvloop"] if find_spec("uvloop") else []), "asyncio"]
    networks = {f"transport {name}": NetworkSettings(transport=name) for name in drivers}
    if find_spec("crc32c"):
        networks["checksum"] = NetworkSettings(checksum=True)
    varied = ["TLS", *networks]
    return Contest(
        name="throughput",
        rounds=_ROUNDS,
        runs={
            _OURS: partial(_ours, ends, total),
            "TLS": partial(_ours, ends, total, tls=True),
            **{name: partial(_ours, ends, total, network=network) for name, network in networks.items()},
        },
        cases=[_case(f"10 channels, {name}", name, against="default settings", baseline=(_OURS,)) for name in varied],
    )


def _case(
    name: str, run: str, *, against: str | None = None, baseline: tuple[str, ...] = (), goal: float | None = None
) -> Case[float]:
    return Case(
        case=f"throughput, {name}", unit="GB/s", run=run, figure=float, against=against, baseline=baseline, goal=goal
    )


def _ours(
    ends: Ends, total: int, *, channels: int = 10, network: NetworkSettings | None = None, tls: bool = False
) -> float:
    """GB/s of one run."""
    settings = Settings() if network is None else Settings(network=network)
    size = settings.memory.segment_size
    buffers = max(channels, total // size)
    started_ns, (received, ended_ns) = ends.run(
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


def _produce(parent: Parent, place: Place, *, subpartitions: int, buffers: int) -> int:
    """Write that many full buffers, one for each channel in turn; when the first was begun."""
    with producing(parent, place, subpartitions=subpartitions) as (_, (partition,)):
        size, next_buffer = place.settings.memory.segment_size, partition.next_buffer
        filled: list[Buffer | None] = [None] * subpartitions
        started_ns = time.monotonic_ns()
        for number in range(buffers):
            channel = number % subpartitions
            filled[channel] = buffer = next_buffer(channel, filled[channel], mid_record=False)
            assert buffer is not None, "it was waited for"
            buffer.publish(size)
        for channel, last in enumerate(filled):
            assert last is not None, "every channel has had its turn"
            partition.end_buffer(channel, last)
        partition.finish()
    return started_ns


def _consume(parent: Parent, place: Place, *, channels: int) -> tuple[int, int]:
    """Read everything; how many bytes that were, and when the end came."""
    with consuming(parent, place, channels=channels) as (_, (gate,)):
        received, taken = 0, gate.read()
        while taken is not None:
            if taken.event is None:
                received += len(taken.memory)
            taken = gate.read(done=taken)
        return received, time.monotonic_ns()
