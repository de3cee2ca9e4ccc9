"""One seed, from its plan to its verdict.

`simulate` builds the workers and tasks of a plan, lets virtual time run with the faults of the seed, checks the
invariants after every action, and says how it went. The same seed gives the same run, action for action.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.errors import Cancelled, HeadgateError, InvariantViolated
from headgate.net.connection import Connection
from headgate.testing.faults import AT_THE_START, Fault, draw_faults
from headgate.testing.invariants import check_at_rest, check_closed, check_credit, check_worker, wait_for_graph
from headgate.testing.job import Job
from headgate.testing.plan import Plan, draw_plan
from headgate.testing.simnet import SimNet
from headgate.testing.simulator import NEVER_NS, Actor, Simulator
from headgate.testing.strangers import Knocker, Stranger
from headgate.testing.tap import Conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.ids import PartitionId
    from headgate.testing.simstream import SimStream
    from headgate.testing.worker import SimWorker, WatchedSupply
    from headgate.testing.workload import Task

__all__ = ["Outcome", "Simulation", "failure_of", "simulate"]

_MOST_STEPS: Final = 200_000
_CREDIT_EVERY: Final = 16
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a simulation went.

    >>> outcome = simulate(1)
    >>> outcome.failure is None, outcome.repeat
    (True, 'headgate simulate --seed 1')
    """

    seed: int
    plan: Plan
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
    """One run.

    >>> simulation = Simulation(seed=1)
    >>> simulation.run()
    >>> simulation.job.done
    True
    """

    def __init__(self, seed: int, plan: Plan | None = None, faults: Sequence[Fault] | None = None) -> None:
        self.simulator = Simulator(seed)
        self.plan = plan if plan is not None else draw_plan(self.simulator.fork("plan"))
        drawn = draw_faults(self.simulator.fork("faults"), self.plan) if faults is None else faults
        self.faults = sorted(drawn, key=lambda fault: -1 if fault.kind in AT_THE_START else fault.at_step)
        self.struck: list[Fault] = []
        self.world = Actor("world")
        self.net = SimNet(self.simulator, self.plan.weather)
        self.net.opened = self._opened
        self.conversations: list[Conversation] = []
        self.job = Job(self.net, self.plan, self.progress)
        """The attempt that faults strike."""
        self.jobs = [self.job]
        self.strangers: list[Stranger | Knocker] = []
        self._by_actor: dict[Actor, SimWorker] = {}
        self._by_host: dict[tuple[str, int], SimWorker] = {}
        self._wires: list[tuple[int, int, str]] = []
        self._moved = self._look = True
        self._excused_until_ns = 0
        self._complaints = _Complaints()

    @property
    def tasks(self) -> list[Task]:
        """Every task."""
        return [task for job in self.jobs for task in job.tasks]

    def run(self) -> None:
        """Run it all.

        Raises:
            InvariantViolated: something does not hold.
        """
        with self._complaints:
            try:
                self._run()
            finally:
                for task in self.tasks:
                    task.clean_up()

    def _run(self) -> None:
        simulator = self.simulator
        self._strike()
        self.job.set_up()
        self._know(self.job)
        while not self._all_done():
            self._strike()
            if not simulator.work and not self._nudge() and simulator.now_ns >= self._excused_until_ns:
                raise InvariantViolated(f"deadlock: nothing is scheduled, but records are undelivered\n{self._graph()}")
            if not self.step() and not self._nudge():
                raise InvariantViolated(f"nothing is left to happen, but tasks are not done\n{self._graph()}")
        self._wind_down()

    def step(self) -> bool:
        """One action, and the invariants after it."""
        simulator = self.simulator
        if not simulator.step():
            return False
        if simulator.steps > _MOST_STEPS:
            raise InvariantViolated(f"after {_MOST_STEPS} actions there is no end in sight")
        if self._complaints.texts:
            raise InvariantViolated(self._complaints.texts[0])
        worker = self._by_actor.get(simulator.last_actor) if simulator.last_actor is not None else None
        if worker is not None and not worker.crashed:
            check_worker(worker)
        if simulator.steps % _CREDIT_EVERY == 0:
            self._check_credit()
        return True

    def progress(self) -> None:
        """Something has moved, or somebody has ended."""
        self._moved = self._look = True

    def _all_done(self) -> bool:
        """Whether every task of every attempt is done; looked up only when that may have changed."""
        look, self._look = self._look, False
        return look and all(job.done for job in self.jobs)

    # What faults ask for.

    def excuse(self, duration_ns: int) -> None:
        """For so long, and as long again, waiting is no deadlock: the time limits must come first."""
        limits_ms = 2 * self.plan.idle_timeout_ms + self.plan.connect_timeout_ms + self.plan.handshake_timeout_ms
        until_ns = self.simulator.now_ns + duration_ns + limits_ms * _MS
        self._excused_until_ns = max(self._excused_until_ns, until_ns)

    def blame_wire(self, first: int, second: int, fault: str) -> None:
        """Nothing may pass between two hosts, whichever attempt it belongs to."""
        self._wires.append((first, second, fault))
        for job in self.jobs:
            job.blame_pair(first, second, fault)

    def streams(self, first: int, second: int) -> list[SimStream]:
        """The streams by which a worker receives from another."""
        sender, receiver = self.job.workers[first].actor, self.job.workers[second].actor
        return [one for one in self.net.streams if one.actor is receiver and one.other.actor is sender]

    def crash(self, number: int, fault: str, *, silent: bool, again: bool) -> None:
        """A worker is gone; the others learn of it by a reset or, if `silent`, by silence."""
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
        """A new attempt, whose worker listens where the crashed one did: late callers find it there."""
        job = Job(self.net, self.plan, self.progress, attempt=self.jobs[-1].attempt + 1)
        self.jobs.append(job)
        for wire in self._wires:
            job.blame_pair(*wire)
        job.set_up(ports={crashed: self.job.workers[crashed].address.port})
        self._know(job)

    def add_stranger(self, number: int, target: int, *, attempt: int) -> None:
        """Somebody who says it is worker `number` connects to worker `target`, who knows better."""
        stranger = Stranger(number, attempt, self.job.workers[target], self.net, self.plan)
        self.strangers.append(stranger)
        self._by_actor[stranger.worker.actor] = stranger.worker

    def knock(self, target: int, data: bytes) -> None:
        """Somebody connects to a worker's port and says something."""
        self.strangers.append(Knocker(self.job.workers[target], self.net, data))

    # Inside.

    def _opened(self, ours: SimStream, theirs: SimStream) -> None:
        self.conversations.append(Conversation(ours, theirs, self._supply))

    def _supply(self, host: str, partition: PartitionId, subpartition: int) -> WatchedSupply | None:
        worker = self._by_host.get((host, partition.attempt))
        return None if worker is None else worker.registry.watched.get((partition, subpartition))

    def _know(self, job: Job) -> None:
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
        """Nothing but housekeeping is left: flushers, or the coordinator, may still have something to do."""
        if self._moved:
            self._moved = False
            for task in self.tasks:
                task.nudge()
            return True
        told = [job.coordinate() for job in self.jobs]
        self._moved = any(told)
        return self._moved

    def _graph(self) -> str:
        return wait_for_graph(self.tasks, [worker for job in self.jobs for worker in job.workers if not worker.crashed])

    def _wind_down(self) -> None:
        """All tasks are done: connections end by themselves, then everything is given back."""
        self._run_until_quiet()
        for job in self.jobs:
            job.check_ends(others=bool(self.strangers) or len(self.jobs) > 1)
        workers = [worker for job in self.jobs for worker in job.workers if not worker.crashed]
        if not self.strangers and not any(job.pairs for job in self.jobs):
            for worker in workers:  # nobody broke a connection: they end by themselves
                check_closed(worker)
        if not self.strangers and all(job.blameless for job in self.jobs):
            for worker in workers:
                check_at_rest(worker)
        workers += [stranger.worker for stranger in self.strangers if isinstance(stranger, Stranger)]
        for worker in workers:
            worker.registry.release_all(Cancelled("the job is over"))
            for gate in (*worker.unions, *worker.gates):
                gate.release()
            worker.network.close(lambda: None)
        self._run_until_quiet()
        for worker in workers:
            worker.network.abort()
        self._run_until_quiet()
        for worker in workers:
            check_at_rest(worker)
        for stranger in self.strangers:
            stranger.check()
        for worker in workers:
            worker.memory.close()

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


class _Complaints(logging.Handler):
    """What headgate logs as an error while a simulation runs: it is one."""

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


def simulate(seed: int) -> Outcome:
    """Run one seed.

    >>> simulate(1).trace_hash == simulate(1).trace_hash
    True
    """
    simulation = Simulation(seed)
    failure = failure_of(simulation)
    simulator = simulation.simulator
    return Outcome(
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
    """Run a simulation; what does not hold, or None.

    >>> failure_of(Simulation(seed=1)) is None
    True
    """
    try:
        simulation.run()
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a bug, here or there: the seed has found it
        return traceback.format_exc().rstrip()
    return None
