"""The simulator finds bugs: each one planted here is found within a few seeds.

A bug is planted by patching the production code while seeds run in this process; nothing else is different.
"""

from collections import deque
from dataclasses import replace

import pytest

from headgate.buffer import Kind, network
from headgate.buffer.builder import BufferSlice
from headgate.buffer.pool import LocalPool
from headgate.errors import InvariantViolated
from headgate.input import InputGate, RemoteChannel, UnionGate, remote
from headgate.net import pump as pump_module
from headgate.net.connection import Connection
from headgate.net.intake import Intake
from headgate.net.outbox import Outbox
from headgate.net.peers import Peers
from headgate.net.pump import Pump
from headgate.net.time_limits import TimeLimits
from headgate.output import ResultPartition
from headgate.output.pipelined import PipelinedSubpartition
from headgate.record.spanning import SpanningReader
from headgate.testing import Fault, Simulation, draw_plan, fork
from headgate.testing.plan import SimPlan
from headgate.testing.simulation import failure_of
from headgate.wire import handshake, producer
from headgate.wire.codec import PLAIN_DATA
from headgate.wire.flow import Book, Ledger, When
from headgate.wire.half_open import HalfOpen
from headgate.wire.producer import ProducerSession, ProducerStream
from headgate.wire.states import ProducerState

BUGS = {}


def bug(*, within=50, says="", simulation=Simulation):
    """Register a function that plants a bug: how many seeds of what may it take, and what must the failure say?"""

    def register(plant):
        BUGS[plant.__name__] = plant, within, says, simulation
        return plant

    return register


def after(cls, name, also):
    """The method `name` of `cls`, with `also(self, result)` behind it, whose answer is the result."""
    original = getattr(cls, name)

    def changed(self, *args, **kwargs):
        return also(self, original(self, *args, **kwargs))

    return cls, name, changed


def sometimes(answer):
    """True once in `answer` calls."""
    count = 0

    def due():
        nonlocal count
        count += 1
        return count % answer == 0

    return due


# Credit.


@bug(says="segments are set aside for")
def a_credit_is_lost():
    original = RemoteChannel.recycle_locked

    def recycle_locked(self, segment, channel):
        before = self.unannounced
        wake = original(self, segment, channel)
        self.unannounced = before
        return wake

    return [(RemoteChannel, "recycle_locked", recycle_locked)]


@bug()
def a_credit_is_given_twice():
    return [after(RemoteChannel, "take_credit_locked", lambda _, credit: credit * 2)]


@bug()
def credit_is_granted_twice():
    original = Ledger.grant
    return [(Ledger, "grant", lambda self, credit: original(self, credit * 2))]


@bug()
def data_is_sent_without_credit():
    def spend(self):
        self.sent += 1

    return [(PipelinedSubpartition, "next_is_data", False), (Ledger, "spend", spend)]


@bug()
def nobody_counts_what_arrives():
    return [(Book, "receive", lambda self: None)]


# Memory.


@bug()
def a_slice_is_released_twice():
    original = BufferSlice.release_locked
    due = sometimes(5)

    def release_locked(self):
        wake = original(self)
        if due() and self.buffer.references == 0 and self.buffer.owner is not None:
            self.buffer.references = 1
            self.buffer.release_locked()
        return wake

    return [(BufferSlice, "release_locked", release_locked)]


@bug(says="share")
def sharing_out_is_off_by_one():
    original = network.share_out

    def share_out(spare, excess):
        shares = original(spare, excess)
        return [shares[0] + 1, *shares[1:]] if shares else shares

    return [(network, "share_out", share_out)]


@bug(says="share")
def sharing_out_loses_the_rest():
    def share_out(spare, excess):
        parts = [min(spare, wanted) for wanted in excess]
        whole = sum(parts)
        return [min(spare, whole) * part // whole for part in parts] if whole else parts

    return [(network, "share_out", share_out)]


@bug()
def a_floating_buffer_is_not_given_back():
    original = RemoteChannel._release_segments_locked

    def give_back_locked(self):
        self._floating.clear()
        return original(self)

    return [(RemoteChannel, "_release_segments_locked", give_back_locked)]


@bug()
def a_listener_is_dropped():
    due = sometimes(3)
    original = LocalPool.listen_locked

    def listen_locked(self, listener, channel=-1):
        if not due():
            original(self, listener, channel)

    return [(LocalPool, "listen_locked", listen_locked)]


@bug(says="segments")
def a_segment_leaks_when_a_subpartition_is_released():
    original = PipelinedSubpartition.release_locked

    def release_locked(self, cause=None):
        self._queue.clear()
        return original(self, cause)

    return [(PipelinedSubpartition, "release_locked", release_locked)]


@bug()
def a_buffer_is_used_again_before_it_is_written():
    original = Outbox.put

    def put(self, pieces):
        original(self, [(piece, None) for piece, _ in pieces])
        self.sent += [owned for _, owned in pieces if owned is not None]

    return [(Outbox, "put", put)]


@bug()
def what_was_being_filled_is_forgotten_with_the_connection():
    return [(Intake, "lose_locked", lambda self: None)]


@bug(within=1000, says="the ceiling is")
def the_watermark_is_ignored():
    return [(Outbox, "room_bytes", 1 << 30)]


@bug(says="pools are sure of")
def overdraft_takes_what_others_need():
    return [(network.NetworkPool, "try_take_spare_locked", network.NetworkPool.try_take_locked)]


# Wake-ups.


@bug()
def a_subpartition_does_not_notify_its_reader():
    def notify_locked(self):
        if not self.notified and self._listener is not None and self.available_locked():
            self.notified = True

    return [(PipelinedSubpartition, "notify_locked", notify_locked)]


@bug(says="deadlock")
def the_wake_up_of_an_announcement_is_lost():
    return [after(ProducerStream, "available_locked", lambda *_: None)]


@bug()
def a_gate_does_not_wake_its_reader():
    due = sometimes(4)
    return [after(InputGate, "wake_reader_locked", lambda _, wake: None if due() else wake)]


@bug(within=300)
def a_gate_does_not_announce_its_scheduled_credit():
    return [
        *[(gate, "_announce_all_locked", lambda self: None) for gate in (InputGate, UnionGate)],
        *[(InputGate, which, lambda self: None) for which in ("announce_to_starved_locked", "announce_all_locked")],
    ]


@bug()
def a_blocked_writer_is_not_woken():
    return [after(LocalPool, "serve_locked", lambda *_: None)]


@bug(within=100)
def nobody_asks_again_for_a_missing_partition():
    return [(Connection, "_retry", lambda self, channel, delay_ns: None)]


# The wire.


@bug()
def a_sequence_number_is_not_increased():
    due = sometimes(3)

    def sent(self, result):
        for stream in self.streams.values():
            if stream.sequence and due():
                stream.sequence -= 1
        return result

    return [after(ProducerSession, "data_to_send_locked", sent)]


@bug(says="a backlog of")
def the_backlog_counts_events():
    original = PipelinedSubpartition.add_locked

    def add_locked(self, reader):
        wake = original(self, reader)
        if reader.buffer.kind is Kind.EVENT:
            self.backlog += 1
        return wake

    return [(PipelinedSubpartition, "add_locked", add_locked)]


@bug(says="the queue was")
def the_backlog_is_told_one_too_low():
    class Low:
        @staticmethod
        def pack(length, kind, receiver, sequence, backlog, skew):
            return PLAIN_DATA.pack(length, kind, receiver, sequence, max(0, backlog - 1), skew)

    return [(producer, "PLAIN_DATA", Low)]


@bug()
def a_stream_that_has_ended_is_forgotten_too_early():
    def forget(self, result):
        for receiver, stream in list(self.streams.items()):
            if stream.state is ProducerState.ENDED:
                del self.streams[receiver]
        return result

    return [after(ProducerSession, "data_to_send_locked", forget)]


@bug(within=200, says="of another attempt was authenticated")
def a_handshake_does_not_ask_for_the_attempt():
    original = handshake._derived
    return [(handshake, "_derived", lambda secret, role, job, attempt: original(secret, role, job, 1))]


@bug(within=200)
def a_message_of_another_attempt_counts():
    return [(ProducerSession, "_stream", lambda self, what, receiver, attempt: self.streams[receiver])]


@bug(within=200)
def a_checksum_is_not_looked_at():
    return [(Intake, "_verify", lambda self, arriving: None)]


@bug()
def buffers_are_read_in_the_wrong_order():
    original = RemoteChannel.poll_locked

    def poll_locked(self):
        self._unread.rotate(1)
        return original(self)

    return [(RemoteChannel, "poll_locked", poll_locked)]


@bug()
def a_record_loses_its_place_in_the_next_buffer():
    due = sometimes(10)

    def close(self, found):
        if due() and self._gather is not None:
            self._gather = None
        return found

    return [after(SpanningReader, "next", close)]


@bug(within=200, says="were announced to its consumer")
def a_backlog_is_never_announced():
    original = ProducerSession._announce_backlog

    def announce_backlog(self, stream, supply, pieces, owners, wakes):
        original(self, stream, supply, [], [], wakes)

    return [(ProducerSession, "_announce_backlog", announce_backlog)]


@bug(within=200, says="were announced to its consumer")
def a_backlog_is_announced_once_however_much_it_grows():
    return [(producer, "is_backlog_announcement_due", lambda announced, backlog: not announced)]


@bug(says="can send, but does not stand in the queue")
def an_event_waits_for_credit():
    def can_send(ledger, supply):
        return ledger is None or ledger.sent < ledger.granted

    return [(producer, "can_send", can_send)]


@bug(within=200, says="for which it does not wait")
def a_channel_claims_nothing_for_its_backlog():
    return [(RemoteChannel, "_claim_locked", lambda self: False)]


@bug(within=200, says="could send, and was passed over")
def channels_do_not_take_turns():
    class Greedy(deque):
        append = deque.appendleft

    original = ProducerSession.__init__

    def begin(self, **kwargs):
        original(self, **kwargs)
        self.queue = Greedy()

    return [(ProducerSession, "__init__", begin)]


@bug(within=200, says="each may use")
def a_channel_takes_the_whole_pool():
    original = LocalPool.__init__

    def unlimited(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.max_per_channel = self.maximum

    return [(LocalPool, "__init__", unlimited)]


@bug(within=200, says="unread events count")
def unread_events_have_no_limit():
    return [(RemoteChannel, "has_room_for_event_locked", lambda self: True)]


@bug(within=200, says="unread events count")
def events_of_the_same_read_do_not_count_for_their_limit():
    original = Intake.begin

    def begin(self, frame, channel):
        complete, self._complete = self._complete, []
        placed = original(self, frame, channel)
        self._complete = complete
        return placed

    return [(Intake, "begin", begin)]


@bug(within=300, says="ended with ProducerFailed")
def the_text_of_a_cause_is_lost():
    original = producer.error_frame

    def without_text(receiver, error, *, ends=True):
        frame = original(receiver, error, ends=ends)
        return (8).to_bytes(4, "little") + frame[4:12]

    return [(producer, "error_frame", without_text)]


@bug(within=300, says="ended with ProducerFailed")
def the_text_of_a_cause_is_cut():
    return [(producer, "MAX_ERROR_TEXT_BYTES", 100)]


# Strangers.


def crowded(seed):
    """A simulation whose worker 0 has as many silent strangers as it may have, for longer than its peers may take."""
    plan = draw_plan(fork(seed, "plan"))
    plan = replace(plan, connect_timeout_ms=1_000, handshake_timeout_ms=max(5_000, plan.handshake_timeout_ms))
    return Simulation(seed, plan, [Fault("crowd of strangers", at_step=0, first=0, second=1, amount=0.0)])


def test_good_peers_connect_beside_a_crowd_of_strangers(monkeypatch):
    monkeypatch.undo()
    assert [failure for seed in range(50) if (failure := failure_of(crowded(seed)))] == []


@bug(within=300, says="connections are half-open; the limit is")
def there_is_no_limit_for_half_open_connections():
    return [(HalfOpen, "admit", lambda self, connection: self._waiting.__setitem__(connection, None))]


@bug(says="reason to", simulation=crowded)
def strangers_keep_good_peers_out():
    original = HalfOpen.admit

    def admit(self, connection):
        if len(self) < self.limit:
            return original(self, connection)
        return connection  # the newest goes

    return [(HalfOpen, "admit", admit)]


# Ends.


@bug()
def a_cancelled_channel_goes_on():
    return [(Pump, "_release_supply_locked", lambda self, request, cause: None)]


@bug(within=200)
def silence_is_not_noticed():
    return [(TimeLimits, "_fail", lambda self, text: None)]


@bug(within=100)
def a_lost_connection_fails_nobody():
    original = Pump.lose_locked

    def lose_locked(self, error):
        self.channels.clear()
        return original(self, error)

    return [(Pump, "lose_locked", lose_locked)]


@bug(within=300, says="are open")
def both_of_two_connections_are_kept():
    return [(Peers, "connected", lambda self, worker, lane: False)]


@bug(says="deadlock")
def credit_waits_for_more_than_there_is():
    return [(remote, "should_announce", lambda credit, unread, scheduled: When.NOW if credit >= 4 else When.NO)]


@bug(within=500, says="deadlock")
def without_credit_all_lanes_are_one():
    return [(SimPlan, "lane", lambda self, producer: 0)]


@bug()
def a_connection_is_never_closed():
    return [(Connection, "_close_if_unused", lambda self: None)]


@bug()
def a_partition_forgets_its_end():
    original = ResultPartition.finish

    def finish(self):
        original(self)
        for subpartition in self.subpartitions:
            if len(subpartition._queue) > 1:
                subpartition._queue = deque(list(subpartition._queue)[:-1])

    return [(ResultPartition, "finish", finish)]


@bug(within=300)
def a_payload_without_a_place_is_read_as_a_frame():
    original = pump_module.Decoder.feed

    def feed(self, data):
        for item in original(self, data):
            left = self._payload_left
            self._payload_left = 0
            yield item
            self._payload_left = left

    return [(pump_module.Decoder, "feed", feed)]


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    monkeypatch.undo()  # the leak fixture would complain, too
    plant, within, says, simulation = BUGS[name]
    for owner, attribute, value in plant():
        monkeypatch.setattr(owner, attribute, value)
    for seed in range(within):
        failure = failure_of(simulation(seed))
        if failure is not None:
            assert says in failure
            return
    pytest.fail(f"{name}: {within} seeds have not found it")


def test_there_are_enough_of_them():
    assert len(BUGS) >= 50
    assert InvariantViolated.__name__
