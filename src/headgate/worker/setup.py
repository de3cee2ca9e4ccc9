"""Makes one task from the plan: its partitions, its gates, its chain and its loop (K5).

Used by `task_group`, on the control thread. In BATCH an operator may be replaced (`Operator.in_batch`), and partitions
for other regions are written to disk.

Invariant: a set-up that fails leaves nothing behind.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headgate.clock import wall_ms
from headgate.control.reports import interval_ms
from headgate.errors import Cancelled, PartitionNotFound
from headgate.graph.depths import depth_of
from headgate.graph.plan import Partition, Ship, ShipKind
from headgate.ids import PartitionId, SubpartitionIndex
from headgate.meters import TaskTimer
from headgate.output import (
    Broadcast,
    Custom,
    Forward,
    Global,
    Hash,
    PartitionType,
    Rebalance,
    Rescale,
    Selector,
    Shuffle,
)
from headgate.task.batch.spill import SpillSpace
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain
from headgate.task.runtime.loop import InputLoop, SourceLoop
from headgate.task.runtime.portions import Portions
from headgate.task.runtime.task import Task
from headgate.task.task_events import TaskEvents
from headgate.worker.reporting import ChannelMeter, DeployedTask
from headgate.worker.task_meter import TaskMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.errors import HeadgateError
    from headgate.graph.plan import Exchange, Plan, Vertex
    from headgate.ids import AttemptId
    from headgate.input import Gate, InputGate, RecordReader, RemoteChannel
    from headgate.output import RecordWriter
    from headgate.output.selector import Below
    from headgate.record import AuthenticatedPeer, SerializerRegistry
    from headgate.record.element import Event
    from headgate.record.serializer import Serializer
    from headgate.task.operator import Operator
    from headgate.task.runtime.loop import TaskLoop
    from headgate.worker.environment import Environment

__all__ = ["DeployedTask", "PendingChannel", "TaskEventChannel", "TaskSetUp", "WorkerPart", "make_selector"]

_MAX_TASK_EVENTS: Final = 1000  # of one channel that wait for the network
_user_log = logging.getLogger("headgate.user")


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What all tasks of a worker are set up with."""

    plan: Plan
    index: int  # the worker's number
    attempt: AttemptId
    environment: Environment
    peer: AuthenticatedPeer
    serializers: SerializerRegistry

    def id(self, name: Partition) -> PartitionId:
        """Return the identity of a partition in this attempt."""
        return PartitionId(self.plan.job, self.attempt, name.vertex, name.output, name.subtask)

    def serializer(self, exchange: Exchange) -> Serializer[Any]:
        """Return the serializer of an exchange."""
        return self.serializers.serializer_for(exchange.hint, peer=self.peer)


@dataclass(frozen=True, slots=True)
class PendingChannel:
    """A channel that is not connected yet: its partition is not consumable. `remote`: None if it is in this worker."""

    partition: Partition
    exchange: int
    subpartition: SubpartitionIndex
    gate: InputGate
    channel: int
    remote: RemoteChannel | None

    def abandon(self) -> None:
        """Release the channel's buffers: its gate was released, and the partition will not be connected."""
        if self.remote is not None:
            self.gate.connect(self.channel, self.remote)

    @property
    def meter(self) -> ChannelMeter:
        """The channel, for the task's reports."""
        return ChannelMeter(self.exchange, self.partition.subtask, self.gate.channels[self.channel], self.remote)


@dataclass(frozen=True, slots=True, eq=False)
class TaskEventChannel:
    """A channel through which task events are sent to its producer: a `ProducerChannel`.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     TaskEventChannel(worker.gate("words", channels=1), 0, None).ready
    False
    """

    gate: InputGate
    channel: int
    remote: RemoteChannel | None

    @property
    def ready(self) -> bool:
        """See `ProducerChannel`. Takes no lock: the source is set once, and only this thread sends."""
        if self.gate.channels[self.channel].source is None:
            return False
        return self.remote is None or len(self.remote.task_events) < _MAX_TASK_EVENTS

    def send_task_event(self, event: Event) -> None:
        """See `ProducerChannel`."""
        self.gate.send_task_event(self.channel, event)


@dataclass(slots=True)
class TaskSetUp:
    """Makes one subtask; used once."""

    part: WorkerPart
    vertex: Vertex
    subtask: int
    consumable: Callable[[Partition], object]  # called when a partition of the task can be read
    running: Callable[[], object]
    failed: Callable[[HeadgateError], object]  # before its readers are notified
    ended: Callable[[HeadgateError | None], object]
    locations: Mapping[Partition, int] = field(default_factory=dict)
    """The workers that have the input partitions, where these differ from the plan."""
    pending: list[PendingChannel] = field(default_factory=list)
    _timer: TaskTimer = field(init=False)
    _writers: list[RecordWriter[Any]] = field(default_factory=list)
    _gates: list[InputGate] = field(default_factory=list)
    _counters: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The task's name, for its thread and in errors."""
        return f"{self.vertex.name} ({self.subtask + 1}/{self.vertex.parallelism})"

    def set_up(self) -> DeployedTask:
        """Return the task, not started; its channels are not connected yet (`pending`)."""
        self._timer = TaskTimer(self.part.environment.clock.now_ns)
        try:
            for exchange in self.part.plan.outputs(self.vertex.id):
                self._add_writer(exchange)
            reader, inputs = self._reader()
            return self._assemble(reader, inputs)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        for writer in self._writers:
            writer.close()
            self.part.environment.registry.release(writer.partition.id)
        for gate in self._gates:
            gate.release()
        for channel in self.pending:
            channel.abandon()

    def _add_writer(self, exchange: Exchange) -> None:
        environment, consumer = self.part.environment, self.part.plan.vertex(exchange.consumer)
        readers = exchange.consumers_of(self.subtask, self.vertex.parallelism, consumer.parallelism)
        name = Partition(self.vertex.id, exchange.output, self.subtask)
        selector = make_selector(exchange.ship, consumer.max_parallelism, environment.random.randrange)
        serializer = self.part.serializer(exchange)
        partition = environment.partition(
            self.part.id(name),
            subpartitions=len(readers),
            kind=PartitionType.BLOCKING if exchange.blocking else PartitionType.PIPELINED_BOUNDED,
            timer=self._timer,
            patient=True,
        )
        try:
            partition.on_consumable = lambda: self.consumable(name)
            writer = environment.writer(
                partition,
                selector,
                serializer,
                buffer_timeout=exchange.buffer_timeout,
                hot_keys=self.part.plan.settings.metrics.hot_keys,
            )
        except BaseException:
            environment.registry.release(partition.id)
            raise
        self._writers.append(writer)

    def _reader(self) -> tuple[RecordReader[Any] | None, list[int]]:
        """Return the reader of all inputs, and for each of its channels the number of its input."""
        environment, serializers, inputs = self.part.environment, [], []
        for exchange in self.part.plan.inputs(self.vertex.id):
            producer = self.part.plan.vertex(exchange.producer)
            subtasks = exchange.producers_of(self.subtask, producer.parallelism, self.vertex.parallelism)
            gate = environment.gate(f"{self.name}, from {producer.name}", channels=len(subtasks), timer=self._timer)
            self._gates.append(gate)
            for channel, producing in enumerate(subtasks):
                self._add_channel(exchange, gate, channel, producing)
            serializers += [self.part.serializer(exchange)] * len(subtasks)
            inputs += [exchange.input] * len(subtasks)
        if not self._gates:
            return None, []
        gate_read: Gate = self._gates[0]
        if len(self._gates) > 1:
            gate_read = environment.union(self.name, self._gates, timer=self._timer)
        return environment.reader(gate_read, serializers), inputs

    def _add_channel(self, exchange: Exchange, gate: InputGate, channel: int, producing: int) -> None:
        """Add a channel, to be connected once its partition is consumable. It takes its exclusive buffers now."""
        plan = self.part.plan
        producer = plan.vertex(exchange.producer)
        name = Partition(producer.id, exchange.output, producing)
        readers = exchange.consumers_of(producing, producer.parallelism, self.vertex.parallelism)
        index = SubpartitionIndex(readers.index(self.subtask))
        worker = self.locations.get(name, producer.workers(plan)[producing])
        remote = None
        if worker != self.part.index:
            remote = self.part.environment.remote_source(
                gate,
                self.part.id(name),
                index,
                worker=worker,
                lane=depth_of(plan, exchange),
                packed=exchange.blocking,
            )
        self.pending.append(PendingChannel(name, exchange.id, index, gate, channel, remote))

    def _assemble(self, reader: RecordReader[Any] | None, inputs: list[int]) -> DeployedTask:
        planned, object_reuse = self.vertex.operators, self.part.plan.settings.execution.object_reuse
        loops: list[TaskLoop] = []
        operators = [one.make() for one in planned]
        if self.part.plan.batch:
            operators = [one.in_batch() for one in operators]
        spill = self._spill()
        task_events = TaskEvents(
            self._event_channels(),
            subscribe=self._subscribe,
            wake=lambda: loops[0].interrupt(),  # noqa: PLW0108 - there is no loop yet
            counters=self._counters,
        )
        for operator, one in zip(operators, planned, strict=True):
            operator.place = OperatorPlace(
                operator=one.name,
                subtask=self.subtask,
                parallelism=self.vertex.parallelism,
                max_parallelism=self.vertex.max_parallelism,
                wall_ms=wall_ms,
                logger=_user_log,
                object_reuse=object_reuse,
                wake=lambda: loops[0].interrupt(),  # noqa: PLW0108 - there is no loop yet
                counters=self._counters,
                task_events=task_events,
                spill=spill,
                timer=self._timer,
            )
        reads = [None if one.reads is None else (one.reads, one.tag) for one in planned]
        chain = Chain(operators, reads)
        for exchange, writer in zip(self.part.plan.outputs(self.vertex.id), self._writers, strict=True):
            chain.links[exchange.operator].add_writer(writer, exchange.tag)
        loops.append(self._loop(chain, operators[0], reader, inputs))
        task = Task(
            self.name,
            chain,
            loops[0],
            self._writers,
            reader,
            running=self.running,
            failed=self.failed,
            ended=self.ended,
        )
        return DeployedTask(
            vertex=self.vertex,
            subtask=self.subtask,
            task=task,
            timer=self._timer,
            gates=tuple(self._gates),
            channels=tuple(channel.meter for channel in self.pending),
            outputs=tuple(exchange.id for exchange in self.part.plan.outputs(self.vertex.id)),
            counters=self._counters,
            meter=TaskMeter(task, self._timer, self._gates, length_ms=interval_ms(self.part.plan.settings.metrics)),
        )

    def _event_channels(self) -> list[TaskEventChannel]:
        """Return the channels whose producers run at the same time; those of blocking exchanges have ended."""
        blocking = {one.id for one in self.part.plan.inputs(self.vertex.id) if one.blocking}
        return [
            TaskEventChannel(one.gate, one.channel, one.remote) for one in self.pending if one.exchange not in blocking
        ]

    def _subscribe(self, name: str, receive: Callable[[Event], object]) -> None:
        """Call `receive` with each task event of this name from the task's consumers."""
        for writer in self._writers:
            try:
                self.part.environment.registry.subscribe(writer.partition.id, name, receive)
            except PartitionNotFound as error:  # the job ends, and has released it
                raise Cancelled(str(error)) from error

    def _spill(self) -> SpillSpace | None:
        """Return where the task may spill; None in STREAMING, where everything stays in memory."""
        storage, settings = self.part.environment.storage, self.part.plan.settings.batch
        if storage is None:
            return None
        return SpillSpace(
            directory=lambda: storage.spill_directory,
            memory_bytes=settings.group_memory,
            compression=settings.compression,
            quota=storage.quota,
            serializers=tuple(self._input_serializer(number) for number in range(self.vertex.inputs)),
        )

    def _input_serializer(self, number: int) -> Serializer[Any]:
        """Return the serializer of one of the task's inputs, which may be several exchanges."""
        exchanges = [one for one in self.part.plan.inputs(self.vertex.id) if one.input == number]
        if all(one.hint == exchanges[0].hint for one in exchanges):
            return self.part.serializer(exchanges[0])
        return self.part.serializers.serializer_for("pickle", peer=self.part.peer)

    def _loop(self, chain: Chain, head: Operator, reader: RecordReader[Any] | None, inputs: list[int]) -> TaskLoop:
        if reader is not None:
            portions = Portions(self.part.environment.clock.now_ns, self._timer)
            return InputLoop(reader, inputs, chain, self._writers, wall_ms, portions=portions)
        first = self.vertex.operators[0]
        assert first.source is not None, "a chain without input begins with a source"
        splits = first.splits[self.subtask :: self.vertex.parallelism]
        environment, plan = self.part.environment, self.part.plan
        return SourceLoop(
            first.source,
            splits,
            head.place,
            chain,
            self._writers,
            sync=environment.sync,
            timer=self._timer,
            now_ns=environment.clock.now_ns,
            marker_interval_ns=0 if plan.batch else plan.settings.metrics.latency_interval.ns,
            vertex=self.vertex.id,
            subtask=self.subtask,
        )


def make_selector(ship: Ship, max_parallelism: int, below: Below) -> Selector[Any]:  # noqa: PLR0911 - one return per kind
    """Return a new selector for an exchange; `below` returns a random number below n.

    >>> type(make_selector(Ship(ShipKind.BROADCAST), 128, lambda n: 0)).__name__
    'Broadcast'
    """
    match ship.kind:
        case ShipKind.HASH:
            assert ship.key is not None, "hash needs a key"
            return Hash(ship.key, max_parallelism)
        case ShipKind.HASH_COLUMNS:
            from headgate.output.columns import HashColumns  # noqa: PLC0415 - needs pyarrow

            return HashColumns(ship.columns, max_parallelism)
        case ShipKind.CUSTOM:
            assert ship.function is not None, "custom needs a function"
            return Custom(ship.function)
        case ShipKind.REBALANCE:
            return Rebalance(below)
        case ShipKind.SHUFFLE:
            return Shuffle(below)
        case ShipKind.FORWARD:
            return Forward()
        case ShipKind.RESCALE:
            return Rescale()
        case ShipKind.BROADCAST:
            return Broadcast()
        case ShipKind.GLOBAL:
            return Global()
