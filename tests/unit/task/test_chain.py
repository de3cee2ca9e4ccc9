"""Operators put together: T1 and K1 by plain calls."""

import logging

import pytest

from headgate.functions.basic import OutputTag
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.record import StreamStatus, Watermark
from headgate.task.operator import Operator
from headgate.task.operators.basic import Filter, FlatMap, Map, PassOn
from headgate.task.operators.batches import FromArrow, ToArrow
from headgate.task.operators.process import Process
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain


class Paper:
    """A writer that remembers."""

    def __init__(self):
        self.batches = []
        self.elements = []

    def emit_batch(self, values, timestamps_ms=None):
        self.batches.append((values, timestamps_ms))

    def emit_element(self, element):
        self.elements.append(element)

    @property
    def values(self):
        return [value for values, _ in self.batches for value in values]


class Noting(Operator):
    """Writes down what happens to it, and passes everything on."""

    def __init__(self, notes, name, fails=None):
        self.notes, self.name, self.fails = notes, name, fails

    def _note(self, what):
        self.notes.append(f"{what} {self.name}")
        if self.fails == what:
            raise RuntimeError(what)

    def open(self):
        self._note("open")

    def process(self, values, times):
        self.out.emit(values, times)

    def finish(self):
        self._note("finish")

    def close(self):
        self._note("close")


def chain_of(operators, reads):
    for operator in operators:
        operator.place = OperatorPlace("op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"))
    return Chain(operators, reads)


def open_and_close(chain):
    try:
        chain.open()
    finally:
        chain.close()


@pytest.mark.spec("T1", "K1")
def test_a_batch_goes_through_by_calls_and_nothing_is_queued():
    chain = chain_of([FlatMap(str.split), Filter(str.isalpha), Map(str.upper)], [None, (0, None), (1, None)])
    paper = Paper()
    chain.links[2].add_writer(paper, None)
    chain.open()
    chain.head.process(["to be", "or 2 not"], [5, 6])
    assert paper.batches == [(["TO", "BE", "OR", "NOT"], [5, 5, 6, 6])]
    assert [link.records_out for link in chain.links] == [5, 4, 4]
    chain.close()


class Unserializable:
    """A value that can be copied, and raises if anything serializes it."""

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        raise AssertionError("serialized between two operators of a chain")


@pytest.mark.spec("T1")
def test_nothing_is_serialized_between_operators():
    chain = chain_of([PassOn(), Filter(bool), Map(lambda value: value)], [None, (0, None), (1, None)])
    paper, value = Paper(), Unserializable()
    chain.links[2].add_writer(paper, None)
    chain.open()
    chain.head.process([value], None)
    assert paper.values == [value]
    chain.close()


@pytest.mark.spec("K1")
def test_an_output_is_emitted_to_all_its_readers():
    chain = chain_of([PassOn(), Map(len), Map(str.upper)], [None, (0, None), (0, None)])
    lengths, upper, plain = Paper(), Paper(), Paper()
    chain.links[1].add_writer(lengths, None)
    chain.links[2].add_writer(upper, None)
    chain.links[0].add_writer(plain, None)
    chain.open()
    chain.head.process(["to", "be?"], None)
    assert (lengths.values, upper.values, plain.values) == ([2, 3], ["TO", "BE?"], ["to", "be?"])
    chain.close()


@pytest.mark.spec("K1")
def test_a_side_output_is_emitted_to_the_readers_of_its_tag():
    class Sorter(PassOn):
        def process(self, values, times):
            self.out.emit([value for value in values if value >= 0], None)
            self.out.emit_to("negative", [value for value in values if value < 0], None)
            self.out.emit_to("unread", values, None)

    chain = chain_of([Sorter(), Map(abs)], [None, (0, "negative")])
    main, negative, side = Paper(), Paper(), Paper()
    chain.links[0].add_writer(main, None)
    chain.links[0].add_writer(side, "negative")
    chain.links[1].add_writer(negative, None)
    chain.open()
    chain.head.process([1, -2, 3], None)
    assert (main.values, negative.values, side.values) == ([1, 3], [2], [-2])
    chain.close()


@pytest.mark.spec("K1")
def test_watermarks_and_status_reach_every_output_and_the_last_one_is_a_gauge():
    chain = chain_of([PassOn(), Map(str)], [None, (0, None)])
    one, two = Paper(), Paper()
    chain.links[0].add_writer(one, None)
    chain.links[1].add_writer(two, None)
    chain.head.watermark(7)
    chain.head.status(active=False)
    assert one.elements == two.elements == [Watermark(7), StreamStatus(active=False)]
    assert [link.watermark_ms for link in chain.links] == [7, 7]


def test_it_opens_from_the_end_and_finishes_from_the_head():
    notes = []
    chain = chain_of([Noting(notes, "a"), Noting(notes, "b"), Noting(notes, "c")], [None, (0, None), (1, None)])
    chain.open()
    chain.finish(watermark=True)
    chain.close()
    assert notes == [
        f"{what} {name}" for what, names in [("open", "cba"), ("finish", "abc"), ("close", "abc")] for name in names
    ]
    assert chain.links[0].watermark_ms == MAX_WATERMARK_MS


@pytest.mark.parametrize("failing", ["open", "close"])
def test_opened_operators_are_closed_once_after_any_failure(failing):
    notes = []
    chain = chain_of(
        [Noting(notes, "a"), Noting(notes, "b", fails=failing), Noting(notes, "c")], [None, (0, None), (1, None)]
    )
    with pytest.raises(RuntimeError, match=failing):
        open_and_close(chain)
    closed = [note for note in notes if note.startswith("close")]
    assert closed == (["close b", "close c"] if failing == "open" else ["close a", "close b", "close c"])
    chain.close()
    assert [note for note in notes if note.startswith("close")] == closed, "once each"


@pytest.mark.spec("K1", "B2")
def test_every_operator_counts_records_in_and_out_and_side_outputs_by_tag():
    late, odd = OutputTag("late"), OutputTag("odd")

    def sort(number, ctx):
        yield number
        if number % 2:
            yield odd, number
        if number > 3:
            yield late, number
            yield late, number

    operators = [PassOn(), Process(sort), Map(str), Filter(bool), FlatMap(lambda n: [n, n, n])]
    chain = chain_of(operators, [None, (0, None), (1, None), (1, "odd"), (3, None)])
    chain.open()
    chain.head.process([0, 1, 2], None)
    chain.head.process([3, 4], None)
    counts = chain.counts(records_in=5)
    chain.close()
    assert [(one.records_in, one.records_out) for one in counts] == [(5, 5), (5, 5), (5, 5), (2, 2), (2, 6)]
    assert [one.side_outputs for one in counts] == [{}, {"odd": 2, "late": 2}, {}, {}, {}], "read or not"


@pytest.mark.spec("K1")
def test_arrow_batches_are_counted_by_rows():
    chain = chain_of([PassOn(), ToArrow(batch_rows=4), FromArrow()], [None, (0, None), (1, None)])
    chain.open()
    chain.head.process(list(range(10)), None)
    chain.flush()
    assert [(one.records_in, one.records_out) for one in chain.counts(10)] == [(10, 10), (10, 10), (10, 10)]
    chain.close()


@pytest.mark.spec("K1")
def test_tags_that_depend_on_the_data_take_bounded_memory_and_those_that_are_read_are_counted():
    chain = chain_of([PassOn(), Map(str)], [None, (0, "read")])
    chain.open()
    for number in range(5000):
        chain.links[0].emit_to(f"tag {number}", [1])
    chain.links[0].emit_to("read", [1, 2])
    counted = chain.counts(0)
    chain.close()
    assert len(counted[0].side_outputs) == 1000
    assert counted[1].records_in == 2
