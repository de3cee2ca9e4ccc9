"""One attempt of a simulated job: its workers, its tasks, and the errors that they may end with.

Before a fault strikes, it registers which errors it may cause, and in which tasks (`blame_*`). A task without such an
entry must finish, with every record read; a task with one must finish, or end with one of these errors.

`coordinate` does the part of a real job's coordinator: it releases the subpartitions of readers that ended before they
could request them. No worker can detect that by itself.
"""

from __future__ import annotations

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
from headgate.testing.workload import ConsumerTask, SimTask
from headgate.testing.writers import producer_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.input.channel import ChannelSource
    from headgate.testing.plan import SimPlan
    from headgate.testing.producers import ProducerTask
    from headgate.testing.simnet import SimNet
    from headgate.testing.worker import EndedConnection

__all__ = ["Blame", "SimJob"]


@dataclass(frozen=True, slots=True)
class Blame:
    """The errors that a fault may cause."""

    fault: str
    errors: tuple[type[HeadgateError], ...]
    text: str = ""  # a part of the error's text

    def allows(self, error: HeadgateError) -> bool:
        """Return True if the fault explains an error."""
        return isinstance(error, self.errors) and self.text in str(error)


class SimJob:
    """One attempt of a simulated job."""

    def __init__(self, net: SimNet, plan: SimPlan, progress: Callable[[], object], *, attempt: int = 1) -> None:
        self.net = net
        self.plan = plan
        self.attempt = attempt
        self.progress = progress
        self.workers: list[SimWorker] = []
        self.producers: dict[int, ProducerTask] = {}
        self.consumers: list[ConsumerTask] = []
        self.late_ns: dict[int, int] = {}
        """The start of late producers, by number; `NEVER_NS`: they do not start."""
        self.pairs: dict[tuple[int, int], list[Blame]] = {}
        self.gates: dict[int, list[Blame]] = {}
        self.partitions: dict[int, list[Blame]] = {}
        self._awaited: set[int] = set()  # producers that have not started yet

    # Set-up.

    def set_up(self, ports: dict[int, int] | None = None) -> None:
        """Create workers, tasks and channels. `ports`: the ports of workers that must have a certain one."""
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

        def start() -> None:
            self._awaited.discard(number)
            self._add_producer(number).begin(0)

        self._awaited.add(number)
        self.net.simulator.after(delay_ns, start, actor, f"producer {number} starts late")

    def _connect(self, consumer: ConsumerTask, latencies: int) -> None:
        """Connect the channels of a consumer: at once, or after so many latencies, when other tasks may have ended."""
        sources = self._sources(consumer)

        def connect() -> None:
            for channel, source in enumerate(sources):
                consumer.connect(channel, source)

        if not latencies:
            connect()
            return
        delay_ns = sum(self.net.latency_ns() for _ in range(latencies))
        self.net.simulator.after(delay_ns, connect, consumer.worker.actor, f"{consumer.name} connects its channels")

    def _sources(self, consumer: ConsumerTask) -> list[ChannelSource]:
        sources: list[ChannelSource] = []
        for channel in range(len(consumer.read)):
            producer, subpartition = consumer.route(channel)
            gate, there = consumer.inner(channel)[0], self.workers[self.plan.producers[producer].worker]
            lane = self.plan.lane(producer)
            sources.append(consumer.worker.source(gate, producer, subpartition, there, lane=lane))
        return sources

    # State.

    @property
    def tasks(self) -> list[SimTask]:
        """Every task that was started."""
        return [*self.producers.values(), *self.consumers]

    @property
    def done(self) -> bool:
        """True if every task is done, or its worker has crashed."""
        awaited = any(not self.workers[self.plan.producers[number].worker].crashed for number in self._awaited)
        return not awaited and all(task.done or task.worker.crashed for task in self.tasks)

    # Expected errors.

    def blame_pair(self, first: int, second: int, fault: str, *errors: type[HeadgateError]) -> None:
        """Expect these errors, and connection errors, in all channels between two workers."""
        key = min(first, second), max(first, second)
        self.pairs.setdefault(key, []).append(Blame(fault, (TransportError, *errors)))

    def blame_worker(self, worker: int, fault: str, *errors: type[HeadgateError]) -> None:
        """Expect these errors in all channels between a worker and every other one."""
        for other in range(self.plan.workers):
            if other != worker:
                self.blame_pair(worker, other, fault, *errors)

    def blame_gate(self, consumer: int, fault: str, *errors: type[HeadgateError]) -> None:
        """Expect these errors in a consumer."""
        self.gates.setdefault(consumer, []).append(Blame(fault, errors))

    def blame_partition(self, producer: int, fault: str, *errors: type[HeadgateError], text: str = "") -> None:
        """Expect these errors in a producer and all its readers."""
        self.partitions.setdefault(producer, []).append(Blame(fault, errors, text))

    @property
    def blameless(self) -> bool:
        """True if no fault struck that may end a task."""
        return not (self.pairs or self.gates or self.partitions)

    def blames(self, first: int, second: int) -> list[Blame]:
        """Return the faults that struck the connections of two workers."""
        return self.pairs.get((min(first, second), max(first, second)), [])

    def _blames_of(self, consumer: ConsumerTask) -> Iterator[Blame]:
        yield from self.gates.get(consumer.number, ())
        for producer, mine in enumerate(self.plan.producers):
            yield from self.partitions.get(producer, ())
            if mine.worker != consumer.worker.number:
                yield from self.blames(mine.worker, consumer.worker.number)

    # The coordinator.

    def coordinate(self) -> bool:
        """Release the subpartitions of readers that ended without requesting them. Return True if there were any."""
        released = False
        for consumer in self.consumers:
            if not (consumer.worker.crashed or (consumer.done and consumer.error is not None)):
                continue
            for channel in range(len(consumer.read)):
                released = self._release(consumer, channel) or released
        return released

    def _release(self, consumer: ConsumerTask, channel: int) -> bool:
        producer, subpartition = consumer.route(channel)
        task = self.producers.get(producer)
        source = consumer.sources.get(channel)
        if task is None or task.worker.crashed:
            return False
        local = source is not None and not isinstance(source, RemoteChannel)
        notified = (local or channel in consumer.asked) and producer not in self.late_ns
        if notified and not self.blames(task.worker.number, consumer.worker.number):
            return False  # the producer was notified, or there is a bug
        if task.partition.subpartitions[subpartition].state is SubpartitionState.RELEASED:
            return False
        registry, index = task.worker.registry, SubpartitionIndex(subpartition)
        with registry.lock:
            wake = registry.release_subpartition_locked(task.partition.id, index, consumer.error)
        if wake is not None:
            wake()
        return True

    # Checks at the end.

    def check_ends(self, *, others: bool) -> None:
        """Check that all tasks and connections ended as expected. `others`: strangers were connected, too.

        Raises:
            InvariantViolated: A task or a connection ended with another error.
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
            hosts.append(STRANGERS)  # a stranger with the identity of a producer's worker
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

    def _check_connection(self, worker: SimWorker, ended: EndedConnection, *, others: bool) -> None:
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
