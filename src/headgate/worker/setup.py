"""From the plan to one task: its partitions, its gate, its chain and its loop (K5).

Used by `tasks`, on the thread that serves the control connection. In BATCH operators may be others than in STREAMING
(`Operator.in_batch`), and what goes to other regions is written to disk. Invariant: a set-up that fails half-way leaves
nothing behind.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.graph.depths import depth_of
from headgate.ids import PartitionId, SubpartitionIndex
from headgate.meters import TaskTimer
from headgate.output import PartitionType
from headgate.slices import Slices
from headgate.task.chain import Chain
from headgate.task.loop import InputLoop, SourceLoop
from headgate.task.operator import Place
from headgate.task.portions import Portions
from headgate.task.spill import SpillSpace
from headgate.task.task import Task
from headgate.worker.messages import Partition
from headgate.worker.moments import TaskMeter, moment_ms, wall_ms
from headgate.worker.running import Feed, RunningTask
from headgate.worker.shipping import selector_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.errors import HeadgateError
    from headgate.graph.plan import Exchange, Plan, Vertex
    from headgate.ids import AttemptId
    from headgate.input import Gate, InputGate, RecordReader, RemoteChannel
    from headgate.output import RecordWriter
    from headgate.record import AuthenticatedPeer, SerializerRegistry
    from headgate.record.serializer import Serializer
    from headgate.task.loop import Loop
    from headgate.task.operator import Operator
    from headgate.worker.environment import Environment

__all__ = ["Opening", "RunningTask", "TaskSetUp", "WorkerPart", "wall_ms"]

_user_log = logging.getLogger("headgate.user")


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What all tasks of a worker are set up with.

    >>> WorkerPart.__match_args__
    ('plan', 'index', 'attempt', 'environment', 'peer', 'serializers')
    """

    plan: Plan
    index: int  # the worker's number
    attempt: AttemptId
    environment: Environment
    peer: AuthenticatedPeer
    serializers: SerializerRegistry

    def id(self, name: Partition) -> PartitionId:
        """A partition's identity in this attempt."""
        return PartitionId(self.plan.job, self.attempt, name.vertex, name.output, name.subtask)

    def serializer(self, exchange: Exchange) -> Serializer[Any]:
        """What carries the records of an exchange."""
        return self.serializers.serializer_for(exchange.hint, peer=self.peer)


@dataclass(frozen=True, slots=True)
class Opening:
    """A channel that waits for its partition, which is in another worker (`remote`) or in this one (None).

    >>> Opening.__match_args__
    ('partition', 'exchange', 'subpartition', 'gate', 'channel', 'remote')
    """

    partition: Partition
    exchange: int
    subpartition: SubpartitionIndex
    gate: InputGate
    channel: int
    remote: RemoteChannel | None

    def give_up(self) -> None:
        """Its gate was released, and the partition will not come: give back what was set aside for it."""
        if self.remote is not None:
            self.gate.connect(self.channel, self.remote)

    @property
    def feed(self) -> Feed:
        """The channel as the task's reports know it."""
        return Feed(self.exchange, self.partition.subtask, self.gate.channels[self.channel], self.remote)


@dataclass(slots=True)
class TaskSetUp:
    """The setting up of one subtask.

    >>> TaskSetUp.__match_args__[:3]
    ('part', 'vertex', 'subtask')
    """

    part: WorkerPart
    vertex: Vertex
    subtask: int
    consumable: Callable[[Partition], object]  # called when there is something to read in a partition of the task
    running: Callable[[], object]
    failed: Callable[[HeadgateError], object]  # before others can learn of it
    ended: Callable[[HeadgateError | None], object]
    places: Mapping[Partition, int] = field(default_factory=dict)
    """The workers that have what the task reads, where those are not the ones that the plan has for their producers."""
    openings: list[Opening] = field(default_factory=list)
    _slices: Slices = field(init=False)
    _timer: TaskTimer = field(init=False)
    _writers: list[RecordWriter[Any]] = field(default_factory=list)
    _gates: list[InputGate] = field(default_factory=list)
    _counters: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What threads and error texts call the task."""
        return f"{self.vertex.name} ({self.subtask + 1}/{self.vertex.parallelism})"

    def set_up(self) -> RunningTask:
        """Make the task; it is not started yet, and its channels are not connected (`openings`)."""
        execution = self.part.plan.settings.execution
        self._slices = Slices(execution.time_slice.ns, execution.long_run_nice)
        self._timer = TaskTimer(self.part.environment.clock.now_ns, self._slices.ran)
        try:
            for exchange in self.part.plan.outputs(self.vertex.id):
                self._add_writer(exchange)
            reader, inputs = self._reader()
            return self._put_together(reader, inputs)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        for writer in self._writers:
            writer.close()
            self.part.environment.registry.release(writer.partition.id)
        for gate in self._gates:
            gate.release()
        for opening in self.openings:
            opening.give_up()

    def _add_writer(self, exchange: Exchange) -> None:
        environment, consumer = self.part.environment, self.part.plan.vertex(exchange.consumer)
        readers = exchange.consumers_of(self.subtask, self.vertex.parallelism, consumer.parallelism)
        name = Partition(self.vertex.id, exchange.output, self.subtask)
        selector = selector_of(exchange.ship, consumer.max_parallelism, environment.random.randrange)
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
        """The reader of all inputs, and for each of its channels the input that it belongs to."""
        environment, serializers, inputs = self.part.environment, [], []
        for exchange in self.part.plan.inputs(self.vertex.id):
            producer = self.part.plan.vertex(exchange.producer)
            subtasks = exchange.producers_of(self.subtask, producer.parallelism, self.vertex.parallelism)
            gate = environment.gate(f"{self.name}, from {producer.name}", channels=len(subtasks), timer=self._timer)
            self._gates.append(gate)
            for channel, producing in enumerate(subtasks):
                self._open(exchange, gate, channel, producing)
            serializers += [self.part.serializer(exchange)] * len(subtasks)
            inputs += [exchange.input] * len(subtasks)
        if not self._gates:
            return None, []
        gate_read: Gate = self._gates[0]
        if len(self._gates) > 1:
            gate_read = environment.union(self.name, self._gates, timer=self._timer)
        return environment.reader(gate_read, serializers), inputs

    def _open(self, exchange: Exchange, gate: InputGate, channel: int, producing: int) -> None:
        """A channel that is connected once its partition is consumable; its own buffers are set aside now."""
        plan = self.part.plan
        producer = plan.vertex(exchange.producer)
        name = Partition(producer.id, exchange.output, producing)
        readers = exchange.consumers_of(producing, producer.parallelism, self.vertex.parallelism)
        index = SubpartitionIndex(readers.index(self.subtask))
        worker = self.places.get(name, producer.workers(plan)[producing])
        remote = None
        if worker != self.part.index:
            remote = self.part.environment.remote_source(
                gate, self.part.id(name), index, worker=worker, lane=depth_of(plan, exchange)
            )
        self.openings.append(Opening(name, exchange.id, index, gate, channel, remote))

    def _put_together(self, reader: RecordReader[Any] | None, inputs: list[int]) -> RunningTask:
        planned, object_reuse = self.vertex.operators, self.part.plan.settings.execution.object_reuse
        loops: list[Loop] = []
        operators = [one.make() for one in planned]
        if self.part.plan.batch:
            operators = [one.in_batch() for one in operators]
        spill = self._spill()
        for operator, one in zip(operators, planned, strict=True):
            operator.place = Place(
                operator=one.name,
                subtask=self.subtask,
                parallelism=self.vertex.parallelism,
                max_parallelism=self.vertex.max_parallelism,
                wall_ms=wall_ms,
                logger=_user_log,
                object_reuse=object_reuse,
                wake=lambda: loops[0].interrupt(),  # noqa: PLW0108 - there is no loop yet
                counters=self._counters,
                spill=spill,
            )
        reads = [None if one.reads is None else (one.reads, one.tag) for one in planned]
        chain = Chain(operators, reads, object_reuse=object_reuse)
        for exchange, writer in zip(self.part.plan.outputs(self.vertex.id), self._writers, strict=True):
            chain.links[exchange.operator].leave_by(writer, exchange.tag)
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
            slices=self._slices,
        )
        return RunningTask(
            vertex=self.vertex,
            subtask=self.subtask,
            task=task,
            timer=self._timer,
            gates=tuple(self._gates),
            feeds=tuple(opening.feed for opening in self.openings),
            outputs=tuple(exchange.id for exchange in self.part.plan.outputs(self.vertex.id)),
            counters=self._counters,
            meter=TaskMeter(task, self._timer, self._gates, length_ms=moment_ms(self.part.plan.settings.metrics)),
        )

    def _spill(self) -> SpillSpace | None:
        """Where the task may put what does not fit in memory; in STREAMING everything stays there."""
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
        """What carries the records of one of the task's inputs, which may be several exchanges."""
        exchanges = [one for one in self.part.plan.inputs(self.vertex.id) if one.input == number]
        if all(one.hint == exchanges[0].hint for one in exchanges):
            return self.part.serializer(exchanges[0])
        return self.part.serializers.serializer_for("pickle", peer=self.part.peer)

    def _loop(self, chain: Chain, head: Operator, reader: RecordReader[Any] | None, inputs: list[int]) -> Loop:
        if reader is not None:
            portions = Portions(self.part.environment.clock.now_ns, self._timer)
            return InputLoop(reader, inputs, chain, self._writers, wall_ms, portions=portions)
        first = self.vertex.operators[0]
        assert first.source is not None, "a head without input has a source"
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
