"""One seed, from its plan to its outcome.

`simulate` creates the workers and tasks of a plan, runs them in virtual time with the faults of the seed, and checks
the invariants after every action. The same seed gives the same run, action for action.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, InvariantViolated
from headgate.net.connection import Connection
from headgate.testing.faults import AT_THE_START, Fault, draw_faults
from headgate.testing.invariants import check_at_rest, check_closed, check_credit, check_worker, wait_for_graph
from headgate.testing.job import SimJob
from headgate.testing.loop_model import loop_failure_of
from headgate.testing.plan import SimPlan, draw_plan
from headgate.testing.simnet import SimNet
from headgate.testing.simulator import NEVER_NS, Actor, Simulator
from headgate.testing.strangers import RawClient, Stranger
from headgate.testing.tap import Conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.ids import PartitionId
    from headgate.testing.simstream import SimStream
    from headgate.testing.worker import SimWorker, WatchedSupply
    from headgate.testing.workload import SimTask

__all__ = ["Simulation", "SimulationOutcome", "failure_of", "simulate"]

_MOST_STEPS: Final = 200_000
_CREDIT_EVERY: Final = 16
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The result of a simulation."""

    seed: int
    plan: SimPlan
    faults: tuple[str, ...]
    failure: str | None
    steps: int
    virtual_ns: int
    records: int
    trace_hash: str
    trace: tuple[str, ...]

    @property
    def repeat(self) -> str:
        """The command that repeats it."""
        return f"headgate simulate --seed {self.seed}"


class Simulation:
    """One run of a plan with faults.

    >>> simulation = Simulation(seed=1)
    >>> simulation.run()
    >>> simulation.job.done
    True
    """

    def __init__(self, seed: int, plan: SimPlan | None = None, faults: Sequence[Fault] | None = None) -> None:
        self.simulator = Simulator(seed)
        self.plan = plan if plan is not None else draw_plan(self.simulator.fork("plan"))
        drawn = draw_faults(self.simulator.fork("faults"), self.plan) if faults is None else faults
        self.faults = sorted(drawn, key=lambda fault: -1 if fault.kind in AT_THE_START else fault.at_step)
        self.struck: list[Fault] = []
        self.world = Actor("world")
        self.net = SimNet(self.simulator, self.plan.weather)
        self.net.opened = self._opened
        self.conversations: list[Conversation] = []
        self.job = SimJob(self.net, self.plan, self.progress)
        """The first attempt; faults strike this one."""
        self.jobs = [self.job]
        self.strangers: list[Stranger | RawClient] = []
        self._by_actor: dict[Actor, SimWorker] = {}
        self._by_host: dict[tuple[str, int], SimWorker] = {}
        self._wires: list[tuple[int, int, str]] = []
        self._moved = self._progressed = True
        self._excused_until_ns = 0
        self._logged_errors = _LoggedErrors()

    @property
    def tasks(self) -> list[SimTask]:
        """Every task of every attempt."""
        return [task for job in self.jobs for task in job.tasks]

    def run(self) -> None:
        """Run the simulation to its end.

        Raises:
            InvariantViolated: An invariant does not hold.
        """
        with self._logged_errors:
            try:
                self._run()
            finally:
                for task in self.tasks:
                    task.clean_up()

    def _run(self) -> None:
        simulator = self.simulator
        self._strike()
        self.job.set_up()
        self._register(self.job)
        while not self._all_done():
            self._strike()
            if not simulator.work and not self._nudge() and simulator.now_ns >= self._excused_until_ns:
                raise InvariantViolated(f"deadlock: nothing is scheduled, but records are undelivered\n{self._graph()}")
            if not self.step() and not self._nudge():
                raise InvariantViolated(f"nothing is left to happen, but tasks are not done\n{self._graph()}")
        self._wind_down()

    def step(self) -> bool:
        """Run one action, and check the invariants after it. Return False if there is none."""
        simulator = self.simulator
        if not simulator.step():
            return False
        if simulator.steps > _MOST_STEPS:
            raise InvariantViolated(f"the simulation has not ended after {_MOST_STEPS} actions")
        if self._logged_errors.texts:
            raise InvariantViolated(self._logged_errors.texts[0])
        worker = self._by_actor.get(simulator.last_actor) if simulator.last_actor is not None else None
        if worker is not None and not worker.crashed:
            check_worker(worker)
        if simulator.steps % _CREDIT_EVERY == 0:
            self._check_credit()
        return True

    def progress(self) -> None:
        """Called when a task has moved a record, or has ended."""
        self._moved = self._progressed = True

    def _all_done(self) -> bool:
        """Return True if every task is done; checked only after `progress`."""
        progressed, self._progressed = self._progressed, False
        return progressed and all(job.done for job in self.jobs)

    # Called by faults.

    def excuse(self, duration_ns: int) -> None:
        """Report no deadlock for this long and for all time limits after it: one of them has to pass first."""
        limits_ms = 2 * self.plan.idle_timeout_ms + self.plan.connect_timeout_ms + self.plan.handshake_timeout_ms
        until_ns = self.simulator.now_ns + duration_ns + limits_ms * _MS
        self._excused_until_ns = max(self._excused_until_ns, until_ns)

    def blame_wire(self, first: int, second: int, fault: str) -> None:
        """Expect connection errors between two hosts, in all attempts."""
        self._wires.append((first, second, fault))
        for job in self.jobs:
            job.blame_pair(first, second, fault)

    def streams(self, first: int, second: int) -> list[SimStream]:
        """Return the streams by which the worker `second` receives from `first`."""
        sender, receiver = self.job.workers[first].actor, self.job.workers[second].actor
        return [one for one in self.net.streams if one.actor is receiver and one.other.actor is sender]

    def crash(self, number: int, fault: str, *, silent: bool, again: bool) -> None:
        """Crash a worker. Its connections are reset; if `silent`, they only stop."""
        worker = self.job.workers[number]
        if worker.crashed:
            return
        self.job.blame_worker(number, fault)
        worker.crashed, worker.actor.resumes_ns = True, NEVER_NS
        self.net.listeners.pop(worker.address, None)
        for stream in [one for one in self.net.streams if one.actor is worker.actor]:
            other = stream.other
            stream.vanish()
            if not silent and not other.over:
                self.simulator.after(self.net.latency_ns(), other.reset, other.actor, "reset")
        self.excuse(0)
        self.progress()
        if again and len(self.jobs) == 1:
            self.simulator.after(10 * _MS, lambda: self._try_again(number), self.world, "a new attempt")

    def _try_again(self, crashed: int) -> None:
        """Start a new attempt. Its worker has the port of the crashed one, so that late connections reach it."""
        job = SimJob(self.net, self.plan, self.progress, attempt=self.jobs[-1].attempt + 1)
        self.jobs.append(job)
        for wire in self._wires:
            job.blame_pair(*wire)
        job.set_up(ports={crashed: self.job.workers[crashed].address.port})
        self._register(job)

    def add_stranger(self, number: int, target: int, *, attempt: int) -> None:
        """Connect a process with the identity of worker `number` to worker `target`."""
        stranger = Stranger(number, attempt, self.job.workers[target], self.net, self.plan)
        self.strangers.append(stranger)
        self._by_actor[stranger.worker.actor] = stranger.worker

    def connect_raw(self, target: int, data: bytes) -> None:
        """Connect a program that sends `data` to a worker's port."""
        self.strangers.append(RawClient(self.job.workers[target], self.net, data))

    # Internals.

    def _opened(self, ours: SimStream, theirs: SimStream) -> None:
        self.conversations.append(Conversation(ours, theirs, self._supply))

    def _supply(self, host: str, partition: PartitionId, subpartition: int) -> WatchedSupply | None:
        worker = self._by_host.get((host, partition.attempt))
        return None if worker is None else worker.registry.watched.get((partition, subpartition))

    def _register(self, job: SimJob) -> None:
        for worker in job.workers:
            self._by_actor[worker.actor] = worker
            self._by_host[worker.host, worker.attempt] = worker

    def _strike(self) -> None:
        while self.faults and (self.faults[0].at_step <= self.simulator.steps or self.faults[0].kind in AT_THE_START):
            fault = self.faults.pop(0)
            if fault.kind in AT_THE_START or self.job.workers:
                self.simulator.note("world", str(fault))
                fault.strike(self)
                self.struck.append(fault)
            else:
                self.faults.insert(0, fault)
                return

    def _nudge(self) -> bool:
        """Run the flushers, then the coordinator: only housekeeping is scheduled. Return True if records may move."""
        if self._moved:
            self._moved = False
            for task in self.tasks:
                task.nudge()
            return True
        released = [job.coordinate() for job in self.jobs]
        self._moved = any(released)
        return self._moved

    def _graph(self) -> str:
        return wait_for_graph(self.tasks, [worker for job in self.jobs for worker in job.workers if not worker.crashed])

    def _wind_down(self) -> None:
        """Check the ends of tasks and connections, close all workers, and check that all memory is free."""
        self._run_until_quiet()
        for job in self.jobs:
            job.check_ends(others=bool(self.strangers) or len(self.jobs) > 1)
        workers = [worker for job in self.jobs for worker in job.workers if not worker.crashed]
        if not self.strangers and not any(job.pairs for job in self.jobs):
            for worker in workers:  # no fault broke a connection: all have ended in order
                check_closed(worker)
        if not self.strangers and all(job.blameless for job in self.jobs):
            for worker in workers:
                check_at_rest(worker)
        workers += [stranger.worker for stranger in self.strangers if isinstance(stranger, Stranger)]
        for worker in workers:
            worker.close_network()
        self._run_until_quiet()
        for worker in workers:
            worker.network.abort()
        self._run_until_quiet()
        for worker in workers:
            check_at_rest(worker)
        for stranger in self.strangers:
            stranger.check()
        for worker in workers:
            worker.close()

    def _run_until_quiet(self) -> None:
        while self.simulator.work and self.step():
            pass

    def _check_credit(self) -> None:
        for ours, theirs in self._connections():
            check_credit(ours, theirs)
            check_credit(theirs, ours)

    def _connections(self) -> Iterator[tuple[Connection, Connection]]:
        for talk in self.conversations:
            ours, theirs = talk.streams
            if not ours.over and not theirs.over:
                first, second = ours.handler, theirs.handler
                if isinstance(first, Connection) and isinstance(second, Connection):
                    yield first, second


class _LoggedErrors(logging.Handler):
    """Collects the errors that headgate logs: each fails the simulation."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self._logger = logging.getLogger("headgate")
        self._propagated = True

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.texts.append(record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else ""))

    def __enter__(self) -> None:
        self._propagated, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated


def simulate(seed: int) -> SimulationOutcome:
    """Run one seed. Return its outcome.

    >>> simulate(1).trace_hash == simulate(1).trace_hash
    True
    """
    simulation = Simulation(seed)
    failure = failure_of(simulation) or loop_failure_of(seed)
    simulator = simulation.simulator
    return SimulationOutcome(
        seed=seed,
        plan=simulation.plan,
        faults=tuple(map(str, simulation.struck)),
        failure=failure,
        steps=simulator.steps,
        virtual_ns=simulator.now_ns,
        records=sum(one.records for job in simulation.jobs for one in job.consumers),
        trace_hash=simulator.trace_hash(),
        trace=tuple(simulator.lines()),
    )


def failure_of(simulation: Simulation) -> str | None:
    """Run a simulation. Return the error as text, or None."""
    try:
        simulation.run()
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - any exception is a bug that the seed has found
        return traceback.format_exc().rstrip()
    return None
