"""One writer and many readers in the same buffers at the same time: every byte comes out, once and in order."""

import hashlib
import random
import time
from collections import deque
from collections.abc import Iterator

import pytest
from tests.support.buffers import make_network, wrap
from tests.support.threads import run_threads, switching_often
from tests.support.waiting import PATIENCE_S

from headgate.buffer import Buffer, BufferReader, BufferSlice, LocalPool


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_often():
        yield


def stream(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


class Queue:
    """The buffers that one reader has still to read; its ends are used by one thread each."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool
        self._readers: deque[BufferReader] = deque()
        self.ended = False

    def put(self, reader: BufferReader) -> None:
        self._readers.append(reader)

    def take(self) -> BufferSlice | None:
        """The next bytes; None if there are none yet."""
        wake = None
        with self._pool.lock:
            if not self._readers:
                return None
            reader = self._readers[0]
            finished = reader.buffer.finished  # cannot change before the lock is left
            part = reader.take_locked()
            if finished:
                self._readers.popleft()
                if part is None:
                    wake = reader.release_locked()
        if wake is not None:
            wake()
        return part

    @property
    def empty(self) -> bool:
        return not self._readers


def write(pool: LocalPool, data: bytes, queues: list[Queue], chance: random.Random) -> None:
    """Append everything in pieces of random size; no lock but to begin and to finish a buffer."""
    written, buffer = 0, None
    while written < len(data):
        if buffer is None:
            buffer = begin(pool, queues)
        piece = data[written : written + chance.randrange(1, 12)]
        written += buffer.append(piece)
        if buffer.room == 0 or chance.random() < 0.05:
            finish(pool, buffer)
            buffer = None
    if buffer is not None:
        finish(pool, buffer)
    for one in queues:
        one.ended = True


def begin(pool: LocalPool, queues: list[Queue]) -> Buffer:
    buffer = wrap(pool, pool.request(timeout_s=PATIENCE_S))
    with pool.lock:
        for one in queues:
            one.put(BufferReader(buffer))
    return buffer


def finish(pool: LocalPool, buffer: Buffer) -> None:
    with pool.lock:
        wake = buffer.finish_locked()
    if wake is not None:
        wake()


def read(one: Queue, expected: bytes, chance: random.Random, *, lend: bool = False) -> None:
    """Compare piece by piece, keeping slices for a while and releasing them in any order."""
    position, kept, views = 0, [], []
    deadline = time.monotonic() + PATIENCE_S
    while position < len(expected) or not (one.ended and one.empty):
        part = one.take()
        if part is None:
            assert time.monotonic() < deadline, "the bytes stopped coming"
            while kept:
                kept.pop().release()  # what one keeps, the writer may wait for
            time.sleep(0)
            continue
        piece = expected[position : position + len(part.memory)]
        assert part.memory == piece
        position += len(piece)
        view = part.lend() if lend else None
        if view is not None:
            views.append((view, hashlib.sha256(piece).digest()))
        kept.append(part)
        while len(kept) > 2 or (kept and chance.random() < 0.5):
            kept.pop(chance.randrange(len(kept))).release()
        while len(views) > chance.randrange(1, 5):
            view, digest = views.pop(0)
            assert hashlib.sha256(view).digest() == digest, "lent memory was used again too early"
            del view
    assert position == len(expected)
    for part in kept:
        part.release()


@pytest.mark.spec("M8", "M9", "T5")
@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize(("segment_size", "count"), [(1, 3), (7, 4), (64, 6)])
def test_readers_take_exactly_the_bytes_the_writer_appends(readers: int, segment_size: int, count: int) -> None:
    network = make_network(count=count, segment_size=segment_size)
    pool = network.create_pool("partition", required=2)
    data = stream(2000 if segment_size == 1 else 12_000)
    queues = [Queue(pool) for _ in range(readers)]
    run_threads(
        lambda: write(pool, data, queues, random.Random(1)),
        *[lambda one=one, seed=seed: read(one, data, random.Random(seed)) for seed, one in enumerate(queues)],
    )
    assert pool.statistics().held == pool.statistics().available
    pool.destroy()
    assert network.statistics().free == count


@pytest.mark.spec("M8", "M9")
def test_lent_bytes_do_not_change_while_the_writer_continues() -> None:
    network = make_network(count=12, segment_size=32)
    pool = network.create_pool("partition", required=2)
    data = stream(60_000)
    queues = [Queue(pool) for _ in range(3)]
    run_threads(
        lambda: write(pool, data, queues, random.Random(1)),
        *[
            lambda one=one, seed=seed: read(one, data, random.Random(seed), lend=True)
            for seed, one in enumerate(queues)
        ],
    )
    assert pool.statistics().lent == 0
    assert pool.statistics().held == pool.statistics().available
    pool.destroy()
    assert network.statistics().free == 12


@pytest.mark.spec("M8", "M9")
def test_writers_of_several_pools_share_one_network() -> None:
    network = make_network(count=9, segment_size=16)
    pools = [network.create_pool(f"partition-{number}", required=2) for number in range(3)]
    functions = []
    for number, pool in enumerate(pools):
        data, one = stream(20_000, seed=number), Queue(pool)
        functions += [
            lambda pool=pool, data=data, one=one: write(pool, data, [one], random.Random(2)),
            lambda data=data, one=one: read(one, data, random.Random(3)),
        ]
    run_threads(*functions)
    for pool in pools:
        pool.destroy()
    assert network.statistics().free == 9
