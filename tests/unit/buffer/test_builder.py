"""One buffer: a writer that appends, readers that take slices, and references that are counted."""

import gc

import pytest
from tests.support.buffers import Listener, filled, give, listen, small_network, take, take_all, wrap

from headgate.buffer import UNCHANNELLED, Answer, Buffer, BufferReader, BufferSlice, Kind
from headgate.errors import InvariantViolated, LocalProtocolError


def index_of(buffer: Buffer) -> int:
    assert buffer.segment is not None
    return buffer.segment.index


@pytest.mark.spec("M8")
def test_a_reader_takes_the_bytes_written_so_far() -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            assert reader.take_locked() is None
            assert buffer.append(b"abc") == 3
            first = reader.take_locked()
            assert reader.take_locked() is None
            assert buffer.append(b"de") == 2
            second = reader.take_locked()
            assert buffer.append(b"fghij") == 3, "no more than fits"
            assert buffer.append(b"x") == 0
            assert buffer.finish_locked() is None
            third = reader.take_locked()
            assert reader.take_locked() is None
        assert first is not None
        assert second is not None
        assert third is not None
        slices = [first, second, third]
        assert [part.memory.tobytes() for part in slices] == [b"abc", b"de", b"fgh"]
        assert [part.offset for part in slices] == [0, 3, 5]
        assert {part.kind for part in slices} == {Kind.DATA}
        for part in slices:
            assert pool.statistics().available == 0
            part.release()
        assert pool.statistics().available == 1


@pytest.mark.spec("M8")
def test_slices_are_the_buffer_itself_not_a_copy() -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            buffer.append(b"ab")
            part = reader.take_locked()
            assert part is not None
            buffer.memory[0:2] = b"AB"
            assert part.memory.tobytes() == b"AB"
            assert part.memory.obj is buffer.memory.obj
            buffer.append(b"cdefgh")
            buffer.finish_locked()
            rest = reader.take_locked()
        assert rest is not None
        assert rest.memory.obj is buffer.memory.obj
        part.release()
        rest.release()


@pytest.mark.spec("M8")
def test_a_whole_buffer_is_handed_over_without_even_a_new_view() -> None:
    with small_network(count=1, segment_size=4) as network:
        pool = network.create_pool("pool", required=1)
        part = filled(pool, b"full")
        assert part.memory is part.buffer.memory
        part.release()


@pytest.mark.spec("M8")
def test_append_goes_on_within_the_data() -> None:
    with small_network(count=1, segment_size=4) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        assert (buffer.room, buffer.position, buffer.size, buffer.finished) == (4, 0, 0, False)
        assert buffer.append(b"xxab", 2) == 2
        assert (buffer.room, buffer.position, buffer.size) == (2, 2, 2)
        assert buffer.append(memoryview(b"abcdefgh"), 2) == 2
        assert buffer.memory.tobytes() == b"abcd"
        assert (buffer.room, buffer.size) == (0, 4)
        with pool.lock:
            buffer.finish_locked()
        assert (buffer.size, buffer.finished) == (4, True)


@pytest.mark.spec("M8")
def test_bytes_put_into_the_memory_directly_are_published() -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            buffer.memory[0:5] = b"12345"
            assert reader.take_locked() is None, "not before it is published"
            buffer.publish(5)
            assert buffer.room == 3
            part = reader.take_locked()
            assert part is not None
            assert part.memory.tobytes() == b"12345"
            for wrong in (4, 9):
                with pytest.raises(AssertionError, match="inside the buffer"):
                    buffer.publish(wrong)
            buffer.finish_locked()
            assert reader.take_locked() is None
            reader.release_locked()
        part.release()


@pytest.mark.spec("M8", "M7")
def test_broadcast_shares_one_buffer_and_the_last_reader_returns_it() -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            readers = [BufferReader(buffer) for _ in range(3)]
            buffer.append(b"one")
            early = readers[0].take_locked()
            buffer.append(b"two")
            buffer.finish_locked()
            late = [reader.take_locked() for reader in readers]
        assert early is not None
        assert [part.memory.tobytes() for part in late if part] == [b"two", b"onetwo", b"onetwo"]
        slices = [early, *[part for part in late if part]]
        for part in (slices[2], slices[0], slices[3]):
            part.release()
            assert pool.statistics().available == 0
        slices[1].release()
        assert pool.statistics().available == 1


@pytest.mark.spec("M7")
def test_a_reader_that_read_all_before_the_end_drops_its_own_reference() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            buffer.append(b"all")
            part = reader.take_locked()
            assert part is not None
            part.release_locked()
            buffer.finish_locked()
            assert reader.take_locked() is None
        assert pool.statistics().available == 0, "the reader still has its reference"
        with pool.lock:
            reader.release_locked()
        assert pool.statistics().available == 1


@pytest.mark.spec("M7")
def test_the_last_release_recycles_the_segment_and_wakes_a_waiting_listener() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1, channels=2)
        part = filled(pool, channel=1)
        with pool.lock:
            part.buffer.retain_locked()
        second = BufferSlice(part.buffer, part.memory, part.offset)
        listener = listen(pool, Listener(Answer.USED_ENOUGH), 0)
        part.release()
        assert listener.offered == 0
        second.release()
        assert listener.segments == [part.buffer.segment]
        assert listener.woken == 1
        give(pool, *listener.segments, channel=0)


@pytest.mark.spec("M7")
def test_releasing_a_slice_twice_is_an_error_that_names_the_buffer() -> None:
    with small_network(count=3) as network:
        pool = network.create_pool("pool", required=3)
        others = [take(pool), take(pool)]
        part = filled(pool, b"12345")
        part.release()
        name = f"<Buffer segment {index_of(part.buffer)}, 5 of 16 bytes, 0 references>"
        with pytest.raises(LocalProtocolError, match=f"a slice of {name} is released twice"):
            part.release()
        assert pool.statistics().available == 1, "it came back once only"
        give(pool, *others)


@pytest.mark.spec("M7")
def test_releasing_a_buffer_too_often_is_an_error_that_names_it() -> None:
    with small_network(count=2) as network:
        pool = network.create_pool("pool", required=2)
        first = take(pool)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            buffer.finish_locked()
            for _ in range(2):
                with pytest.raises(
                    InvariantViolated, match=f"<Buffer segment {index_of(buffer)}, .*more often than it was retained"
                ):
                    buffer.release_locked()
        assert pool.statistics().available == 1
        give(pool, first)


@pytest.mark.spec("M7")
def test_finishing_twice_is_an_error_that_names_the_buffer() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            buffer.append(b"1")
            buffer.finish_locked()
            with pytest.raises(LocalProtocolError, match=r"<Buffer segment 0, 1 of 16 bytes.* finished twice"):
                buffer.finish_locked()
            part = reader.take_locked()
        assert part is not None
        part.release()


@pytest.mark.spec("M7")
def test_events_are_freed_not_pooled() -> None:
    event = Buffer.event(b"barrier")
    assert event.kind is Kind.EVENT
    assert event.finished
    assert event.size == 7
    parts = [BufferReader(event).take_locked() for _ in range(3)]
    for part in parts:
        assert part is not None
        assert part.kind is Kind.EVENT
        assert part.memory.tobytes() == b"barrier"
        assert part.lend() is None, "an event has no segment to lend"
        part.release()
        with pytest.raises(LocalProtocolError, match="a slice of <Buffer event"):
            part.release()
    assert "event" in repr(event)


@pytest.mark.spec("M7")
def test_an_empty_event_is_still_delivered() -> None:
    part = BufferReader(Buffer.event(b"")).take_locked()
    assert part is not None
    assert part.memory.tobytes() == b""


@pytest.mark.spec("M8")
def test_lent_bytes_outlive_the_release_of_their_slice() -> None:
    with small_network(count=4, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        buffer = wrap(pool, pool.request())
        with pool.lock:
            reader = BufferReader(buffer)
            buffer.append(b"abc")
            first = reader.take_locked()
            buffer.append(b"defg")
            buffer.finish_locked()
            part = reader.take_locked()
        assert first is not None
        assert part is not None
        first.release()
        view = part.lend()
        assert view is not None
        assert view.tobytes() == b"defg", "the bytes of the slice, not of its buffer"
        part.release()
        assert pool.statistics().available == 0
        piece = view[1:3]
        del view
        gc.collect()
        assert piece.tobytes() == b"ef"
        assert (pool.statistics().available, pool.statistics().lent) == (0, 1)
        del piece
        assert (pool.statistics().available, pool.statistics().lent) == (1, 0)


@pytest.mark.spec("M8")
def test_a_lent_buffer_whose_views_die_first_stays_with_its_slice() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=1)
        part = filled(pool, b"abc")
        view = part.lend()
        assert view is not None
        del view
        assert (pool.statistics().available, pool.statistics().lent) == (0, 0)
        assert part.memory.tobytes() == b"abc"
        part.release()
        assert pool.statistics().available == 1


@pytest.mark.spec("M7", "M8")
@pytest.mark.parametrize("pools", [1, 2])
def test_a_segment_used_again_starts_afresh(pools: int) -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1, channels=3)
        for channel, data in enumerate([b"first", b"second", b"3"]):
            if 0 < channel < pools:
                pool.destroy()
                pool = network.create_pool("next", required=1, channels=3)
            with pool.lock:
                buffer = pool.try_buffer_locked(channel, False)
                assert pool.try_buffer_locked(channel, False) is None
            assert buffer is not None
            assert buffer.owner is pool
            reader = buffer.reader
            assert reader is not None
            assert (buffer.position, buffer.size, buffer.room, buffer.finished) == (0, 0, 8, False)
            with pool.lock:
                assert reader.take_locked() is None, "nothing of what was here before"
                buffer.append(data)
                assert buffer.finish_locked() is None
                part = reader.take_locked()
            assert part is not None
            assert (part.memory.tobytes(), part.offset, part.kind) == (data, 0, Kind.DATA)
            assert pool._in_use[channel] == 1
            part.release()
            assert pool._in_use == [0, 0, 0, 0]


@pytest.mark.spec("M7")
def test_an_old_slice_cannot_touch_the_next_use_of_its_segment() -> None:
    with small_network(count=1, segment_size=8) as network:
        pool = network.create_pool("pool", required=1)
        slices = []
        for data in (b"old", b"new"):
            buffer = Buffer.over(pool.request(), pool, UNCHANNELLED)
            with pool.lock:
                buffer.append(data)
                buffer.finish_locked()
                assert buffer.reader is not None
                part = buffer.reader.take_locked()
            assert part is not None
            slices.append(part)
            if data == b"old":
                part.release()
        old, new = slices
        with pytest.raises(LocalProtocolError, match="segment 0"):
            old.release()
        assert pool.statistics().available == 0
        assert new.memory.tobytes() == b"new"
        new.release()
        assert pool.statistics().available == 1


@pytest.mark.spec("M7")
def test_a_released_slice_cannot_be_lent() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=1)
        part = filled(pool)
        part.release()
        again = take_all(pool)  # whose bytes the view would show
        with pytest.raises(LocalProtocolError, match=f"segment {index_of(part.buffer)},"):
            part.lend()
        give(pool, *again)
