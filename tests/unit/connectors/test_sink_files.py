"""Files as a sink: written records can be read again, and readers never find an incomplete file."""

import copy
import csv
import io
import json
import logging
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.formats import ParquetWriter
from headgate.connectors.files.sink import FileSink
from headgate.connectors.files.source import FileSource
from headgate.errors import ConfigError
from headgate.functions.place import Place

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\x00"), max_size=8)
ROWS = st.lists(st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "text": TEXT}), max_size=30)


def place(subtask=0, parallelism=1):
    return Place("write", subtask, parallelism, 128, lambda: 0, logging.getLogger("headgate.user"))


def opened(sink, subtask=0, parallelism=1):
    one = copy.deepcopy(sink)
    one.open(place(subtask, parallelism))
    return one


def write(sink, batches, subtask=0, parallelism=1):
    one = opened(sink, subtask, parallelism)
    for batch in batches:
        one.write(batch)
    one.finish()
    one.close()


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def cut(values, data):
    """In batches."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    return [values[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True)]


@settings(deadline=None)
@given(
    ROWS,
    st.sampled_from(["text", "csv", "json", "parquet"]),
    st.none() | st.integers(1, 12),
    st.none() | st.integers(1, 200),
    st.data(),
)
def test_written_files_are_read_back_equal(rows, format_, roll_rows, roll_bytes, data):
    values = [row["text"] for row in rows] if format_ == "text" else rows
    with tempfile.TemporaryDirectory() as directory:
        sink = FileSink(directory, format_, roll_rows=roll_rows, roll_bytes=roll_bytes)
        write(sink, cut(values, data))
        files = names(directory)
        assert all(name.startswith("part-00000-") for name in files)
        if not values:
            assert files == []
            return
        source = FileSource(directory, format_, **({"schema": {"n": int}} if format_ == "csv" else {}))
        assert [
            value for split in source.splits(1) for batch in source.read(split, 0, None) for value in batch
        ] == values
        if roll_rows is not None and roll_bytes is None:
            assert len(files) == -(-len(values) // roll_rows)


def test_every_subtask_has_files_of_its_own(tmp_path):
    sink = FileSink(tmp_path / "new" / "directory")
    for subtask in range(3):
        write(sink, [[f"of {subtask}"]], subtask, 3)
    assert names(tmp_path / "new" / "directory") == [f"part-0000{n}-00000.txt" for n in range(3)]


def test_files_are_invisible_until_they_are_complete(tmp_path):
    one = opened(FileSink(tmp_path, roll_rows=2))
    one.write(["to", "be", "or"])
    assert all(name.startswith(".") for name in names(tmp_path))
    one.flush()
    assert all(name.startswith(".") for name in names(tmp_path))
    one.finish()
    assert names(tmp_path) == ["part-00000-00000.txt", "part-00000-00001.txt"]
    one.close()
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("format_", ["text", "csv", "json", "parquet"])
def test_after_a_failure_nothing_is_left(tmp_path, format_):
    one = opened(FileSink(tmp_path, format_, roll_rows=2))
    one.write([{"word": word} for word in ["to", "be", "or"]])
    assert len(names(tmp_path)) == 2
    one.close()  # without finish
    assert names(tmp_path) == []


def test_full_files_can_be_seen_at_once(tmp_path):
    one = opened(FileSink(tmp_path, roll_rows=2, commit="roll"))
    one.write(["to", "be", "or"])
    assert [name for name in names(tmp_path) if name[0] != "."] == ["part-00000-00000.txt"]
    assert (tmp_path / "part-00000-00000.txt").read_text() == "to\nbe\n"
    one.close()
    assert names(tmp_path) == ["part-00000-00000.txt"]


def test_files_of_an_earlier_job_are_not_touched(tmp_path):
    write(FileSink(tmp_path), [["old"]])
    with pytest.raises(FileExistsError, match=r"has part-00000-00000.txt of an earlier job"):
        opened(FileSink(tmp_path))
    assert (tmp_path / "part-00000-00000.txt").read_text() == "old\n"


def test_files_of_an_earlier_job_are_replaced_in_the_end(tmp_path):
    for subtask in range(3):
        write(FileSink(tmp_path, roll_rows=1), [["old", "old"]], subtask, 3)
    (tmp_path / "mine.txt").write_text("kept")
    sink = FileSink(tmp_path, if_exists="replace")
    failed = opened(sink, 0, 2)
    failed.write(["new"])
    failed.close()
    assert len(names(tmp_path)) == 7  # a job that failed replaces nothing
    for subtask in range(2):
        write(sink, [["new"]], subtask, 2)
    assert names(tmp_path) == ["mine.txt", "part-00000-00000.txt", "part-00001-00000.txt"]
    assert (tmp_path / "part-00001-00000.txt").read_text() == "new\n"


class Pair(NamedTuple):
    word: str
    n: int


def test_csv_of_tuples_with_and_without_names(tmp_path):
    write(FileSink(tmp_path / "a", "csv"), [[("to", 2)]])
    write(FileSink(tmp_path / "b", "csv", columns=["word", "n"], delimiter=";"), [[("to", 2)]])
    write(FileSink(tmp_path / "c", "csv"), [[Pair("to", 2)]])
    write(FileSink(tmp_path / "d", "csv", header=False), [[Pair("to", 2)]])
    texts = [(tmp_path / one / "part-00000-00000.csv").read_text() for one in "abcd"]
    assert texts == ["to,2\n", "word;n\nto;2\n", "word,n\nto,2\n", "to,2\n"]


def test_csv_of_dicts_that_differ(tmp_path):
    write(FileSink(tmp_path / "a", "csv", columns=["a", "b"]), [[{"a": 1}, {"b": 2}]])
    assert list(csv.reader(io.StringIO((tmp_path / "a" / "part-00000-00000.csv").read_text())))[1:] == [
        ["1", ""],
        ["", "2"],
    ]
    one = opened(FileSink(tmp_path / "b", "csv"))
    with pytest.raises(ValueError, match=r"part-00000-00000.csv, in 2 records after row 0: a row has b besides"):
        one.write([{"a": 1}, {"a": 1, "b": 2}])
    one.close()


@pytest.mark.parametrize("format_", ["csv", "parquet", "json"])
def test_values_that_cannot_be_written_are_named(tmp_path, format_):
    one = opened(FileSink(tmp_path, format_))
    with pytest.raises(TypeError, match=rf"part-00000-00000.{format_}, in 1 records after row 0: "):
        one.write([object()])
    one.close()
    assert names(tmp_path) == []


def test_text_that_is_no_unicode_is_named(tmp_path):
    one = opened(FileSink(tmp_path))
    with pytest.raises(ValueError, match=r"part-00000-00000.txt, in 1 records after row 0: .*surrogates"):
        one.write(["\ud800"])
    one.close()


def test_json_lines(tmp_path):
    write(FileSink(tmp_path, "json"), [[{"a": None}, [1, "x"]], [3]])
    lines = (tmp_path / "part-00000-00000.json").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"a": None}, [1, "x"], 3]


def test_parquet_of_record_batches_and_tuples(tmp_path):
    batch = pa.record_batch({"n": [1, 2], "word": ["to", "be"]})
    write(FileSink(tmp_path / "a", "parquet", roll_rows=2), [[batch, batch], [batch]])
    assert len(names(tmp_path / "a")) == 2  # batches that come together are not cut
    assert pq.read_table(tmp_path / "a").num_rows == 6
    write(FileSink(tmp_path / "b", "parquet", columns=["n", "word"]), [[(1, "to")], [(2, "be")]])
    assert pq.read_table(tmp_path / "b").to_pylist() == batch.to_pylist()
    schema = pa.schema([("n", pa.int32()), ("word", pa.string())])
    write(FileSink(tmp_path / "c", "parquet", schema=schema), [[(1, None)], [{"n": 2, "word": "be"}]])
    table = pq.read_table(tmp_path / "c")
    assert table.schema.equals(schema)
    assert table.to_pylist() == [{"n": 1, "word": None}, {"n": 2, "word": "be"}]


def test_small_batches_become_large_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(ParquetWriter, "ROW_GROUP_ROWS", 500)
    write(FileSink(tmp_path, "parquet"), [[{"n": n}] for n in range(1200)])
    metadata = pq.read_metadata(tmp_path / "part-00000-00000.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [500, 500, 200]


def test_rows_that_do_not_fit_the_schema_of_the_first_are_named(tmp_path):
    one = opened(FileSink(tmp_path, "parquet"))
    one.write([{"n": 1}])
    with pytest.raises((TypeError, ValueError), match=r"part-00000-00000.parquet, in 1 records after row 1: "):
        one.write([{"n": "x"}])
    one.close()
    assert names(tmp_path) == []


def test_a_relative_directory_is_that_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sink = FileSink("out")
    monkeypatch.chdir("/")
    write(sink, [["to be"]])
    assert names(tmp_path / "out") == ["part-00000-00000.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml"}, "format 'xml'"),
        ({"columns": ["a"]}, "text files have no option columns"),
        ({"commit": "now"}, "commit 'now': there are finish, roll"),
        ({"if_exists": "append"}, "if_exists 'append'"),
        ({"roll_rows": 0}, "roll_rows 0"),
        ({"roll_bytes": 0}, "roll_bytes 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FileSink("x", **arguments)
