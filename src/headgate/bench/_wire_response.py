"""A consumer that drops to a tenth of its speed and returns: how soon its producer follows, and what lies in between.

A contest of the wire suite. One task writes full buffers as fast as it can. The other reads as fast as it can for one
phase, at 10 % of that for the next, and again as fast as it can. Both note when they were done with each buffer, so
that at any moment the number of buffers in flight is known: written by the one and not done with by the other.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.bench._children import START_S
from headgate.bench._figures import Case, Contest
from headgate.bench._plot import Panel, Series
from headgate.bench._series import (
    BIN_S,
    Stamps,
    follows_after_s,
    highest_in_flight,
    in_flight,
    rate_between,
    rates,
)
from headgate.bench._wire_ends import consuming, producing
from headgate.buffer import Limits
from headgate.config import FlowControl, NetworkSettings, Settings
from headgate.net.socket_stream import SLAB_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headgate.bench._children import Parent
    from headgate.bench._wire_ends import Ends, Place

__all__ = ["Outcome", "ceiling_bytes", "kernel_bytes", "response"]

_SLOW: Final = 0.1  # of full speed
_LEAD_NS: Final = 30_000_000  # from the schedule's making to its start: it has to reach the other process
_SETTLED: Final = 0.5  # the share of a phase that does not count when a consumer's rate is taken
_CHART_BIN_S: Final = 0.05
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run found: two phases at full speed with a slow one in between, all of one length."""

    phase_s: float
    size: int
    ceiling_bytes: int
    produced: Stamps
    consumed: Stamps

    def drop_ms(self) -> float:
        """How long after the consumer's drop its producer's rate had followed."""
        return self._follows_ms(1)

    def return_ms(self) -> float:
        """How long after the consumer's return."""
        return self._follows_ms(2)

    def _follows_ms(self, phase: int) -> float:
        start_s, end_s = phase * self.phase_s, (phase + 1) * self.phase_s
        target = rate_between(self.consumed, start_s + _SETTLED * self.phase_s, end_s)
        return 1000 * follows_after_s(self.produced, target, start_s, end_s)

    def highest_bytes(self) -> float:
        """The most that was in flight at any moment."""
        return float(self.size * highest_in_flight(self.produced, self.consumed))


def ceiling_bytes(settings: Settings, channels: int, kernel_bytes: int) -> int:
    """The most bytes that can be in flight between a partition and a gate, by the settings.

    The producer's side holds what its pool may hold: what waits in the outbox stays there until the kernel has taken
    it. Each credit is a buffer that the consumer has set aside, so with credit all that is on its way, in the kernel
    too, has its place in the consumer's exclusive and floating buffers. Without, the kernel's buffers come on top, and
    one read of the network thread's.

    >>> ceiling_bytes(Settings(), channels=1, kernel_bytes=0) // 32768  # 10 at the producer, 2 + 8 at the consumer
    20
    """
    network = settings.network
    credited = network.flow_control is FlowControl.CREDIT
    limits = Limits.of(network)
    pool, gate = limits.partition_pool(channels, bounded=True).maximum, limits.gate_pool(channels).maximum
    assert pool is not None, "a bounded partition has a limit"
    assert gate is not None, "so has a gate"
    sending = min(pool, channels * network.max_buffers_per_channel)
    segments = sending + limits.exclusive(channels) + gate
    return segments * settings.memory.segment_size + (0 if credited else kernel_bytes + SLAB_BYTES)


def kernel_bytes(settings: Settings) -> int:
    """The most that the kernel may buffer for one connection, at both ends together."""
    network = settings.network
    return _kernel_limit(network.send_buffer, "tcp_wmem") + _kernel_limit(network.receive_buffer, "tcp_rmem")


def _kernel_limit(size: int, name: str) -> int:
    """The limit of a socket's buffer: twice what was asked for, for the kernel's own use, else what it may grow to."""
    return 2 * size if size else int(Path("/proc/sys/net/ipv4", name).read_text().split()[2])


def response(ends: Ends, phase_s: float) -> Iterator[Contest[Outcome]]:
    """The contest of the case, with phases of one length."""
    modes = (FlowControl.CREDIT, FlowControl.TCP)
    yield Contest(
        name="response",
        runs={mode.value: partial(_run, ends, mode, phase_s) for mode in modes},
        cases=[case for mode in modes for case in _cases(mode.value)],
        panels=_panels,
    )


def _cases(mode: str) -> Iterator[Case[Outcome]]:
    yield Case(case=f"response, {mode}, to the drop", unit="ms", run=mode, figure=Outcome.drop_ms)
    yield Case(case=f"response, {mode}, to the return", unit="ms", run=mode, figure=Outcome.return_ms)
    yield Case(
        case=f"response, {mode}, most in flight",
        unit="MiB",
        run=mode,
        figure=lambda found: found.highest_bytes() / _MIB,
        against="its ceiling",
        baseline=(mode,),
        baseline_figure=lambda found: found.ceiling_bytes / _MIB,
        goal=1.0,
        at_most=True,
    )


def _run(ends: Ends, mode: FlowControl, phase_s: float) -> Outcome:
    settings = Settings(network=NetworkSettings(flow_control=mode))
    (start_ns, produced_ns), consumed_ns = ends.run(
        partial(_produce, seconds=3 * phase_s),
        partial(_consume, phase_s=phase_s),
        settings=settings,
        limit_s=30 * phase_s,
    )
    return Outcome(
        phase_s,
        settings.memory.segment_size,
        ceiling_bytes(settings, 1, kernel_bytes(settings)),
        Stamps(produced_ns, start_ns),
        Stamps(consumed_ns, start_ns),
    )


# In the two processes ------------------------------------------------------------------------------------


def _produce(parent: Parent, place: Place, *, seconds: float) -> tuple[int, array[int]]:
    """Write full buffers for a time; when that began, and when each of them was written."""
    stamps_ns, now_ns = array("q"), time.monotonic_ns
    with producing(parent, place) as (_, (partition,)):
        size = place.settings.memory.segment_size
        start_ns = now_ns() + _LEAD_NS
        parent.send(start_ns)
        time.sleep(max(0, start_ns - now_ns()) / 1e9)
        end_ns = start_ns + round(seconds * 1e9)
        buffer = None
        while True:
            buffer = partition.next_buffer(0, buffer, mid_record=False)
            assert buffer is not None, "it was waited for"
            # Before it is published: from then on the consumer may have it.
            stamps_ns.append(written_ns := now_ns())
            buffer.publish(size)
            if written_ns >= end_ns:
                break
        partition.end_buffer(0, buffer)
        partition.finish()
    return start_ns, stamps_ns


def _consume(parent: Parent, place: Place, *, phase_s: float) -> array[int]:
    """Read everything, in the second phase slowly; when it was done with each buffer."""
    stamps_ns, now_ns = array("q"), time.monotonic_ns
    with consuming(parent, place) as (_, (gate,)):
        start_ns = parent.receive(START_S)
        half_ns, slow_ns, full_ns = (start_ns + round(phases * phase_s * 1e9) for phases in (0.5, 1.0, 2.0))
        pause_ns, due_ns = 0, 0
        taken = gate.read()
        while taken is not None:
            if taken.event is None:
                came_ns = now_ns()
                if slow_ns <= came_ns < full_ns:
                    if not pause_ns:
                        fast = len(stamps_ns) - bisect_left(stamps_ns, half_ns)
                        pause_ns, due_ns = round((slow_ns - half_ns) / max(1, fast) / _SLOW), slow_ns
                    due_ns = min(due_ns + pause_ns, full_ns)
                    time.sleep(max(0, due_ns - came_ns) / 1e9)
                    came_ns = now_ns()
                # Before it is given back: from then on it may carry the next.
                stamps_ns.append(came_ns)
            taken = gate.read(done=taken)
    return stamps_ns


# The chart -----------------------------------------------------------------------------------------------


def _panels(found: Mapping[str, Sequence[Outcome]]) -> list[Panel]:
    """The last run of each mode: both rates, and what was in flight."""
    return [panel for mode, outcomes in found.items() for panel in _panels_of(mode, outcomes[-1])]


def _panels_of(mode: str, outcome: Outcome) -> Iterator[Panel]:
    end_s, size = 3 * outcome.phase_s, outcome.size
    shaded = [(outcome.phase_s, 2 * outcome.phase_s)]
    both = []
    for name, stamps in (("produced", outcome.produced), ("consumed", outcome.consumed)):
        x, y = rates(stamps, end_s, min(_CHART_BIN_S, outcome.phase_s / 4))
        both.append(Series(name=name, x=x, y=[rate * size / 1e6 for rate in y], dashed=name == "consumed"))
    yield Panel(
        title=f"A consumer that drops to 10 % and returns, {mode}",
        x_label="seconds",
        y_label="MB/s",
        series=both,
        shaded=shaded,
        shaded_name="consumer at 10 %",
    )
    times, _ = rates(outcome.produced, end_s, BIN_S)
    flying = [buffers * size / _MIB for buffers in in_flight(outcome.produced, outcome.consumed, times)]
    yield Panel(
        title=f"Written and not yet read, {mode}",
        x_label="seconds",
        y_label="MiB",
        series=[
            Series(name="in flight", x=times, y=flying),
            Series(name="ceiling", x=[0, end_s], y=[outcome.ceiling_bytes / _MIB] * 2, dashed=True),
        ],
        shaded=shaded,
        shaded_name="consumer at 10 %",
    )
