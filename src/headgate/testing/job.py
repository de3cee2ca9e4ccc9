"""One attempt of a simulated job: its workers, its tasks, and how they are expected to end.

A fault that may end a task says so here before it strikes (`blame_*`): which errors it may cause, and to whom. Who is
not blamed must finish with everything read; who is must finish, or end with one of those errors.

Where a real job's driver would step in, a coordinator does: it tells producers of readers that died before they could
even ask for their data. Nobody else can know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import (
    AuthError,
    Cancelled,
    CorruptStream,
    HeadgateError,
    InvariantViolated,
    RemoteProtocolError,
    TransportError,
)
from headgate.ids import SubpartitionIndex
from headgate.input import RemoteChannel
from headgate.output.pipelined import SubpartitionState
from headgate.testing.simulator import NEVER_NS
from headgate.testing.worker import STRANGERS, SimWorker, host_of
from headgate.testing.workload import ConsumerTask, Task
from headgate.testing.writers import producer_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.input.channel import Source
    from headgate.testing.plan import Plan
    from headgate.testing.producers import ProducerTask
    from headgate.testing.simnet import SimNet
    from headgate.testing.worker import Ended

__all__ = ["Blame", "Job"]


@dataclass(frozen=True, slots=True)
class Blame:
    """What a fault may do to those it strikes.

    >>> Blame("reset", (TransportError,)).allows(TransportError("reset", peer="127.0.0.2:7077"))
    True
    """

    fault: str
    errors: tuple[type[HeadgateError], ...]
    text: str = ""  # what the error must say

    def allows(self, error: HeadgateError) -> bool:
        """Whether the fault explains an error."""
        return isinstance(error, self.errors) and self.text in str(error)


class Job:
    """One attempt.

    >>> from headgate.testing import Simulation
    >>> simulation = Simulation(seed=3, faults=[]); simulation.run()
    >>> simulation.job.done, simulation.job.blameless
    (True, True)
    """

    def __init__(self, net: SimNet, plan: Plan, progress: Callable[[], object], *, attempt: int = 1) -> None:
        self.net = net
        self.plan = plan
        self.attempt = attempt
        self.progress = progress
        self.workers: list[SimWorker] = []
        self.producers: dict[int, ProducerTask] = {}
        self.consumers: list[ConsumerTask] = []
        self.late_ns: dict[int, int] = {}
        """When producers come that are late, by number; `NEVER_NS`: they do not."""
        self.pairs: dict[tuple[int, int], list[Blame]] = {}
        self.gates: dict[int, list[Blame]] = {}
        self.partitions: dict[int, list[Blame]] = {}
        self._awaited: set[int] = set()  # producers still to come

    # Setting up.

    def set_up(self, ports: dict[int, int] | None = None) -> None:
        """Make workers, tasks and channels; `ports`: where workers listen, if that matters."""
        plan, simulator = self.plan, self.net.simulator
        chance = simulator.fork(f"start/{self.attempt}")
        for number in range(plan.workers):
            port = (ports or {}).get(number, 0)
            self.workers.append(SimWorker(number, plan, self.net, attempt=self.attempt, port=port))
        for number, worker in enumerate(plan.consumers):
            self.consumers.append(ConsumerTask(number, self.workers[worker], plan, self.progress))
        for number in range(len(plan.producers)):
            if number not in self.late_ns:
                self._add_producer(number)
        readers = simulator.fork(f"readers/{self.attempt}")
        for consumer in self.consumers:
            self._connect(consumer, readers.randint(0, plan.late_latencies))
        for producer in self.producers.values():
            if producer.mine.fed_by is not None:
                reader = self.consumers[producer.mine.fed_by]
                reader.feeds, producer.fed = producer, reader.wake
        for task in self.tasks:
            task.think_ns = chance.choice((0, 1_000, 200_000, 5_000_000))
            task.begin(chance.randint(0, 100_000))
        for number, delay_ns in self.late_ns.items():
            self._add_later(number, delay_ns)

    def _add_producer(self, number: int) -> ProducerTask:
        worker = self.workers[self.plan.producers[number].worker]
        task = self.producers[number] = producer_task(number, worker, self.plan, self.progress)
        return task

    def _add_later(self, number: int, delay_ns: int) -> None:
        actor = self.workers[self.plan.producers[number].worker].actor
        if delay_ns >= NEVER_NS:
            return

        def come() -> None:
            self._awaited.discard(number)
            self._add_producer(number).begin(0)

        self._awaited.add(number)
        self.net.simulator.after(delay_ns, come, actor, f"producer {number} comes late")

    def _connect(self, consumer: ConsumerTask, latencies: int) -> None:
        """Say where a consumer's producers are: at once, or when what others exchange may be over."""
        sources = self._sources(consumer)

        def tell() -> None:
            for channel, source in enumerate(sources):
                consumer.connect(channel, source)

        if not latencies:
            tell()
            return
        delay_ns = sum(self.net.latency_ns() for _ in range(latencies))
        self.net.simulator.after(delay_ns, tell, consumer.worker.actor, f"{consumer.name} learns of its producers")

    def _sources(self, consumer: ConsumerTask) -> list[Source]:
        here = consumer.worker
        routes = [consumer.route(channel) for channel in range(len(consumer.read))]
        places = [self.workers[self.plan.producers[producer].worker] for producer, _ in routes]
        remote = Counter(consumer.inner(channel)[0].name for channel, there in enumerate(places) if there is not here)
        sources: list[Source] = []
        for channel, ((producer, subpartition), there) in enumerate(zip(routes, places, strict=True)):
            gate = consumer.inner(channel)[0]
            if there is here:
                sources.append(here.local_source(producer, subpartition))
            else:
                channels, lane = remote[gate.name], self.plan.lane(producer)
                sources.append(here.remote_source(gate, producer, subpartition, there, channels, lane=lane))
        return sources

    # Looking.

    @property
    def tasks(self) -> list[Task]:
        """Every task that has come."""
        return [*self.producers.values(), *self.consumers]

    @property
    def done(self) -> bool:
        """Whether every task is done, or its worker is no more."""
        awaited = any(not self.workers[self.plan.producers[number].worker].crashed for number in self._awaited)
        return not awaited and all(task.done or task.worker.crashed for task in self.tasks)

    # Expecting.

    def blame_pair(self, first: int, second: int, fault: str, *errors: type[HeadgateError]) -> None:
        """Whatever two workers exchange may end with these errors; connection errors name the other side."""
        key = min(first, second), max(first, second)
        self.pairs.setdefault(key, []).append(Blame(fault, (TransportError, *errors)))

    def blame_worker(self, worker: int, fault: str, *errors: type[HeadgateError]) -> None:
        """As `blame_pair`, with every other worker."""
        for other in range(self.plan.workers):
            if other != worker:
                self.blame_pair(worker, other, fault, *errors)

    def blame_gate(self, consumer: int, fault: str, *errors: type[HeadgateError]) -> None:
        """A consumer may end with these errors."""
        self.gates.setdefault(consumer, []).append(Blame(fault, errors))

    def blame_partition(self, producer: int, fault: str, *errors: type[HeadgateError], text: str = "") -> None:
        """A producer and all its readers may end with these errors."""
        self.partitions.setdefault(producer, []).append(Blame(fault, errors, text))

    @property
    def blameless(self) -> bool:
        """Whether nothing struck that may end a task."""
        return not (self.pairs or self.gates or self.partitions)

    def blames(self, first: int, second: int) -> list[Blame]:
        """What struck a pair of workers."""
        return self.pairs.get((min(first, second), max(first, second)), [])

    def _blames_of(self, consumer: ConsumerTask) -> Iterator[Blame]:
        yield from self.gates.get(consumer.number, ())
        for producer, mine in enumerate(self.plan.producers):
            yield from self.partitions.get(producer, ())
            if mine.worker != consumer.worker.number:
                yield from self.blames(mine.worker, consumer.worker.number)

    # The coordinator.

    def coordinate(self) -> bool:
        """Tell producers of readers that are gone and could not tell them. Whether there were any."""
        told = False
        for consumer in self.consumers:
            if not (consumer.worker.crashed or (consumer.done and consumer.error is not None)):
                continue
            for channel in range(len(consumer.read)):
                told = self._release(consumer, channel) or told
        return told

    def _release(self, consumer: ConsumerTask, channel: int) -> bool:
        producer, subpartition = consumer.route(channel)
        task = self.producers.get(producer)
        source = consumer.sources.get(channel)
        if task is None or task.worker.crashed:
            return False
        local = source is not None and not isinstance(source, RemoteChannel)
        knows = (local or channel in consumer.asked) and producer not in self.late_ns
        if knows and not self.blames(task.worker.number, consumer.worker.number):
            return False  # it was told, or there is a bug
        if task.partition.subpartitions[subpartition].state is SubpartitionState.RELEASED:
            return False
        registry, index = task.worker.registry, SubpartitionIndex(subpartition)
        with registry.lock:
            wake = registry.release_subpartition_locked(task.partition.id, index, consumer.error)
        if wake is not None:
            wake()
        return True

    # The verdict.

    def check_ends(self, *, others: bool) -> None:
        """Whether everybody ended as expected; `others`: there were connections by somebody else.

        Raises:
            InvariantViolated: somebody did not.
        """
        for consumer in self.consumers:
            if consumer.error is not None and not consumer.worker.crashed:
                self._check_consumer(consumer, consumer.error, others=others)
        for producer in self.producers.values():
            if producer.error is not None and not producer.worker.crashed:
                self._check_producer(producer, producer.error)
        for worker in self.workers:
            if not worker.crashed:
                for ended in worker.network.history:
                    self._check_connection(worker, ended, others=others)

    def _check_consumer(self, consumer: ConsumerTask, error: HeadgateError, *, others: bool) -> None:
        blames = list(self._blames_of(consumer))
        if not any(blame.allows(error) for blame in blames):
            raise InvariantViolated(
                f"{consumer} ended with {type(error).__name__}: {error}; it had "
                f"{[one.fault for one in blames] or 'no'} reason to"
            )
        hosts = [host_of(one.worker) for one in self.plan.producers]
        if others:
            hosts.append(STRANGERS)  # one that has taken a producer's place is the peer then
        if isinstance(error, TransportError) and not any(host in str(error) for host in hosts):
            raise InvariantViolated(f"{consumer} ended with an error that does not name its peer: {error}")

    def _check_producer(self, producer: ProducerTask, error: HeadgateError) -> None:
        if any(blame.allows(error) for blame in self.partitions.get(producer.number, ())):
            return
        readers = [one for one in self.consumers if one.error is None and not one.worker.crashed]
        if readers or not isinstance(error, Cancelled):
            raise InvariantViolated(
                f"{producer} ended with {type(error).__name__}: {error}; it still had {len(readers)} readers"
            )

    def _check_connection(self, worker: SimWorker, ended: Ended, *, others: bool) -> None:
        error, connection = ended.error, ended.connection
        if error is None:
            return
        host = connection.peer.rpartition(":")[0]
        numbers = [number for number in range(self.plan.workers) if host_of(number) == host]
        if not numbers or (others and not ended.proved):
            expected: tuple[type[HeadgateError], ...] = (AuthError, RemoteProtocolError, TransportError)
        elif self.blames(worker.number, numbers[0]):
            expected = (TransportError, RemoteProtocolError, CorruptStream)
        else:
            expected = ()
        if not isinstance(error, expected):
            raise InvariantViolated(
                f"worker {worker.number}: its connection with {connection.peer} ended with "
                f"{type(error).__name__}: {error}"
            )
