"""Record batches from the host to sources, and from sinks to the host."""

import threading

import pyarrow as pa
import pytest

from headgate.errors import Cancelled, ConfigError
from headgate.spark.batch_queues import (
    SOURCE_COLUMN,
    BatchQueue,
    filling_source_queues,
    open_sink_queue,
    sink_queue,
    source_queue,
)


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values)], names=["n"])


def drain(name: str) -> list[int]:
    queue, found = source_queue(name), []
    while not queue.ended:
        batch = queue.take(10.0)
        found += [] if batch is None else batch.column(0).to_pylist()
    return found


def test_one_source_gets_the_batches_as_they_are() -> None:
    with filling_source_queues(["a"], iter([numbers(1, 2), numbers(3)])):
        assert drain("a") == [1, 2, 3]


def test_several_sources_get_their_own() -> None:
    def row(source: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        columns = [pa.array([source]), pa.array([sink.getvalue().to_pybytes()], pa.binary())]
        return pa.RecordBatch.from_arrays(columns, names=[SOURCE_COLUMN, "batch"])

    with filling_source_queues(["a", "b"], iter([row(1, numbers(4)), row(0, numbers(1)), row(1, numbers(5))])):
        assert drain("a") == [1]
        assert drain("b") == [4, 5]


def test_input_is_read_even_without_a_source_queue() -> None:
    batches = iter([numbers(1), numbers(2)])
    with filling_source_queues([], batches):
        assert next(batches, None) is None


def test_an_error_of_the_input_is_raised_in_the_source() -> None:
    def broken():
        yield numbers(1)
        raise OSError("the pipe broke")

    with filling_source_queues(["a"], broken()), pytest.raises(OSError, match="the pipe broke"):
        drain("a")


def test_an_unread_source_queue_is_filled_with_a_bounded_number_of_batches() -> None:
    given = []

    def endless():
        while True:
            given.append(1)
            yield numbers(1)

    with filling_source_queues(["a"], endless()):
        source_queue("a").take(10.0)
    assert len(given) < 20
    with pytest.raises(ConfigError, match="local=True"):
        source_queue("a")


def test_a_full_queue_blocks_until_it_is_closed() -> None:
    with open_sink_queue("rows") as rows:
        for _ in range(8):
            sink_queue("rows").put(numbers(1))
        stopped = []

        def put() -> None:
            try:
                rows.put(numbers(2))
            except Cancelled:
                stopped.append(True)

        thread = threading.Thread(target=put)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    thread.join(10)
    assert stopped == [True]
    with pytest.raises(ConfigError, match="to_dataframe"):
        sink_queue("rows")


def test_a_queue_ends_once_everything_was_taken() -> None:
    queue = BatchQueue()
    queue.put(1)
    queue.end()
    assert not queue.ended
    assert queue.take(1.0) == 1
    assert queue.ended
    assert queue.take(1.0) is None


def tagged(source: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    columns = [pa.array([source]), pa.array([sink.getvalue().to_pybytes()], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=[SOURCE_COLUMN, "batch"])


@pytest.mark.timeout(30)
def test_sources_that_are_read_in_turn_do_not_wait_for_each_other() -> None:
    """Each has more batches than its queue holds."""
    rows = [tagged(source, numbers(100 * source + n)) for source in range(3) for n in range(50)]
    with filling_source_queues(["a", "b", "c"], iter(rows), in_turn=True):
        assert drain("a") == list(range(50))
        assert drain("b") == list(range(100, 150))
        assert drain("c") == list(range(200, 250))


@pytest.mark.timeout(30)
def test_a_source_that_is_not_read_does_not_hold_up_the_next() -> None:
    rows = [tagged(source, numbers(100 * source + n)) for source in range(2) for n in range(50)]
    with filling_source_queues(["a", "b"], iter(rows), in_turn=True):
        assert drain("b") == list(range(100, 150))
