"""A remote channel with its pools, and the calls of the network thread and of a reader."""

from tests.support.buffers import make_network
from tests.support.waiting import PATIENCE_S

from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import RemoteChannel, receive_run_locked
from headgate.record import EndOfPartition
from headgate.record.element import encode_event
from headgate.wire import When

SIZE = 128
WHERE = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(3)


class Outlet:
    """Records, for each time the channel was scheduled, True if it was to be sent now."""

    def __init__(self):
        self.due = []
        self.woken = 0

    def schedule_locked(self, channel, when, reader_blocked):
        self.due.append(when is When.NOW or reader_blocked)
        return self._wake

    def announce_to_starved_locked(self):
        return None

    announce_all_locked = announce_to_starved_locked

    def _wake(self):
        self.woken += 1


class Reader:
    """The channel of a gate, as a source uses it."""

    def __init__(self):
        self.told = 0

    reader_blocked = False

    def available_locked(self):
        self.told += 1


class Remote:
    """A remote channel with its pools, and the calls of the network thread and of a reader."""

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
        """Send the request."""
        self.channel.scheduled = False
        self.outlet.due.clear()
        self.locked(self.channel.mark_requested_locked)
        self.at_producer = self.channel.credit or 0

    def announce(self):
        """Announce all credit. Return its number."""
        self.channel.scheduled = False
        credit = self.locked(self.channel.take_credit_locked)
        self.at_producer += credit
        return credit

    def arrive(self, data=b"data", *, backlog=0, skew=0):
        """Deliver a buffer, as the network thread does."""
        with self.memory.lock:
            buffer = self.channel.take_buffer_locked()
        if buffer is None:
            return False
        buffer.memory[skew : skew + len(data)] = data
        self.at_producer -= 1
        self.deliver(buffer, len(data), backlog=backlog, skew=skew)
        return True

    def deliver(self, buffer, size, *, backlog=0, skew=0):
        """Hand a filled buffer to the channel."""
        wakes = []
        with self.memory.lock:
            receive_run_locked([(self.channel, backlog, skew, buffer.memory[skew : skew + size], buffer)], wakes)
        for wake in wakes:
            wake()

    def event(self, event=None, *, backlog=0, last=False):
        self.locked(self.channel.receive_event_locked, encode_event(event or EndOfPartition()), backlog, last=last)

    def backlog(self, backlog):
        self.locked(self.channel.receive_backlog_locked, backlog)

    # The reader.

    def poll(self):
        return self.locked(self.channel.poll_locked)[0]

    def read(self):
        """Read one buffer, and recycle it at once."""
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
        """The calls of the outlet since the last access."""
        due, self.outlet.due[:] = self.outlet.due[:], []
        return due

    @property
    def backed(self):
        """True if every credit has a segment."""
        now = self.now
        return now.ready >= self.at_producer + now.unannounced

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()
        self.pool.destroy()
