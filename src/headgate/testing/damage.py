"""Faults of connections: they end, frames are damaged, or a process connects that does not belong to the job.

The table of kinds in `faults` names these functions; each is called once, when its fault strikes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import Cancelled, CorruptStream, PartitionNotFound, RemoteProtocolError
from headgate.testing.simulator import NEVER_NS, fork
from headgate.testing.tap import HEADER_DAMAGE, Direction
from headgate.testing.worker import host_of

if TYPE_CHECKING:
    from headgate.testing.faults import Fault
    from headgate.testing.simulation import Simulation

__all__: list[str] = []

_MS = 1_000_000


def keep_waiting(fault: Fault, simulation: Simulation) -> None:
    """Time is lost: a consumer of a late producer may stop requesting its partition."""
    if simulation.job.late_ns:
        for consumer in range(len(simulation.plan.consumers)):
            simulation.job.blame_gate(consumer, str(fault), PartitionNotFound)


# Connections that end: the tasks that use them fail.


def black_hole(fault: Fault, simulation: Simulation) -> None:
    """Nothing is delivered from one worker to another, or both ways, until a time limit passes, or for ever."""
    keep_waiting(fault, simulation)
    simulation.blame_wire(fault.first, fault.second, str(fault))
    duration_ns = simulation.plan.long_ns(fault.amount)
    until_ns = NEVER_NS if fault.amount > 0.5 else simulation.simulator.now_ns + duration_ns
    simulation.net.stall(host_of(fault.first), host_of(fault.second), until_ns)
    if fault.amount < 0.3:
        simulation.net.stall(host_of(fault.second), host_of(fault.first), until_ns)
    simulation.excuse(duration_ns)


def long_pause(fault: Fault, simulation: Simulation) -> None:
    """A worker is paused for longer than every time limit."""
    keep_waiting(fault, simulation)
    duration_ns = simulation.plan.long_ns(fault.amount)
    simulation.job.blame_worker(fault.first, str(fault))
    simulation.job.workers[fault.first].actor.resumes_ns = simulation.simulator.now_ns + duration_ns
    simulation.excuse(duration_ns)


def large_jump(fault: Fault, simulation: Simulation) -> None:
    """A worker's clock jumps by more than every time limit."""
    keep_waiting(fault, simulation)
    job = simulation.job
    job.blame_worker(fault.first, str(fault))
    job.workers[fault.first].transport.jump(simulation.plan.long_ns(fault.amount))


def reset(fault: Fault, simulation: Simulation) -> None:
    """The connection breaks after some more bytes, also inside a frame."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault))
    for stream in simulation.streams(fault.first, fault.second)[:1]:
        stream.breaks_after = int(fault.amount * 200)


def half_close(fault: Fault, simulation: Simulation) -> None:
    """One direction ends in order; the other end is reset later."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault))
    for stream in simulation.streams(fault.first, fault.second)[:1]:
        stream.half_close()
        later_ns = int(fault.amount * 2 * simulation.plan.idle_timeout_ms * _MS)
        simulation.simulator.after(later_ns, stream.other.reset, stream.other.actor, "reset")


def refused(fault: Fault, simulation: Simulation) -> None:
    """A worker's port is closed for a while."""
    net, worker = simulation.net, simulation.job.workers[fault.first]
    if worker.crashed:
        return  # a worker of a new attempt may have its port now
    listener = net.listeners.pop(worker.address, None)
    if listener is None:
        return
    simulation.job.blame_worker(fault.first, str(fault))

    def again() -> None:
        if not worker.crashed:
            net.listeners[worker.address] = listener

    simulation.simulator.after(int(fault.amount * 100 * _MS), again, worker.actor, "the port is open again")


def flip(fault: Fault, simulation: Simulation) -> None:
    """A bit of a data frame is flipped: of the payload if there are checksums, otherwise of the head."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault), RemoteProtocolError, CorruptStream)

    def damage(frame: bytes, payload: int) -> int | None:
        if not simulation.plan.checksum or fault.amount < 0.3:
            offset, mask = HEADER_DAMAGE[int(fault.amount * 1000) % len(HEADER_DAMAGE)]
            return offset * 8 + mask.bit_length() - 1 if offset < len(frame) else None
        return payload * 8 + int(fault.amount * (len(frame) - payload) * 8) if len(frame) > payload else None

    for direction in _directions(fault, simulation):
        direction.damage = damage


def replay(fault: Fault, simulation: Simulation) -> None:
    """A data frame is delivered twice."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault), RemoteProtocolError)
    for direction in _directions(fault, simulation):
        direction.replay = True


def stale_frame(fault: Fault, simulation: Simulation) -> None:
    """A frame of an earlier attempt is delivered among those of this one."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault), RemoteProtocolError)
    for direction in _directions(fault, simulation):
        direction.stale = True


def _directions(fault: Fault, simulation: Simulation) -> list[Direction]:
    streams = simulation.streams(fault.first, fault.second) + simulation.streams(fault.second, fault.first)
    return [stream.tap for stream in streams if isinstance(stream.tap, Direction)]


# Processes that do not belong to the job: no task may fail.


def stale_attempt(fault: Fault, simulation: Simulation) -> None:
    """A worker of an earlier attempt connects."""
    simulation.add_stranger(fault.first, fault.second, attempt=simulation.job.attempt - 1)


def duplicate(fault: Fault, simulation: Simulation) -> None:
    """A second copy of a worker connects: only the channels between these two workers may fail."""
    simulation.job.blame_pair(fault.first, fault.second, str(fault), PartitionNotFound, Cancelled, RemoteProtocolError)
    for number in (fault.first, fault.second):
        simulation.job.workers[number].deceived = True
    simulation.add_stranger(fault.first, fault.second, attempt=simulation.job.attempt)


def garbage(fault: Fault, simulation: Simulation) -> None:
    """A process connects and sends random bytes, or the recorded handshake of a worker."""
    hellos = [talk.directions[0].hello for talk in simulation.conversations if talk.directions[0].hello]
    chance = fork(simulation.simulator.seed, f"garbage/{fault.at_step}")
    if hellos and fault.amount < 0.5:
        data = chance.choice(hellos)
    else:
        data = chance.choice((chance.randbytes(200), b"GET / HTTP/1.1\r\n\r\n", b""))
    simulation.connect_raw(fault.first, data)


def crowd(fault: Fault, simulation: Simulation) -> None:
    """More processes than may be half-open connect to a worker, some at once and some later, and send nothing.

    The workers of the job still connect within their time limit.
    """
    chance = fork(simulation.simulator.seed, f"crowd/{fault.at_step}")
    for _ in range(int((1 + fault.amount) * simulation.plan.max_half_open)):
        delay_ns = int(chance.choice((0, 0, 0.2)) * simulation.plan.short_ns(chance.random()))
        simulation.simulator.after(
            delay_ns, lambda: simulation.connect_raw(fault.first, b""), simulation.world, "a stranger connects"
        )
