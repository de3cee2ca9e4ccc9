"""Flow control: how credit is counted, when it is announced, and when a stream sends.

**Facts.** All channels between two workers share one connection. A consumer that is slow on one channel must not stop
the others, so TCP's own flow control, which stops the whole connection, cannot be used. A receiver has a bounded number
of buffers, and a buffer that arrives must have a place: the receiver copies it once, into a segment it has reserved.

**Problem.** The sender must never send a buffer for which no segment is reserved, and must never wait while one is. The
receiver does not know how much the sender has; the sender does not know how much memory the receiver has. Each message
between them costs two system calls and, on a busy machine, a switch between threads. A message per buffer is correct
and slow; a message per hundred buffers is cheap and leaves the sender without credit for most of the time.

**Solution.** The receiver reserves segments and announces each of them as one *credit*. The sender spends a credit for
every data buffer, and sends with every buffer its *backlog*: how many data buffers still wait. The receiver reserves
`backlog + exclusive` segments for the channel if its gate has so many:

    producer                                                consumer
    subpartition: backlog = 5                               channel: 2 exclusive segments, 0 floating
        request(credit=2)  <-----------------------------   the exclusive segments are the first credit
        Data(backlog=4)    ----------------------------->   wants 4 + 2 segments, has 1: claims 5 floating ones
        Data(backlog=3)    ----------------------------->
        AddCredit(5)       <-----------------------------   ... and announces them
        Data(backlog=2) .. ----------------------------->   the reader polls, recycles, announces again

`Ledger` is the sender's count, `Book` the receiver's. Always holds

    sent <= granted <= promised        and        received <= sent

because a credit is promised before its frame is written, granted when the frame is read, and spent when a buffer is
sent. The receiver keeps `ready segments = promised - received + unannounced`.

*A sender without credit* sends no buffer that could carry its backlog. It announces the backlog with a frame of its
own, `AnnounceBacklog`, when the consumer knows of none, and again whenever it has doubled: at most log2(n) + 1 frames
for n buffers, and the consumer always knows of more than half of them. An event (a barrier, the end) needs no credit,
for it is small and must not wait for memory; unread events of a channel are bounded by their bytes instead.

*Announcing credit* is cheap when it is shared, so it is delayed, and each delay ends by a named trigger:

    decision of `should_announce`     what ends the delay
    NO, the reader has unread         each buffer the reader recycles asks again; the poll of the last one asks too
       buffers on this channel
    NO, already scheduled             as LATER: the trigger of the first decision counts
    LATER (the channel is scheduled   1. so many channels are scheduled that a frame is worthwhile (`should_flush`);
       at its peer)                   2. the reader polls the last buffer it has while a producer is out of credit
                                      3. the reader is about to block, or found nothing to poll
                                      4. another frame is sent to that peer: the same write announces the credit
    NOW                               none: the network thread is woken

The triggers 2 and 3 run on the reader's thread. While that thread is blocked none of them would fire, so credit that
another thread creates meanwhile (a lent buffer is collected, a channel beside it gives a floating buffer back) is
announced NOW.

*Sending* is delayed alike. A task that fills buffers for many channels would wake the network thread for each of them;
so the first buffer only asks for a flush LATER, and NOW is asked for when data was flushed (a latency was promised) or
so many streams have data that waiting for more does not pay. Before a flush for which the credit is short, the sending
thread polls the network first (`When.POLL_FIRST`): the credit may have arrived and be unread, and two half flushes
would wake the peer's reader twice.

The mechanism is the one of Flink's credit-based exchange; its parts are found here:

    mechanism                          here
    exclusive buffers                  `RemoteChannel.exclusive`; sent as the first credit of `RequestPartition`
    floating buffers                   `RemoteChannel._floating`, claimed from the gate's `LocalPool`: `missing_buffers`
    giving a floating buffer back      `has_surplus`, when an exclusive one is recycled and the backlog has shrunk
    waiting for a floating buffer      `BufferListener`: the pool offers the next recycled segment to the channel
    backlog                            `PipelinedSubpartition.backlog`, in the head of every `Data` frame
    credit                             `RemoteChannel.unannounced` -> `Book.promise` -> `AddCredit` -> `Ledger.grant`
    credit notification, coalesced     `should_announce` (one channel), `should_flush` (all channels of a peer)
    announcement with zero credit      `is_backlog_announcement_due`, `AnnounceBacklog`; answered by `answer_backlog`
    queue of available readers         `ProducerSession.queue`: one buffer per stream and round; `SendState`
    events bypass credit               `can_send`; bounded by `has_room_for_event`
    writability (watermarks)           `net.outbox`: buffers are taken from partitions only while the socket takes bytes

Everything here is a pure function of small values, or plain counting. The callers hold the exchange lock. The functions
run once per buffer, never per record.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from headgate.errors import InvariantViolated, RemoteProtocolError
from headgate.wire.frames import MAX_BACKLOG, MAX_CREDIT

if TYPE_CHECKING:
    from headgate.wire.supply import Supply

__all__ = [
    "BACKLOG_GROWTH",
    "CHANNEL_SHARE",
    "ENOUGH_CHANNELS",
    "ENOUGH_CREDIT",
    "ENOUGH_STREAMS",
    "EVENT_OVERHEAD_BYTES",
    "MAX_UNREAD_EVENT_BYTES",
    "STREAM_SHARE",
    "Book",
    "Ledger",
    "SendState",
    "When",
    "answer_backlog",
    "can_receive_events_again",
    "can_send",
    "enough_streams",
    "has_room_for_event",
    "has_surplus",
    "is_backlog_announcement_due",
    "is_out_of_credit",
    "missing_buffers",
    "should_announce",
    "should_flush",
    "should_send",
]

# Every threshold of the policy. The number of exclusive and floating buffers are settings (`network.*`), the greatest
# credit and backlog are limits of the format (`wire.frames`).

ENOUGH_CREDIT: Final = 4
"""Credits of one channel that are announced at once: the producer sends them while the reader reads what it has. With 1
every recycled buffer is a frame; with more than a channel usually has (2 exclusive + its share of 8 floating buffers)
the number is not reached, and the producer waits for the reader's last buffer."""

ENOUGH_CHANNELS: Final = 8
"""Scheduled channels of one peer whose credit is announced at once, in one write, while their readers read on."""

CHANNEL_SHARE: Final = 16
"""... but not fewer than one in so many of all channels of the peer. With hundreds of channels more of them will have
credit within the same read, and each producer task has many other channels to fill meanwhile."""

ENOUGH_STREAMS: Final = 8
"""Streams of one connection with something to send for which the network thread is woken. A task that writes to many
channels never blocks for a buffer, and so would never poll the network itself."""

STREAM_SHARE: Final = 32
"""... but not fewer than one in so many of all streams of the connection: more will have a buffer soon."""

BACKLOG_GROWTH: Final = 2
"""Factor by which a backlog grows before it is announced again without credit: the consumer knows of more than half."""

MAX_UNREAD_EVENT_BYTES: Final = 1024 * 1024
"""Bytes of events of one channel that may be unread before the connection stops reading. Events need no credit."""

EVENT_OVERHEAD_BYTES: Final = 256
"""What an unread event counts beside its bytes: its objects in memory."""

_EVENT_LOW_SHARE: Final = 2  # reading resumes when no more than 1 / so much of the limit is unread: not for each event


class When(Enum):
    """When a frame is sent. Both policies answer with it; a connection keeps it for its next flush.

    >>> should_announce(credit=4, unread=9, scheduled=True)
    <When.NOW: 3>
    """

    NO = auto()
    """Not because of this call. The module's essay names the trigger that follows."""
    LATER = auto()
    """With the next frame to that peer, or by one of the triggers."""
    NOW = auto()
    """As soon as the network thread can."""
    POLL_FIRST = auto()
    """As NOW, but the calling thread polls the network before: credit may have arrived and be unread."""


_NO, _LATER, _NOW, _POLL_FIRST = When.NO, When.LATER, When.NOW, When.POLL_FIRST


class SendState(Enum):
    """Whether a stream has something to send, and may.

        from       by                                                   to
        IDLE       the supply notifies the stream, and `can_send`        QUEUED
        IDLE       the supply notifies; no credit, backlog not known     QUEUED (to announce the backlog)
        IDLE       the supply notifies; no credit, backlog known         STARVED
        STARVED    credit is granted                                     QUEUED
        STARVED    the backlog has doubled, or the supply has failed     QUEUED
        QUEUED     a flush polls the supply, and nothing is left         IDLE
        QUEUED     a flush polls the supply, more is left, `can_send`    QUEUED (behind the other streams)
        QUEUED     a flush has spent the last credit, or announced       STARVED
                   the backlog
        QUEUED     a flush finds that the stream has ended               IDLE

    A connection keeps a `When` beside: for when its next flush is posted. It is NO until the first stream is QUEUED or
    the first channel scheduled, LATER or NOW until the network thread begins the flush, and NO again.

    `Supply.notified` is another thing: it belongs to the queue of buffers, whose reader may be a stream or a gate of
    this worker, and is True while the reader need not be called again. So a writer adds most buffers without a call.
    """

    IDLE = auto()
    """There is nothing to poll, or the stream has no supply."""
    STARVED = auto()
    """There is data, no credit for it, and the consumer knows of the backlog: the next step is the consumer's."""
    QUEUED = auto()
    """The stream is in the session's queue."""


# Counting.


class Ledger:
    """The sender's count of one channel's credit.

    >>> ledger = Ledger(initial=2)
    >>> ledger.spend(); ledger.spend(); ledger.available
    0
    >>> ledger.grant(3); ledger.available
    3
    """

    __slots__ = ("granted", "sent")

    def __init__(self, initial: int) -> None:
        self.granted = initial
        self.sent = 0

    @property
    def available(self) -> int:
        """How many buffers may be sent now."""
        return self.granted - self.sent

    def grant(self, credit: int) -> None:
        """Count credit that the receiver has announced.

        Raises:
            RemoteProtocolError: it is less than 1, or more than `MAX_CREDIT` would be available.
        """
        granted = self.granted + credit
        if credit < 1:
            raise RemoteProtocolError(f"a credit of {credit}")
        if granted - self.sent > MAX_CREDIT:
            raise RemoteProtocolError(f"a credit of {credit} on top of {self.available}: the limit is {MAX_CREDIT}")
        self.granted = granted

    def spend(self) -> None:
        """Count a buffer that is sent."""
        if self.sent >= self.granted:
            raise InvariantViolated("a buffer is sent without credit")
        self.sent += 1


class Book:
    """The receiver's count of one channel's credit.

    >>> book = Book(initial=2)
    >>> book.receive(); book.outstanding
    1
    >>> book.promise(3); book.outstanding
    4
    """

    __slots__ = ("promised", "received")

    def __init__(self, initial: int) -> None:
        self.promised = initial
        self.received = 0

    @property
    def outstanding(self) -> int:
        """Credit at the sender or on its way there: so many segments must be reserved."""
        return self.promised - self.received

    def promise(self, credit: int) -> None:
        """Count reserved segments that are about to be announced."""
        promised = self.promised + credit
        if credit < 1 or promised - self.received > MAX_CREDIT:
            raise InvariantViolated(f"a credit of {credit} is announced on top of {self.outstanding}")
        self.promised = promised

    def receive(self) -> None:
        """Count a buffer that has arrived.

        Raises:
            RemoteProtocolError: none was promised any more.
        """
        if self.received >= self.promised:
            raise RemoteProtocolError("data came without credit")
        self.received += 1


# The receiver: buffers.


def missing_buffers(backlog: int, exclusive: int, ready: int) -> int:
    """Return how many floating buffers a channel should claim; 0 or less: none.

    `ready` segments are reserved; wanted is one for each waiting buffer, and the exclusive ones beside, so that the
    producer still has credit when it has sent all.

    >>> missing_buffers(backlog=3, exclusive=2, ready=2)
    3
    """
    return backlog + exclusive - ready


def has_surplus(backlog: int, exclusive: int, ready: int) -> bool:
    """Return True if a channel should give a floating buffer back: another channel of the gate may need it.

    >>> has_surplus(backlog=0, exclusive=2, ready=3)
    True
    """
    return ready > backlog + exclusive


def has_room_for_event(unread_bytes: int, limit_bytes: int) -> bool:
    """Return True if the channel may receive another event."""
    return unread_bytes <= limit_bytes


def can_receive_events_again(unread_bytes: int, limit_bytes: int) -> bool:
    """Return True if a connection that has stopped reading for the unread events of a channel should resume."""
    return unread_bytes <= limit_bytes // _EVENT_LOW_SHARE


# The receiver: announcing credit.


def should_announce(credit: int, unread: int, scheduled: bool) -> When:
    """Return when `credit` of one channel, which has just grown, is announced: NO, LATER or NOW.

    Args:
        credit: reserved segments that were not announced.
        unread: received buffers of the channel whose polling will ask again; 0 if the credit was claimed for a backlog.
        scheduled: True if the channel is scheduled at its peer already.

    >>> should_announce(credit=1, unread=3, scheduled=False), should_announce(credit=1, unread=1, scheduled=False)
    (<When.NO: 1>, <When.LATER: 2>)
    """
    if credit >= ENOUGH_CREDIT:
        return _NOW
    return _NO if scheduled or credit < unread or not credit else _LATER


def should_flush(scheduled: int, channels: int, reader_blocked: bool) -> When:
    """Return NOW if the scheduled channels of a peer should be announced, else LATER.

    Args:
        scheduled: channels of the peer with credit to announce.
        channels: all channels that are read from the peer.
        reader_blocked: True if the reader of the latest one is blocked: it will not trigger the announcement.

    >>> should_flush(scheduled=8, channels=100, reader_blocked=False)
    <When.NOW: 3>
    >>> should_flush(scheduled=8, channels=1000, reader_blocked=False)
    <When.LATER: 2>
    """
    if reader_blocked or (scheduled >= ENOUGH_CHANNELS and scheduled * CHANNEL_SHARE >= channels):
        return _NOW
    return _LATER


def answer_backlog(credit: int) -> When:
    """Return when credit is announced after an `AnnounceBacklog`: NOW, for that producer has none left.

    NO without credit: the channel has claimed what is free and waits for the pool, whose offer asks again.
    """
    return _NOW if credit else _NO


def is_out_of_credit(ready: int, unannounced: int) -> bool:
    """Return True if the producer has no credit left: all reserved segments are unannounced.

    >>> is_out_of_credit(ready=3, unannounced=3), is_out_of_credit(ready=3, unannounced=2)
    (True, False)
    """
    return ready <= unannounced


# The sender.


def can_send(ledger: Ledger | None, supply: Supply) -> bool:
    """Return True if the stream may poll its supply: it has credit, or the next element is an event or an error.

    `ledger` is None without flow control by credit. `supply.next_is_data` costs more than the counts, so it is last.
    """
    return ledger is None or ledger.sent < ledger.granted or not supply.next_is_data


def is_backlog_announcement_due(announced: int, backlog: int) -> bool:
    """Return True if a stream without credit should announce its backlog, of which `announced` is known already.

    >>> [backlog for backlog in range(1, 20) if is_backlog_announcement_due(4, backlog)][0]
    8
    >>> is_backlog_announcement_due(announced=0, backlog=1)
    True
    """
    return backlog > 0 and backlog >= BACKLOG_GROWTH * announced and announced < MAX_BACKLOG


def enough_streams(streams: int) -> int:
    """Return how many of the streams of a connection must have something to send to wake the network thread.

    >>> enough_streams(10), enough_streams(320)
    (8, 10)
    """
    return max(ENOUGH_STREAMS, streams // STREAM_SHARE)


def should_send(urgent: bool, short_of_credit: bool, queued: int, enough: int) -> When:
    """Return when the connection is flushed for a stream that has just got something to send.

    Args:
        urgent: True if its data was flushed, or is an event: it must not wait for more.
        short_of_credit: True if the stream has less credit than data buffers.
        queued: streams in the session's queue with this one; 0 if it was in the queue before.
        enough: `enough_streams` of the connection.

    Of the streams that are not urgent the first asks for a flush, and the one that makes them enough for a flush at
    once. The others rely on the first.

    >>> [should_send(False, False, queued, 8).name for queued in (1, 2, 8, 9)]
    ['LATER', 'NO', 'POLL_FIRST', 'NO']
    """
    if urgent:
        return _POLL_FIRST if short_of_credit else _NOW
    if queued == 1:
        return _LATER
    return _POLL_FIRST if queued == enough else _NO
