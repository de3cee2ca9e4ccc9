"""A remote channel to test with: its pools, what the network thread does to it, and what a reader does."""

from tests.support_buffers import PATIENCE_S, make_network

from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import RemoteChannel
from headgate.record import EndOfPartition
from headgate.record.element import encode_event

SIZE = 128
WHERE = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(3)


class Outlet:
    """Remembers which channel was due and whether it was in a hurry."""

    def __init__(self):
        self.due = []
        self.woken = 0

    def due_locked(self, channel, urgent):
        self.due.append(urgent)
        return self._wake

    def hurry_locked(self):
        return None

    rest_locked = hurry_locked

    def _wake(self):
        self.woken += 1


class Reader:
    """The channel of a gate, as far as a source knows it."""

    def __init__(self):
        self.told = 0

    asleep = False

    def available_locked(self):
        self.told += 1


class Remote:
    """A remote channel with its pools, what the network thread does to it, and what a reader does."""

    def __init__(self, exclusive=2, floating=4, *, segments=16, backoff=None, begin=True, required=0, beside=None):
        if beside is None:
            self.memory = make_network(segments, SIZE)
            self.pool = self.memory.create_pool("gate", required=required, maximum=floating)
        else:  # another channel of the same gate
            self.memory, self.pool = beside.memory, beside.pool
        own = None if exclusive is None else self.memory.request_exclusive("gate", exclusive, timeout_s=PATIENCE_S)
        self.outlet, self.reader = Outlet(), Reader()
        self.channel = RemoteChannel(*WHERE, self.outlet, self.memory, self.pool, exclusive=own, backoff=backoff)
        self.at_producer = 0  # credit that is with the producer, or on its way there
        if begin:
            self.connect()
            self.request()

    def locked(self, function, *args, **named):
        with self.memory.lock:
            result = function(*args, **named)
        wake = result[1] if isinstance(result, tuple) else result
        if callable(wake):
            wake()
        return result

    @property
    def now(self):
        with self.memory.lock:
            return self.channel.statistics_locked()

    def connect(self):
        self.locked(self.channel.request_locked, self.reader, 0)

    # The network thread.

    def request(self):
        """The producer is asked."""
        self.channel.due = False
        self.outlet.due.clear()
        self.locked(self.channel.requested_locked)
        self.at_producer = self.channel.credit or 0

    def announce(self):
        """All credit that there is to announce."""
        self.channel.due = False
        credit = self.locked(self.channel.take_credit_locked)
        self.at_producer += credit
        return credit

    def arrive(self, data=b"data", *, backlog=0, skew=0):
        """A buffer, as it comes over the network."""
        with self.memory.lock:
            buffer = self.channel.take_buffer_locked()
        if buffer is None:
            return False
        buffer.memory[skew : skew + len(data)] = data
        self.at_producer -= 1
        self.locked(self.channel.arrive_locked, buffer, len(data), skew, backlog)
        return True

    def event(self, event=None, *, backlog=0, last=False):
        self.locked(self.channel.event_locked, encode_event(event or EndOfPartition()), backlog, last=last)

    def backlog(self, backlog):
        self.locked(self.channel.backlog_locked, backlog)

    # The reader.

    def poll(self):
        return self.locked(self.channel.poll_locked)[0]

    def read(self):
        """One buffer, given back at once."""
        taken = self.poll()
        if taken is None:
            return None
        data = bytes(taken.memory)
        taken.release()
        return data

    def release(self):
        self.locked(self.channel.release_locked)

    @property
    def told(self):
        told, self.reader.told = self.reader.told, 0
        return told

    @property
    def due(self):
        """What the outlet was told since the last look."""
        due, self.outlet.due[:] = self.outlet.due[:], []
        return due

    @property
    def backed(self):
        """Whether every credit has its segment."""
        now = self.now
        return now.ready >= self.at_producer + now.unannounced

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()
        self.pool.destroy()
