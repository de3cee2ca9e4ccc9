"""Files: every layout of splits reads every record once, in order, from any offset; errors name the file and line."""

import bz2
import csv
import gzip
import io
import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files import lines as source_lines
from headgate.connectors.files.lines import FileSplit
from headgate.connectors.files.source import FileSource
from headgate.connectors.generators import BATCH_RECORDS
from headgate.errors import ConfigError

CHARACTERS = st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])
LINE = st.text(CHARACTERS, max_size=12) | st.sampled_from(["", "\u2028", "a\x0bb\x0c\x1c", "\ufeff"])
SPLIT_BYTES = st.integers(1, 60)
PARALLELISM = st.integers(1, 5)


@contextmanager
def file(content, name="data"):
    """A file in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield path


@contextmanager
def chunks(size):
    """Reads of so many bytes."""
    with mock.patch.object(source_lines, "CHUNK_BYTES", size), mock.patch.object(source_lines, "_SEARCH_BYTES", size):
        yield


def records(source, split, offset=0):
    found = []
    for batch in source.read(split, offset, None):
        assert 0 < len(batch) <= BATCH_RECORDS
        found.extend(batch)
    return found


def everything(source, parallelism=2, offset=0):
    """All records, after seeing that every split can be read from the offset on."""
    found = []
    for split in source.splits(parallelism):
        whole = records(source, split)
        assert records(source, split, offset) == whole[offset:]
        found += whole
    return found


@settings(deadline=None)
@given(
    st.lists(LINE, max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    SPLIT_BYTES,
    PARALLELISM,
    st.integers(1, 40),
    st.integers(0, 12),
)
def test_every_line_is_read_once(lines, end, ended, split_bytes, parallelism, chunk, offset):
    content = end.join(lines) + (end if ended and lines else "")
    expected = content.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
    if not expected[-1]:
        expected.pop()
    with file(content) as path, chunks(chunk):
        source = FileSource(path, split_bytes=split_bytes)
        assert everything(source, parallelism, offset) == expected


def test_lines_of_large_files_come_in_small_batches(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("".join(f"{n}\n" for n in range(500_000)))  # several chunks
    source = FileSource(path)
    splits = source.splits(3)
    assert len(splits) == 3  # one for each subtask
    assert list(map(int, everything(source, 3, 123_456))) == list(range(500_000))


def test_small_files_are_not_cut(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)
    assert [Path(split.path).name for split in FileSource(tmp_path).splits(8)] == ["a", "b", "c"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_compressed_files_are_read_by_one_subtask(tmp_path, suffix):
    content = "".join(f"line {n}\n" for n in range(5000)).encode()
    path = tmp_path / f"lines{suffix}"
    if suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes({".gz": gzip, ".bz2": bz2}[suffix].compress(content))
    source = FileSource(path, split_bytes=10)
    assert source.splits(4) == [FileSplit(str(path))]
    assert everything(source, 4, 3210) == content.decode().splitlines()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=f"lines{suffix} cannot be read as"):
        everything(source)


def test_which_files_there_are(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS", "x[1].txt", "deep/c.txt", "deep/er/d.txt"):
        (tmp_path / name).write_text(name + "\n")

    def names(path):
        return [str(Path(one).relative_to(tmp_path)) for one in FileSource(path).files()]

    assert names(tmp_path) == ["a.txt", "b.txt", "x[1].txt"]
    assert names(tmp_path / "?.txt") == ["a.txt", "b.txt"]
    assert names(str(tmp_path / "deep/**/*.txt")) == ["deep/c.txt", "deep/er/d.txt"]
    assert names(tmp_path / "x[1].txt") == ["x[1].txt"]
    assert names([tmp_path / "b.txt", tmp_path / "*.txt"]) == ["b.txt", "a.txt", "x[1].txt"]
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\*"):
        names(tmp_path / "nothing*")


def test_a_relative_path_is_that_of_the_driver(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("to be")
    monkeypatch.chdir(tmp_path)
    source = FileSource("a")
    monkeypatch.chdir("/")
    assert everything(source) == ["to be"]


def test_bytes_that_are_no_text_are_named_by_line(tmp_path):
    path = tmp_path / "bad"
    path.write_bytes(b"one\ntwo\nth\xffree\nfour\n")
    for size in (1, 5, 100):
        with pytest.raises(ValueError, match=r"bad, line 3: .*utf-8"):
            everything(FileSource(path, split_bytes=size))
    assert everything(FileSource(path, errors="replace"))[2] == "th\ufffdree"
    assert everything(FileSource(path, encoding="latin-1"))[2] == "thÿree"


@pytest.mark.parametrize("chunk", [4, 10, 1000])
def test_a_line_without_end_is_refused(tmp_path, chunk):
    path = tmp_path / "long"
    path.write_text("short\n" + 30 * "x" + "\n")
    with chunks(chunk), pytest.raises(ValueError, match="long, line 2: longer than 20 bytes"):
        everything(FileSource(path, max_line_bytes=20))
    with chunks(chunk):
        assert len(everything(FileSource(path, max_line_bytes=30))) == 2


def test_a_file_that_has_become_shorter_is_noticed(tmp_path):
    path = tmp_path / "log"
    path.write_text("to\nbe\n")
    source = FileSource(path)
    (split,) = source.splits(1)
    path.write_text("to\n")
    with pytest.raises(OSError, match="log has become shorter"):
        records(source, split)


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=6)


@settings(deadline=None)
@given(
    st.lists(st.tuples(FIELD, FIELD), max_size=20),
    st.booleans(),
    SPLIT_BYTES,
    PARALLELISM,
    st.integers(0, 9),
    st.data(),
)
def test_every_row_of_csv_is_read_once(rows, newlines, split_bytes, parallelism, offset, data):
    if not newlines:
        rows = [tuple(field.replace("\n", " ") for field in row) for row in rows]
    text = io.StringIO()
    csv.writer(text, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"]))).writerows([("a", "b"), *rows])
    with file(text.getvalue()) as path, chunks(data.draw(st.integers(1, 40))):
        source = FileSource(path, "csv", split_bytes=split_bytes, quoted_newlines=newlines)
        assert everything(source, parallelism, offset) == [{"a": a, "b": b} for a, b in rows]
        assert newlines is (len(source.splits(9)) == 1) or path.stat().st_size <= split_bytes


def test_csv_with_types():
    with file("id,price,ok,note\n1,2.5,true,x\n2,,no,\n") as path:
        source = FileSource(path, "csv", schema={"id": int, "price": float, "ok": bool})
        assert everything(source) == [
            {"id": 1, "price": 2.5, "ok": True, "note": "x"},
            {"id": 2, "price": None, "ok": False, "note": ""},
        ]
        assert source.hint is None
        assert FileSource(path, "csv").hint == dict[str, str]
        assert everything(FileSource(path, "csv", rows="tuple"))[0] == ("1", "2.5", "true", "x")


def test_csv_without_a_header_and_with_other_characters():
    with file("1;'a;b'\n\n2;c") as path:
        options = {"header": False, "columns": ["n", "text"], "delimiter": ";", "quotechar": "'"}
        expected = [{"n": "1", "text": "a;b"}, {"n": "2", "text": "c"}]
        assert everything(FileSource(path, "csv", **options)) == expected
        assert everything(FileSource(path, "csv", quoted_newlines=False, **options)) == expected


@pytest.mark.parametrize("newlines", [True, False])
@pytest.mark.parametrize("split_bytes", [4, 1000])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("x,7", "column n: 'x' is no int"),
        ("1,2,3", "3 fields, but there are 2 columns: n, m"),
    ],
)
def test_bad_rows_of_csv_are_named_by_line(newlines, split_bytes, bad, message):
    with file("n,m\n1,2\n\n3,4\n" + bad + "\n5,6\n") as path:
        source = FileSource(path, "csv", schema={"n": int}, quoted_newlines=newlines, split_bytes=split_bytes)
        with pytest.raises(ValueError, match=f"data, line 5: {message}"):
            everything(source)


def test_rows_over_several_lines_are_counted_in_lines():
    with file('n,m\n1,"a\nb\nc"\nx,2\n') as path, pytest.raises(ValueError, match="data, line 5: column n: 'x'"):
        everything(FileSource(path, "csv", schema={"n": int}))


@pytest.mark.parametrize("where", ['1,"a\nb"\n2,c\n', '1,a\n2,"c'])
def test_a_quote_that_is_open_at_the_end_of_its_line_is_not_guessed_at(where):
    with (
        file("n,m\n" + where) as path,
        pytest.raises(ValueError, match=r"data, line [23]: a quote is not closed in its line"),
    ):
        everything(FileSource(path, "csv", quoted_newlines=False))


def test_undecodable_csv_is_named_by_line():
    with file(b"n,m\n1,2\n3,\xff\n") as path, pytest.raises(ValueError, match=r"data, line 3: .*utf-8"):
        everything(FileSource(path, "csv"))


def test_a_column_that_is_not_there_is_named():
    with file("n,m\n1,2\n") as path, pytest.raises(ConfigError, match="has no column k: its columns are n, m"):
        everything(FileSource(path, "csv", schema={"k": int}))


VALUE = st.dictionaries(
    st.text(max_size=3), st.integers() | st.text(max_size=8) | st.none() | st.booleans(), max_size=3
)


@settings(deadline=None)
@given(st.lists(VALUE | st.none(), max_size=25), SPLIT_BYTES, PARALLELISM, st.integers(1, 40), st.integers(0, 9))
def test_every_json_value_is_read_once(values, split_bytes, parallelism, chunk, offset):
    lines = ["" if value is None else json.dumps(value) for value in values]  # empty lines are no values
    with file("\n".join(lines)) as path, chunks(chunk):
        source = FileSource(path, "json", split_bytes=split_bytes)
        assert everything(source, parallelism, offset) == [value for value in values if value is not None]


@pytest.mark.parametrize("bad", ["{", '{"a": 1} {"a": 2}', "hello"])
@pytest.mark.parametrize("split_bytes", [3, 1000])
def test_bad_json_is_named_by_line(bad, split_bytes):
    with (
        file('{"a": 1}\n\n{"a": 2}\n' + bad + '\n{"a": 3}\n') as path,
        pytest.raises(ValueError, match="data, line 4: no JSON value of its own"),
    ):
        everything(FileSource(path, "json", split_bytes=split_bytes))


@dataclass
class Price:
    name: str
    price: float


def test_json_of_a_type():
    with file('{"name": "tea", "price": 2}\n{"name": 7}\n') as path:
        source = FileSource(path, "json", schema=Price, split_bytes=20)
        assert records(source, source.splits(1)[0]) == [Price("tea", 2.0)]
        with pytest.raises(ValueError, match=r"data, line 2: .*str"):
            everything(source)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(1, 4),
    PARALLELISM,
    st.integers(1, 300),
    st.integers(0, 8),
    st.sampled_from(["dict", "tuple"]),
)
def test_every_row_of_parquet_is_read_once(sizes, group, parallelism, split_bytes, offset, form):
    with tempfile.TemporaryDirectory() as directory:
        expected = []
        for number, size in enumerate(sizes):
            rows = [{"n": 10 * number + i, "text": f"row {i}"} for i in range(size)]
            table = pa.Table.from_pylist(rows, schema=pa.schema([("n", pa.int64()), ("text", pa.string())]))
            pq.write_table(table, f"{directory}/{number}.parquet", row_group_size=group)
            expected += rows
        source = FileSource(directory, "parquet", rows=form, split_bytes=split_bytes)
        wanted = expected if form == "dict" else [tuple(row.values()) for row in expected]
        assert everything(source, parallelism, offset) == wanted
        arrow = FileSource(directory, "parquet", arrow=True, split_bytes=split_bytes, batch_rows=3)
        assert arrow.hint == "arrow"
        batches = everything(arrow, parallelism, offset)
        assert [row for batch in batches for row in batch.to_pylist()] == expected


def test_large_parquet_row_groups_come_in_small_batches(tmp_path):
    pq.write_table(pa.table({"n": range(5000), "m": range(5000)}), tmp_path / "a.parquet")
    source = FileSource(tmp_path, "parquet", columns=["m"])
    assert everything(source, 2, 2345) == [{"m": n} for n in range(5000)]
    with pytest.raises(ValueError, match=r"a.parquet has no column k: its columns are n, m"):
        everything(FileSource(tmp_path, "parquet", columns=["k"]))


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "a.parquet").write_text("to be or not")
    with pytest.raises(OSError, match=r"a.parquet cannot be read as Parquet"):
        FileSource(tmp_path, "parquet").splits(1)


def test_an_iterator_that_is_closed_closes_its_file(tmp_path):
    (tmp_path / "a").write_text("n\n" * 5000)
    pq.write_table(pa.table({"n": range(5000)}), tmp_path / "b")
    for name, format_ in ("a", "text"), ("a", "csv"), ("a", "json"), ("b", "parquet"):
        content = tmp_path / name
        if format_ == "json":
            content.write_text("1\n" * 5000)
        source = FileSource(content, format_)
        batches = source.read(source.splits(1)[0], 0, None)
        next(batches)
        batches.close()  # an open file would be a ResourceWarning, which is an error here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml"}, "format 'xml'"),
        ({"delimeter": ";"}, "text files have no option delimeter"),
        ({"format": "parquet", "encoding": "utf-8"}, "parquet files have no option encoding"),
        ({"format": "csv", "header": False}, "needs the names of its columns"),
        ({"format": "csv", "rows": "list"}, "rows 'list'"),
        ({"compression": "rar"}, "compression 'rar'"),
        ({"encoding": "utf-16"}, "a newline is not one byte"),
        ({"encoding": "klingon"}, "not known"),
        ({"split_bytes": 0}, "split_bytes is 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FileSource("x", **arguments)
