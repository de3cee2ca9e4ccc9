"""The invariants of the exchange: those that hold after every action, and those that hold at the end.

The simulation calls `check_worker` for the worker whose action has just run, `check_credit` for both ends of every
connection after each 16th action, and `check_at_rest` when all tasks are done. Each raises InvariantViolated with the
numbers that do not add up. `wait_for_graph` describes what each task waits for when nothing is scheduled any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headgate.buffer import Kind
from headgate.errors import InvariantViolated
from headgate.input import RemoteChannel, RemoteState
from headgate.input.channel import ChannelState
from headgate.net.connection import Connection
from headgate.output.pipelined import SubpartitionState
from headgate.testing.tap import Direction
from headgate.wire.codec import PLAIN_DATA
from headgate.wire.flow import EVENT_OVERHEAD_BYTES
from headgate.wire.states import ConnectionState, ConsumerState, ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.buffer import Limits, LocalPool
    from headgate.input import InputGate, UnionGate
    from headgate.output.pipelined import PipelinedSubpartition
    from headgate.testing.simstream import SimStream
    from headgate.testing.worker import SimWorker
    from headgate.testing.workload import SimTask
    from headgate.wire import ConsumerStream, ProducerStream

__all__ = ["check_at_rest", "check_closed", "check_credit", "check_worker", "wait_for_graph"]

_DATA, _OPEN = Kind.DATA, ConnectionState.OPEN


def check_worker(worker: SimWorker) -> None:
    """Check the memory, partitions, gates and connections of one worker."""
    _check_memory(worker)
    for partition in worker.partitions:
        for subpartition in partition.subpartitions:
            _check_subpartition(subpartition)
    for gate in worker.gates:
        _check_gate(gate)
    for union in worker.unions:
        _check_union(union)
    for connection in worker.network.connections:
        _check_connection(connection, worker)
    half_open, limit = worker.network._port.half_open, worker.plan.max_half_open
    if half_open > limit:
        raise InvariantViolated(f"{worker.actor.name}: {half_open} connections are half-open; the limit is {limit}")
    _check_pairs(worker)


def _check_pairs(worker: SimWorker) -> None:
    """Check that two workers have one connection in each group (lane), not counting those that are closing."""
    if worker.deceived:
        return
    found = set()
    for connection in worker.network.connections:
        stream = cast("SimStream", connection._stream)
        other = stream.other.handler
        if connection.state is _OPEN and isinstance(other, Connection) and other.state is _OPEN:
            host, lane = stream.there.host, connection.lane
            if worker.plan.credited and lane:
                raise InvariantViolated(f"{worker.actor.name}: there is a lane {lane} to {host}, though with credit")
            if (host, lane) in found:
                raise InvariantViolated(f"{worker.actor.name}: two connections with {host} are open in lane {lane}")
            found.add((host, lane))


def _check_memory(worker: SimWorker) -> None:
    memory, held = worker.memory, 0
    free = len(memory.free)
    for pool in worker.pools:
        held += pool.held
        _check_pool(pool, free, worker.plan.limits)
    if free + held + memory._exclusive != memory.total:
        raise InvariantViolated(
            f"{worker.actor.name}: {free} free + {held} held by pools + {memory._exclusive} exclusive segments "
            f"are not {memory.total}"
        )
    own = sum([remote._own for remote in worker.remotes])
    if own != len(memory.exclusive_free):
        raise InvariantViolated(
            f"{worker.actor.name}: {len(memory.exclusive_free)} exclusive segments are free, but channels count {own}"
        )
    sizes = maxima = promised = 0
    for pool in memory._pools:
        sizes += pool.size
        maxima += pool.maximum
        promised += max(0, pool.required - pool.held)
    if promised > free and not memory.squeezed and not any(pool.destroyed and pool.held for pool in worker.pools):
        raise InvariantViolated(
            f"{worker.actor.name}: pools are sure of {promised} segments more than they hold, but {free} are free"
        )
    if sizes != min(memory.total - memory._exclusive, maxima):
        raise InvariantViolated(
            f"{worker.actor.name}: pools of at most {maxima} segments share {sizes} of {memory.total}, of which "
            f"{memory._exclusive} are exclusive"
        )


def _check_pool(pool: LocalPool, free: int, limits: Limits) -> None:
    available, in_use = len(pool._available), sum(pool._in_use)
    if pool.held != available + in_use:
        raise InvariantViolated(f"{pool!r}: {available} available + {in_use} in use")
    if available and pool.held > pool.size:
        raise InvariantViolated(f"{pool!r} keeps {available} segments past its size")
    most = limits.max_buffers_per_channel + limits.max_overdraft_buffers
    if len(pool._in_use) > 1 and max(pool._in_use[:-1]) > most:
        raise InvariantViolated(f"{pool!r}: its channels use {pool._in_use[:-1]} segments; each may use {most}")
    if pool.held > pool.maximum + pool.overdraft:
        raise InvariantViolated(f"{pool!r} holds more than its maximum and its overdraft of {pool.overdraft}")
    if pool._listeners and (available or (pool.held < pool.size and free)):
        limit = pool.max_per_channel
        waiting = [channel for _, channel in pool._listeners if channel < 0 or pool._in_use[channel] < limit]
        if waiting:
            raise InvariantViolated(f"{pool!r}: channels {waiting} wait, though there is a segment for them")


def _check_subpartition(subpartition: PipelinedSubpartition) -> None:
    queue = subpartition._queue
    if not queue and not subpartition.backlog:
        return
    count = sum([reader.buffer.kind is _DATA for reader in queue])
    if subpartition.backlog != count:
        raise InvariantViolated(f"{subpartition._where}: a backlog of {subpartition.backlog}, but {count} buffers")
    finished = queue[0].buffer.marker < 0
    if len(queue) > 1 and not finished:
        raise InvariantViolated(f"{subpartition._where}: an unfinished buffer in front of others")
    if (finished or len(queue) > 1) and subpartition._listener is not None and not subpartition.notified:
        raise InvariantViolated(f"{subpartition._where}: {len(queue)} buffers were not announced to its reader")


def _check_gate(gate: InputGate) -> None:
    queue = gate._queue
    queued = 0
    for channel in gate.channels:
        queued += channel.queued and channel.state is not ChannelState.RELEASED
        if channel.state is ChannelState.READING and not channel.queued:
            polled = channel.polled
            if polled is not None and polled.notified and gate.failure is None:
                raise InvariantViolated(f"gate {gate.name}: channel {channel.index} has data, but is not queued")
    if gate.failure is None:
        if queued != len(queue) or len(set(queue)) != queued:
            raise InvariantViolated(f"gate {gate.name}: {queued} channels are queued, but {len(queue)} in the queue")
        if queue and gate._blocked_reader is not None:
            raise InvariantViolated(f"gate {gate.name}: its reader sleeps, though {queued} channels have data")


def _check_union(union: UnionGate) -> None:
    if union.failure is not None:
        return
    if union._queue and union._blocked_reader is not None:
        raise InvariantViolated(f"union {union.name}: its reader sleeps, though {len(union._queue)} gates have data")
    for gate in union.gates:
        if gate.has_data and not gate.queued:
            raise InvariantViolated(f"union {union.name}: gate {gate.name} has data, but is not queued")


def _check_connection(connection: Connection, worker: SimWorker) -> None:
    pump = connection.pump
    for channel, stream in pump.channels.items():
        book = stream.book
        if book is not None and channel.state is RemoteState.RECEIVING and stream.state is ConsumerState.RECEIVING:
            ready = channel._own + len(channel._floating)
            if ready != book.outstanding + channel.unannounced:
                raise InvariantViolated(
                    f"{channel}: {ready} segments are set aside for {book.outstanding} credits at its producer "
                    f"and {channel.unannounced} to announce"
                )
            _check_claims(connection, channel)
        _check_events(channel)
    for sending in pump.producer.streams.values():
        ledger, supply = sending.ledger, sending.supply
        if ledger is not None and not 0 <= ledger.sent <= ledger.granted:
            raise InvariantViolated(f"{sending}: {ledger.sent} sent of {ledger.granted} granted")
        if (
            supply is not None
            and sending.state is ProducerState.SENDING
            and not sending.queued
            and supply.notified
            and (ledger is None or ledger.sent < ledger.granted or not supply.next_is_data)
        ):
            raise InvariantViolated(f"{sending} can send, but does not stand in the queue")
        _check_backlog(connection, sending)
    _check_outbox(connection, worker)


def _check_claims(connection: Connection, channel: RemoteChannel) -> None:
    """Check that a channel with a backlog has all segments that it wants, or has requested them from the gate's pool.

    Together with `_check_pool`, which lets no request wait while there is a segment, this proves: if floating segments
    are free and a backlog was announced, credit is granted.
    """
    arriving = connection.pump._intake._arriving
    filling = arriving is not None and arriving.channel is channel  # it requests segments when that is complete
    missing = channel._missing() - filling
    if missing > 0 and not channel._listening and not channel._pool.destroyed:
        raise InvariantViolated(
            f"{channel}: with a backlog of {channel.backlog} {missing} segments are missing, for which it does not wait"
        )


def _check_events(channel: RemoteChannel) -> None:
    """Check that the unread events of a channel, except the last one, are within their limit."""
    if channel._event_bytes <= channel._max_event_bytes:
        return
    events = [len(one.memory) + EVENT_OVERHEAD_BYTES for one in channel._unread if one.kind is not _DATA]
    if sum(events[:-1]) > channel._max_event_bytes:
        raise InvariantViolated(
            f"{channel}: {len(events)} unread events count {sum(events)} bytes; the limit is {channel._max_event_bytes}"
        )


def _check_backlog(connection: Connection, sending: ProducerStream) -> None:
    """Check that the consumer of a stream with data and no credit was sent more than half of its backlog."""
    ledger, supply, stream = sending.ledger, sending.supply, cast("SimStream", connection._stream)
    tap = stream.tap
    if (
        supply is None
        or ledger is None
        or ledger.sent < ledger.granted
        or sending.queued  # it will send, or announce its backlog
        or sending.state is not ProducerState.SENDING
        or connection._outbox.waiting_bytes
        or not isinstance(tap, Direction)
        or stream.over
        or stream.other.over  # it takes bytes that no tap sees
        or not supply.notified
        or not supply.next_is_data
    ):
        return
    known = tap.known_backlog(sending.receiver)
    if known is not None and 2 * known <= supply.backlog:
        raise InvariantViolated(
            f"{sending}: without credit, {supply.backlog} buffers wait, of which {known} were announced to its consumer"
        )


def _check_outbox(connection: Connection, worker: SimWorker) -> None:
    """Check that all `Data` frames that wait for the socket, except the last one, are below the high mark."""
    outbox, high_bytes = connection._outbox, worker.plan.high_mark * worker.plan.segment_size
    if outbox.waiting_bytes < high_bytes:
        return
    pieces = zip(outbox._pieces, outbox._owners, strict=True)
    payloads = [len(piece) for piece, owned in pieces if owned is not None]
    waiting_bytes = sum(payloads[:-1]) + PLAIN_DATA.size * max(0, len(payloads) - 2)  # the first head may be written
    if waiting_bytes >= high_bytes:
        raise InvariantViolated(
            f"connection with {connection.peer}: {waiting_bytes} bytes wait before the last frame; the ceiling is "
            f"{high_bytes}"
        )


def check_credit(ours: Connection, theirs: Connection) -> None:
    """Check received <= sent <= granted <= announced for all streams that `theirs` sends to `ours`."""
    streams = theirs.pump.producer.streams
    for receiver, stream in ours.pump.consumer.streams.items():
        sending = streams.get(receiver)
        if stream.book is None or sending is None or sending.ledger is None:
            continue
        promised, granted = stream.book.promised, sending.ledger.granted
        sent, received = sending.ledger.sent, stream.book.received
        if not received <= sent <= granted <= promised:
            raise InvariantViolated(
                f"{stream}: {received} received, {sent} sent, {granted} granted, {promised} announced"
            )


def check_closed(worker: SimWorker) -> None:
    """Check that every connection has ended."""
    if worker.network.connections:
        left = [f"{one.peer} ({one.state.name})" for one in worker.network.connections]
        raise InvariantViolated(f"{worker.actor.name}: connections are left: {', '.join(left)}")


def check_at_rest(worker: SimWorker) -> None:
    """Check that every segment is free, every connection has ended, and no peer has channels left."""
    memory = worker.memory
    if len(memory.free) != memory.total or memory._exclusive or len({id(one) for one in memory.free}) != memory.total:
        holders = [repr(pool) for pool in worker.pools if pool.held]
        raise InvariantViolated(
            f"{worker.actor.name}: {len(memory.free)} of {memory.total} segments are back, {memory._exclusive} are "
            f"exclusive; pools: {', '.join(holders) or 'none'}"
        )
    check_closed(worker)
    for peer in worker.network.peers:
        if peer._channels or peer._scheduled:
            raise InvariantViolated(f"{worker.actor.name}: {peer} remembers {len(peer._channels)} channels")


# The wait-for graph.


def wait_for_graph(tasks: Iterable[SimTask], workers: Iterable[SimWorker]) -> str:
    """Return a text: what each unfinished task waits for, and the state of gates, partitions and connections.

    >>> wait_for_graph([], [])
    'no task waits'
    """
    lines = [f"{task} -> {task.waits_for or 'its next step'}" for task in tasks if not task.done]
    for worker in workers:
        for gate in worker.gates:
            lines += _gate_lines(gate, worker)
        for partition in worker.partitions:
            for one in partition.subpartitions:
                if one.state is not SubpartitionState.RELEASED:
                    reader = "a reader" if one._listener is not None else "no reader"
                    lines.append(
                        f"  {one._where} ({one.state.value}): {len(one._queue)} queued, backlog {one.backlog}, "
                        f"{'notified' if one.notified else 'not notified'}, {reader}"
                    )
        lines += [f"  pool {pool!r}, {len(pool._listeners)} waiting" for pool in worker.pools if pool.held]
        lines += [line for one in worker.network.connections for line in _connection_lines(one, worker)]
    return "\n".join(lines) or "no task waits"


def _gate_lines(gate: InputGate, worker: SimWorker) -> list[str]:
    lines = []
    for channel in gate.channels:
        source = channel.source
        if channel.state in {ChannelState.ENDED, ChannelState.RELEASED}:
            continue
        where = f"  gate {gate.name} of worker {worker.number}, channel {channel.index} ({channel.state.value})"
        if isinstance(source, RemoteChannel):
            lines.append(f"{where} -> {source}: {source.statistics()}, exclusive {source.exclusive}")
        else:
            lines.append(f"{where} -> a partition of its own worker")
    return lines


def _connection_lines(connection: Connection, worker: SimWorker) -> list[str]:
    outbox = connection._outbox
    state = f"{outbox.waiting_bytes} bytes wait{', the stream is blocked' if outbox.blocked else ''}"
    state += ", reading has stopped" if connection._unread is not None else ""
    lines = [f"  worker {worker.number} -> {connection.peer} ({connection.state.name}): {state}"]
    for stream in connection.pump.producer.streams.values():
        credit = "none" if stream.ledger is None else f"{stream.ledger.available}"
        lines.append(
            f"    sends {stream} ({stream.state.name}): credit {credit}, {'' if stream.queued else 'not '}queued"
        )
    return lines + [
        f"    receives {stream} ({stream.state.name}): {_book(stream)}"
        for stream in connection.pump.consumer.streams.values()
    ]


def _book(stream: ConsumerStream[RemoteChannel]) -> str:
    return (
        "no credit"
        if stream.book is None
        else f"{stream.book.outstanding} credits out, {stream.book.received} received"
    )
