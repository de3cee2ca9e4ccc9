"""Operators put together: T1 and K1 by plain calls."""

import logging

import pytest

from headgate.record import StreamStatus, Watermark
from headgate.task.basic import Filter, FlatMap, Map, PassOn
from headgate.task.chain import Chain
from headgate.task.operator import MAX_WATERMARK_MS, Operator, Place


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


def chain_of(operators, reads, *, object_reuse=False):
    for operator in operators:
        operator.place = Place("op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"))
    return Chain(operators, reads, object_reuse=object_reuse)


def open_and_close(chain):
    try:
        chain.open()
    finally:
        chain.close()


@pytest.mark.spec("T1", "K1")
def test_a_batch_goes_through_by_calls_and_nothing_is_queued():
    chain = chain_of([FlatMap(str.split), Filter(str.isalpha), Map(str.upper)], [None, (0, None), (1, None)])
    paper = Paper()
    chain.links[2].leave_by(paper, None)
    chain.open()
    chain.head.process(["to be", "or 2 not"], [5, 6])
    assert paper.batches == [(["TO", "BE", "OR", "NOT"], [5, 5, 6, 6])]
    assert [link.records_out for link in chain.links] == [5, 4, 4]
    chain.close()


@pytest.mark.spec("K1")
def test_an_output_goes_to_all_who_read_it():
    chain = chain_of([PassOn(), Map(len), Map(str.upper)], [None, (0, None), (0, None)])
    lengths, upper, plain = Paper(), Paper(), Paper()
    chain.links[1].leave_by(lengths, None)
    chain.links[2].leave_by(upper, None)
    chain.links[0].leave_by(plain, None)
    chain.open()
    chain.head.process(["to", "be?"], None)
    assert (lengths.values, upper.values, plain.values) == ([2, 3], ["TO", "BE?"], ["to", "be?"])
    chain.close()


@pytest.mark.spec("K1")
@pytest.mark.parametrize("object_reuse", [False, True])
def test_who_shares_an_output_gets_a_copy_unless_objects_are_reused(object_reuse):
    def spoil(value):
        value["seen"] = True
        return value

    chain = chain_of([PassOn(), Map(spoil), Map(dict.copy)], [None, (0, None), (0, None)], object_reuse=object_reuse)
    other = Paper()
    chain.links[2].leave_by(other, None)
    chain.open()
    given = {"n": 1}
    chain.head.process([given], None)
    assert given == {"n": 1, "seen": True}, "the first to read it has the value itself"
    assert other.values == [{"n": 1}] or object_reuse
    chain.close()


@pytest.mark.spec("K1")
def test_side_outputs_go_to_those_who_asked_for_the_tag():
    class Sorter(PassOn):
        def process(self, values, times):
            self.out.emit([value for value in values if value >= 0], None)
            self.out.emit_to("negative", [value for value in values if value < 0], None)
            self.out.emit_to("unread", values, None)

    chain = chain_of([Sorter(), Map(abs)], [None, (0, "negative")])
    main, negative, side = Paper(), Paper(), Paper()
    chain.links[0].leave_by(main, None)
    chain.links[0].leave_by(side, "negative")
    chain.links[1].leave_by(negative, None)
    chain.open()
    chain.head.process([1, -2, 3], None)
    assert (main.values, negative.values, side.values) == ([1, 3], [2], [-2])
    chain.close()


@pytest.mark.spec("K1")
def test_watermarks_and_status_reach_every_output_and_the_last_one_is_a_gauge():
    chain = chain_of([PassOn(), Map(str)], [None, (0, None)])
    one, two = Paper(), Paper()
    chain.links[0].leave_by(one, None)
    chain.links[1].leave_by(two, None)
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
def test_what_was_opened_is_closed_whatever_fails(failing):
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
