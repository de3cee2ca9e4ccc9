"""The faults of a simulation.

A fault strikes once, after a number of actions. Before, it registers with the job which tasks may fail and with which
errors (`SimJob.blame_*`). A fault that only costs time registers nothing: then every record must be delivered.
`draw_faults` draws the faults of a seed; a simulation with a list of your own is a test of your own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.buffer.budget import PoolBounds
from headgate.errors import (
    Cancelled,
    HeadgateError,
    InsufficientBuffers,
    PartitionNotFound,
    ProducerFailed,
    UserCodeError,
)
from headgate.testing import damage
from headgate.testing.simulator import NEVER_NS, fork
from headgate.testing.worker import host_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from headgate.buffer import LocalPool, Segment
    from headgate.testing.plan import SimPlan
    from headgate.testing.producers import ProducerTask
    from headgate.testing.simulation import Simulation

__all__ = ["KINDS", "Fault", "draw_faults"]

_MS = 1_000_000
_LONG_CAUSE = "division by zero: ½ · 0 in line 1, " * 20  # 720 bytes; an error text may have 1,024
_GONE = Cancelled, ProducerFailed, PartitionNotFound  # the errors that readers of a released partition may get


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, when it strikes, and which workers or tasks it strikes.

    >>> str(Fault("pause", at_step=100, first=1, second=0, amount=0.5))
    'pause after 100 actions (1, 0, 0.500)'
    """

    kind: str
    at_step: int
    first: int  # a worker, producer or consumer, depending on the kind
    second: int  # another worker
    amount: float = field(default=0.5)  # its strength, from 0 to 1

    def __str__(self) -> str:
        return f"{self.kind} after {self.at_step} actions ({self.first}, {self.second}, {self.amount:.3f})"

    def strike(self, simulation: Simulation) -> None:
        """Let the fault strike."""
        KINDS[self.kind](self, simulation)


def draw_faults(chance: random.Random, plan: SimPlan) -> list[Fault]:
    """Draw the faults of one seed, in the order in which they strike."""
    faults = []
    # With one exchange behind another, a failed task fails all tasks behind it. There, faults only cost time.
    kinds = list(HARMLESS if plan.relayed else KINDS)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3))):
        first = chance.randrange(plan.workers)
        second = (first + chance.randrange(1, plan.workers)) % plan.workers
        at_step = int(1000 * chance.random() ** 2)  # more early ones: most simulations are short
        kind = chance.choice(kinds)
        if kind == "crowd of strangers":
            at_step //= 50  # while connections are opened
        faults.append(Fault(kind, at_step, first, second, chance.random()))
    return sorted(faults, key=lambda fault: fault.at_step)


# Faults that cost time: every record must still be delivered.


def _stall(fault: Fault, simulation: Simulation) -> None:
    damage.keep_waiting(fault, simulation)
    until_ns = simulation.simulator.now_ns + simulation.plan.short_ns(fault.amount)
    simulation.net.stall(host_of(fault.first), host_of(fault.second), until_ns)


def _pause(fault: Fault, simulation: Simulation) -> None:
    damage.keep_waiting(fault, simulation)
    until_ns = simulation.simulator.now_ns + simulation.plan.short_ns(fault.amount)
    simulation.job.workers[fault.first].actor.resumes_ns = until_ns


def _slow_consumer(fault: Fault, simulation: Simulation) -> None:
    consumers = simulation.job.consumers
    consumers[fault.first % len(consumers)].think_ns = int(fault.amount * 50 * _MS)


def _stuck_consumer(fault: Fault, simulation: Simulation) -> None:
    consumers = simulation.job.consumers
    consumers[fault.first % len(consumers)].hold_up(int(fault.amount * 20_000 * _MS))


def _stuck_producer(fault: Fault, simulation: Simulation) -> None:
    producers = list(simulation.job.producers.values())
    if producers:
        producers[fault.first % len(producers)].hold_up(int(fault.amount * 20_000 * _MS))


def _small_jump(fault: Fault, simulation: Simulation) -> None:
    damage.keep_waiting(fault, simulation)
    simulation.job.workers[fault.first].transport.jump(simulation.plan.short_ns(fault.amount))


def _too_large(fault: Fault, simulation: Simulation) -> None:
    for producer in simulation.job.producers.values():
        producer.too_large += 1 + fault.first


def _late_partition(fault: Fault, simulation: Simulation) -> None:
    """A producer registers its partition only after its consumers have requested it a few times."""
    plan = simulation.plan
    delay_ns = int(0.8 * fault.amount * plan.last_try_ms * _MS)
    simulation.job.late_ns[fault.first % len(plan.producers)] = delay_ns


def _churn(fault: Fault, simulation: Simulation) -> None:
    """Other pools are created, use spare buffers, and are destroyed."""
    worker = simulation.job.workers[fault.first]
    chance, simulator = fork(simulation.simulator.seed, f"churn/{fault.at_step}"), simulation.simulator
    held: list[tuple[LocalPool, list[Segment]]] = []

    def create() -> None:
        try:
            required = 0 if simulation.job.late_ns else chance.randint(0, 2)  # a late producer still needs its buffers
            pool = worker.create_pool("churn", PoolBounds(required, chance.choice((2, None))))
        except InsufficientBuffers:
            return
        taken: list[Segment] = []
        with pool.lock:
            while chance.random() < 0.8 and (segment := pool.try_request_locked()) is not None:
                taken.append(segment)
        held.append((pool, taken))
        simulator.after(chance.randint(0, 20 * _MS), destroy, worker.actor, "churn: destroy a pool")

    def destroy() -> None:
        pool, taken = held.pop(0)
        if chance.random() < 0.5:
            pool.destroy()
        for segment in taken:
            with pool.lock:
                wake = pool.recycle_locked(segment, -1)
            if wake is not None:
                wake()
        pool.destroy()

    for _ in range(chance.randint(1, 4)):
        simulator.after(chance.randint(0, 5 * _MS), create, worker.actor, "churn: create a pool")


# Faults that end tasks and workers.


def _cancel_gate(fault: Fault, simulation: Simulation) -> None:
    consumers = simulation.job.consumers
    consumer = consumers[fault.first % len(consumers)]
    simulation.job.blame_gate(consumer.number, str(fault), Cancelled)
    consumer.note_asked()
    consumer.gate.release()


def _cancel_partition(fault: Fault, simulation: Simulation) -> None:
    _with_producer(fault, simulation, lambda task: task.partition.release(), *_GONE)


def _cancel_job(fault: Fault, simulation: Simulation) -> None:
    """Every partition of one worker is released and removed from its registry."""
    job = simulation.job
    worker = job.workers[fault.first]
    for producer in job.producers.values():
        if producer.worker is worker:
            job.blame_partition(producer.number, str(fault), *_GONE)
    worker.registry.release_job(worker.partition_id(0).job, Cancelled("the job was cancelled"))


def _fail_producer(fault: Fault, simulation: Simulation) -> None:
    error = UserCodeError(f"{_LONG_CAUSE} {fault.at_step}", operator="map", subtask=fault.first)

    def act(task: ProducerTask) -> None:
        # A reader that requests the partition later gets PartitionNotFound; every other reader gets the whole cause.
        simulation.job.blame_partition(task.number, str(fault), UserCodeError, ProducerFailed, text=str(error))
        if not task.done:
            task.fail(error)

    _with_producer(fault, simulation, act, PartitionNotFound)


def _with_producer(
    fault: Fault, simulation: Simulation, act: Callable[[ProducerTask], object], *errors: type[HeadgateError]
) -> None:
    producers = list(simulation.job.producers.values())
    if producers:
        producer = producers[fault.first % len(producers)]
        simulation.job.blame_partition(producer.number, str(fault), *errors)
        act(producer)


def _missing_partition(fault: Fault, simulation: Simulation) -> None:
    """A producer never registers its partition."""
    number = fault.first % len(simulation.plan.producers)
    simulation.job.blame_partition(number, str(fault), PartitionNotFound)
    simulation.job.late_ns[number] = NEVER_NS


def _crash(fault: Fault, simulation: Simulation) -> None:
    """A worker crashes, with or without a reset of its connections; the job may be attempted again."""
    simulation.crash(fault.first, str(fault), silent=fault.amount < 0.3, again=fault.amount > 0.5)


HARMLESS = (
    "stall",
    "pause",
    "slow consumer",
    "stuck consumer",
    "stuck producer",
    "clock jump",
    "records over the limit",
    "pools come and go",
    "stale attempt",
    "garbage",
    "crowd of strangers",
)
"""Kinds that end no task."""

AT_THE_START = ("late partition", "missing partition")
"""Kinds that strike before the first action."""

KINDS: dict[str, Callable[[Fault, Simulation], None]] = {
    "stall": _stall,
    "pause": _pause,
    "slow consumer": _slow_consumer,
    "stuck consumer": _stuck_consumer,
    "stuck producer": _stuck_producer,
    "clock jump": _small_jump,
    "records over the limit": _too_large,
    "late partition": _late_partition,
    "pools come and go": _churn,
    "black hole": damage.black_hole,
    "long pause": damage.long_pause,
    "long clock jump": damage.large_jump,
    "reset": damage.reset,
    "half-close": damage.half_close,
    "closed port": damage.refused,
    "bit flip": damage.flip,
    "replayed frame": damage.replay,
    "stale frame": damage.stale_frame,
    "cancelled gate": _cancel_gate,
    "cancelled partition": _cancel_partition,
    "cancelled job": _cancel_job,
    "failed producer": _fail_producer,
    "missing partition": _missing_partition,
    "crash": _crash,
    "stale attempt": damage.stale_attempt,
    "duplicate connection": damage.duplicate,
    "garbage": damage.garbage,
    "crowd of strangers": damage.crowd,
}
"""Every kind of fault, by name, and the function that lets it strike."""
