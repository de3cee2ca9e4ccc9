"""Functions of batches, and rows into and out of Arrow."""

import dataclasses
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UserCodeError
from headgate.functions.basic import MapFunction
from headgate.task.operators.batches import FromArrow, MapBatches, ToArrow
from headgate.testing.harness import OperatorHarness

BATCH = pa.record_batch({"word": ["to", "be", "or"], "n": [2, 2, 1]})


def test_a_list_of_the_same_length_keeps_its_times():
    with OperatorHarness(MapBatches(lambda values: [2 * value for value in values], "list")) as harness:
        harness.process([1, 2], [10, 20])
    assert harness.timed == [(2, 10), (4, 20)]


@pytest.mark.parametrize(
    "function", [lambda values: values[:1], lambda values: values * 2, lambda values: values.pop() and values]
)
def test_a_list_of_another_length_has_no_times(function):
    with OperatorHarness(MapBatches(function, "list")) as harness:
        harness.process([1, 2], [10, 20])
    assert {time for _, time in harness.timed} == {None}


def test_an_empty_result_is_nothing():
    with OperatorHarness(MapBatches(lambda values: (), "list")) as harness:
        harness.process([1, 2], [10, 20])
    assert harness.batches == []


def test_a_function_object_is_opened():
    class Scale(MapFunction):
        def open(self, context):
            self.factor = context.parallelism

        def map(self, value):
            return (self.factor * one for one in value)

    with OperatorHarness(MapBatches(Scale()), parallelism=3) as harness:
        harness.process([1, 2])
    assert harness.values == [3, 6]


def test_arrow_batches_come_and_go_as_they_are():
    with OperatorHarness(MapBatches(lambda batch: batch.slice(1), "arrow")) as harness:
        harness.process([BATCH, BATCH.slice(0, 1)])
    assert [value.to_pylist() for value in harness.values] == [BATCH.to_pylist()[1:]], "empty ones are dropped"


def test_a_table_is_as_good():
    with OperatorHarness(MapBatches(lambda batch: pa.table({"n": batch["n"]}), "arrow")) as harness:
        harness.process([BATCH])
    assert [type(value) for value in harness.values] == [pa.RecordBatch]


def test_pandas_frames_on_the_way():
    pytest.importorskip("pandas")
    with OperatorHarness(MapBatches(lambda frame: frame[frame.n > 1], "pandas")) as harness:
        harness.process([BATCH])
    assert [value.to_pydict() for value in harness.values] == [{"word": ["to", "be"], "n": [2, 2]}]


@pytest.mark.parametrize(
    ("function", "form", "text"),
    [
        (lambda batch: None, "arrow", "must give a RecordBatch or a Table, not NoneType"),
        (lambda batch: 1 / 0, "arrow", "ZeroDivisionError"),
        (lambda values: None, "list", "TypeError"),
    ],
)
def test_errors_name_the_operator(function, form, text):
    with OperatorHarness(MapBatches(function, form)) as harness, pytest.raises(UserCodeError, match=text) as caught:
        harness.process([BATCH])
    assert caught.value.operator == "MapBatches"


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="list, arrow or pandas"):
        MapBatches(len, "polars")
    with pytest.raises(ValueError, match="tuple or dict"):
        FromArrow("list")
    with pytest.raises(ValueError, match="one row or more"):
        ToArrow(None, 0)


class Named(NamedTuple):
    word: str
    n: int


@dataclasses.dataclass
class Data:
    word: str
    n: int


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("to", 1), ("be", 2)], {"_1": ["to", "be"], "_2": [1, 2]}),
        ([["to", 1], ["be", 2]], {"_1": ["to", "be"], "_2": [1, 2]}),
        ([{"word": "to", "n": 1}, {"word": "be", "x": 2}], {"word": ["to", "be"], "n": [1, None], "x": [None, 2]}),
        ([Named("to", 1)], {"word": ["to"], "n": [1]}),
        ([Data("to", 1)], {"word": ["to"], "n": [1]}),
        ([1, None, 3], {"value": [1, None, 3]}),
    ],
)
def test_names_and_types_of_the_first_rows(rows, expected):
    with OperatorHarness(ToArrow()) as harness:
        harness.process(rows)
        harness.end()
    assert [batch.to_pydict() for batch in harness.values] == [expected]


@pytest.mark.parametrize("rows", [[("to", 1)], [{"n": 1, "word": "to", "more": 0}], [Named("to", 1)], [Data("to", 1)]])
def test_a_schema_sets_names_and_types(rows):
    schema = pa.schema([("word", pa.large_string()), ("n", pa.int16())])
    with OperatorHarness(ToArrow(schema, 10)) as harness:
        harness.process(rows)
        harness.end()
    assert harness.values[0].schema == schema
    assert harness.values[0].to_pylist() == [{"word": "to", "n": 1}]


@given(st.lists(st.lists(st.integers(), max_size=12), max_size=6), st.integers(1, 7))
def test_batches_are_full_but_for_the_last_and_nothing_is_lost(batches, size):
    with OperatorHarness(ToArrow(pa.schema([("value", pa.string())]), size)) as harness:
        for values in batches:
            harness.process(list(map(str, values)))
        sizes = [batch.num_rows for batch in harness.values]
        harness.end()
    assert set(sizes) <= {size}
    found = [value for batch in harness.values for value in batch["value"].to_pylist()]
    assert found == [str(value) for values in batches for value in values]


def test_rows_do_not_wait_for_more_when_there_is_none_and_never_behind_a_watermark():
    with OperatorHarness(ToArrow(None, 100)) as harness:
        harness.process([1])
        assert harness.values == []
        harness.operator.flush()
        assert [batch.num_rows for batch in harness.values] == [1]
        harness.process([2])
        harness.emit_watermark = lambda at: harness.watermarks.append((at, len(harness.values)))
        harness.watermark(5)
        harness.operator.flush()
    assert harness.watermarks == [(5, 2)]


@pytest.mark.parametrize(
    ("schema", "first", "second", "text"),
    [
        (None, 1, "two", "do not fit into columns"),
        (None, ("to", 1), ("be",), "zip"),
        (None, ("to", 1), ("be", 1, 2), "zip"),
        (pa.schema([("a", pa.int8())]), 1, 1000, "do not fit into columns"),
        (pa.schema([("a", pa.int8())]), (1,), ("x",), "do not fit into columns"),
        (pa.schema([("a", pa.int8()), ("b", pa.int8())]), (1, 2), (1, 2, 3), "zip"),
        (pa.schema([("a", pa.int8()), ("b", pa.int8())]), (1,), (1,), "has 1 fields; the columns are a, b"),
        (pa.schema([("a", pa.int8()), ("b", pa.int8())]), 1, 1, "is one value; the columns are a, b"),
        (None, {1: 2}, {1: 2}, "do not fit into columns"),
    ],
)
def test_rows_that_do_not_fit_fail_with_a_reason(schema, first, second, text):
    def run(harness):
        harness.process([first] if schema is None and not isinstance(first, tuple) else [first, second])
        harness.operator.flush()
        harness.process([second])
        harness.operator.flush()

    with OperatorHarness(ToArrow(schema, 10)) as harness, pytest.raises(UserCodeError, match=text):
        run(harness)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("tuple", [("to", 2), ("be", 2), ("or", 1)]),
        ("dict", [{"word": "to", "n": 2}, {"word": "be", "n": 2}, {"word": "or", "n": 1}]),
    ],
)
def test_rows_come_back(form, expected):
    with OperatorHarness(FromArrow(form)) as harness:
        harness.process([BATCH.slice(0, 1), BATCH.slice(1)])
    assert harness.values == expected


@pytest.mark.parametrize(
    ("form", "expected"), [("tuple", ["to", "be", "or"]), ("dict", [{"word": w} for w in ("to", "be", "or")])]
)
def test_a_single_column_gives_bare_values_unless_dicts_are_wanted(form, expected):
    with OperatorHarness(FromArrow(form)) as harness:
        harness.process([BATCH.select(["word"])])
    assert harness.values == expected


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(), st.none() | st.booleans()), min_size=1)
    | st.lists(st.floats(allow_nan=False), min_size=1)
)
def test_there_and_back_again(rows):
    with OperatorHarness(ToArrow(None, 3)) as there:
        there.process(rows[:1] if isinstance(rows[0], float) else [(0, "", True)])  # all types are known
        there.process(rows)
        there.end()
    with OperatorHarness(FromArrow("tuple")) as back:
        back.process(there.values)
    assert back.values[1:] == rows
