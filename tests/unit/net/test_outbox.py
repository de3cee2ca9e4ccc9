"""What waits to be written: the marks, partial writes, and what is given back."""

import pytest
from tests.support.buffers import make_network

from headgate.net.outbox import Outbox
from headgate.wire import Outgoing


class Taker:
    """A stream that takes so many bytes of each offer."""

    def __init__(self, *limits):
        self.limits = list(limits)
        self.taken = b""

    def write(self, pieces):
        whole = b"".join(bytes(piece) for piece in pieces)
        taken = whole[: self.limits.pop(0)] if self.limits else whole
        self.taken += taken
        return len(taken)


def put(outbox, *sizes):
    outbox.put(Outgoing([bytes(size) for size in sizes], [None] * len(sizes)))


@pytest.mark.spec("N3")
def test_nothing_more_is_taken_above_the_high_mark_until_below_the_low_one():
    outbox = Outbox(high_bytes=64, low_bytes=32)
    assert outbox.room_bytes == 64
    put(outbox, 63)
    assert outbox.room_bytes == 1
    put(outbox, 1)
    assert outbox.room_bytes == 0
    outbox.write(Taker(32))  # 32 wait: not below the low mark
    assert outbox.room_bytes == 0
    outbox.write(Taker(1))
    assert (outbox.waiting_bytes, outbox.room_bytes) == (31, 33)
    outbox.write(Taker())
    assert (outbox.waiting_bytes, outbox.room_bytes) == (0, 64)


@pytest.mark.spec("N3")
def test_below_the_high_mark_there_is_always_room():
    outbox = Outbox(high_bytes=64, low_bytes=32)
    put(outbox, 60)
    outbox.write(Taker(10))
    assert outbox.room_bytes == 14, "it has not been above"


@pytest.mark.spec("N3")
@pytest.mark.parametrize("taken", [0, 1, 100, 250])
def test_waiting_bytes_exceed_the_high_mark_by_less_than_one_frame(taken):
    """Room is offered up to the mark, also while nothing waits; a sender stops with the frame that fills it."""
    outbox, frame = Outbox(high_bytes=256, low_bytes=64), 50
    for _ in range(20):
        room = outbox.room_bytes
        put(outbox, *[frame] * -(-room // frame))
        assert outbox.waiting_bytes < 256 + frame
        outbox.write(Taker(taken))


@pytest.mark.parametrize("step", range(1, 12))
def test_bytes_go_out_in_order_however_few_are_taken(step):
    outbox, stream = Outbox(high_bytes=64, low_bytes=32), Taker(*[step] * 100)
    outbox.put(Outgoing([b"to ", b"", memoryview(b"be or "), b"not"], [None] * 4))
    for _ in range(20):
        if outbox.waiting_bytes:
            outbox.write(stream)
    assert stream.taken == b"to be or not"
    assert outbox.written_bytes == 12
    assert not outbox.blocked


def test_it_is_blocked_when_not_all_was_taken():
    outbox = Outbox(high_bytes=64, low_bytes=32)
    put(outbox, 10)
    outbox.write(Taker(9))
    assert outbox.blocked
    outbox.write(Taker())
    assert not outbox.blocked


@pytest.mark.spec("B2")
def test_the_time_for_which_it_is_blocked_is_counted_until_now():
    now = [100]
    outbox = Outbox(high_bytes=64, low_bytes=32, now_ns=lambda: now[0])
    put(outbox, 10)
    outbox.write(Taker(9))
    now[0] = 130
    assert outbox.blocked_ns == 30, "it still is"
    outbox.unblock()
    outbox.unblock()
    now[0] = 200
    assert (outbox.blocked, outbox.blocked_ns) == (False, 30)
    outbox.write(Taker(0))
    now[0] = 205
    outbox.write(Taker(0))
    now[0] = 210
    assert outbox.blocked_ns == 40, "since the first that took nothing"
    outbox.write(Taker())
    now[0] = 300
    assert (outbox.blocked, outbox.blocked_ns) == (False, 40)


def test_the_clock_is_not_read_while_the_outbox_is_not_blocked():
    outbox = Outbox(high_bytes=64, low_bytes=32, now_ns=lambda: 1 // 0)
    for _ in range(5):
        put(outbox, 10)
        outbox.write(Taker())
        outbox.unblock()
    assert outbox.blocked_ns == 0


def slices(count):
    network = make_network(count, 16)
    pool = network.create_pool("pool", required=count)
    made = []
    with network.lock:
        for _ in range(count):
            buffer = pool.try_buffer_locked(-1, overdraft=False)
            buffer.append(bytes(16))
            buffer.finish_locked()
            made.append(buffer.reader.take_locked())
    return network, pool, made


def test_a_slice_is_given_back_when_its_last_byte_is_taken():
    network, pool, made = slices(3)
    outbox = Outbox(high_bytes=640, low_bytes=32)
    for taken in made:
        outbox.put(Outgoing([b"head", taken.memory], [None, taken]))
    outbox.write(Taker(4 + 15))
    assert outbox.sent == []
    outbox.write(Taker(1))
    assert outbox.sent == made[:1]
    outbox.drop()
    assert outbox.sent == made
    assert (outbox.waiting_bytes, outbox.room_bytes) == (0, 640)
    with network.lock:
        for taken in made:
            taken.release_locked()
    pool.destroy()
    assert network.statistics().free == 3
