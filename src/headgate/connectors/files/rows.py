"""Records of CSV and JSON lines. Called on the task's thread, by `files.source`.

Errors name the file and the line, and the column if it is known.
"""

from __future__ import annotations

import csv
import io
import zlib
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.connectors.files.lines import FileSplit
from headgate.connectors.generators import BATCH_RECORDS
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from headgate.connectors.files.lines import Lines

__all__ = ["CsvRows", "JsonRows"]

_BY_ROW = -1  # instead of a block's offset, if rows are counted and not lines
_BOOLEANS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class CsvRows:
    r"""Reads rows of CSV as dicts or tuples; columns in the schema are converted by their types or functions.

    An empty field of a column with a type becomes None. Empty lines are skipped.

    >>> import pathlib, tempfile
    >>> from headgate.connectors.files.lines import FileSplit, Lines
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "prices.csv")
    ...     _ = path.write_text("name,price\ntea,2.5\n")
    ...     list(CsvRows(schema={"price": float}).batches(Lines(FileSplit(str(path)))))
    [[{'name': 'tea', 'price': 2.5}]]
    """

    header: bool = True  # the first line of each file contains the names of the columns
    columns: tuple[str, ...] | None = None  # the names, instead of those of the header
    schema: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    delimiter: str = ","
    quotechar: str | None = '"'
    quoted_newlines: bool = True  # False: a line is a row, so a file can be split at any line
    tuples: bool = False

    def __post_init__(self) -> None:
        if not self.header and self.columns is None:
            raise ConfigError("a CSV file without a header needs the names of its columns: columns=[...]")

    def batches(self, lines: Lines) -> Iterator[list[Any]]:
        """Yield the rows of a split."""
        columns = self._columns(lines) if self.header and self.columns is None else self.columns or ()
        converters = self._converters(columns, lines.split.path)
        names = None if self.tuples else columns
        with closing(self._over_lines(lines) if self.quoted_newlines else self._in_lines(lines)) as found:
            for at, first, rows in found:
                whole = rows
                if set(map(len, rows)) != {len(columns)}:
                    whole = self._whole(rows, columns, lines, at, first)
                for column, convert in converters:
                    try:
                        for row in whole:
                            row[column] = convert(row[column])
                    except Exception as error:
                        line, text = self._first_failure(rows, column, convert)
                        what = f"column {columns[column]}: {text!r} is no {_name(convert)}: {error}"
                        raise self._fault(lines, at, first, line, what) from error
                if whole:
                    yield list(map(tuple, whole)) if names is None else [dict(zip(names, row)) for row in whole]  # noqa: B905 - checked above

    def _reader(self, lines: Any) -> Any:
        if self.quotechar is None:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quotechar)

    def _columns(self, lines: Lines) -> tuple[str, ...]:
        """Return the names in the file's header."""
        if self.quoted_newlines:
            with self._text(lines) as text:
                header = next(self._reader(text), None)
        else:
            with closing(replace(lines, split=FileSplit(lines.split.path)).batches()) as batches:
                _, _, first = next(batches, (0, 0, []))
            header = next(self._reader(first), None)
        if header == []:
            raise ValueError(f"{lines.split.path}, line 1: empty, where the names of the columns should be")
        return tuple(header or ())

    @contextmanager
    def _text(self, lines: Lines) -> Iterator[io.TextIOWrapper]:
        """Open the whole file as text, with unchanged line ends."""
        encoding = "utf-8-sig" if lines.encoding == "utf-8" else lines.encoding
        raw: Any = lines.open()
        with io.TextIOWrapper(io.BufferedReader(raw, 2**18), encoding, lines.errors, newline="") as text:
            try:
                yield text
            except UnicodeDecodeError:
                for _ in lines.batches():  # raises an error with the line number
                    pass
                raise
            except (OSError, EOFError, zlib.error) as error:
                raise OSError(f"{lines.split.path} cannot be read: {error}") from error

    def _over_lines(self, lines: Lines) -> Generator[tuple[int, int, list[list[str]]], None, None]:
        """Yield the rows of a whole file, which may span lines; rows are counted to find the line of an error."""
        with self._text(lines) as text:
            reader = self._reader(text)
            count = 0
            try:
                while rows := list(islice(reader, BATCH_RECORDS)):
                    if self.header and count == 0:
                        rows[0] = []
                    yield _BY_ROW, count, rows
                    count += len(rows)
            except csv.Error as error:
                raise ValueError(f"{lines.split.path}, line {reader.line_num}: {_advised(error)}") from error

    def _in_lines(self, lines: Lines) -> Generator[tuple[int, int, list[list[str]]], None, None]:
        """Yield rows of one line each."""
        with closing(lines.batches()) as batches:
            for at, first, batch in batches:
                try:
                    rows = list(self._reader(chain(batch, ("",))))  # an open quote would consume the added line
                except csv.Error as error:
                    what = f"here or in the lines after it: {_advised(error)}"
                    raise self._fault(lines, at, first, 0, what) from error
                if len(rows) != len(batch) + 1:
                    line = next(i for i, one in enumerate(batch) if len(list(self._reader((one, "")))) != 2)
                    what = "a quote is not closed in its line; read the file with quoted_newlines=True if that is meant"
                    raise self._fault(lines, at, first, line, what)
                rows.pop()
                if self.header and at == 0 and first == 0:
                    rows[0] = []
                yield at, first, rows

    def _whole(
        self, rows: list[list[str]], columns: tuple[str, ...], lines: Lines, at: int, first: int
    ) -> list[list[str]]:
        """Return the non-empty rows; raise if one does not have a field for each column."""
        for line, row in enumerate(rows):
            if row and len(row) != len(columns):
                what = f"{len(row)} fields, but there are {len(columns)} columns: {', '.join(columns)}"
                raise self._fault(lines, at, first, line, what)
        return [row for row in rows if row]

    def _fault(self, lines: Lines, at: int, first: int, line: int, what: str) -> ValueError:
        if at == _BY_ROW:  # rows may span lines
            with self._text(lines) as text:
                reader = self._reader(text)
                for _ in islice(reader, first + line):
                    pass
                return ValueError(f"{lines.split.path}, line {reader.line_num + 1}: {what}")
        return lines.fault(at, first + line, what)

    def _converters(self, columns: tuple[str, ...], path: str) -> list[tuple[int, Callable[[str], Any]]]:
        unknown = set(self.schema) - set(columns)
        if unknown and columns:
            raise ConfigError(
                f"{path} has no column {', '.join(sorted(unknown))}: its columns are {', '.join(columns)}"
            )
        return [(columns.index(name), _converter(kind)) for name, kind in self.schema.items() if name in columns]

    @staticmethod
    def _first_failure(rows: list[list[Any]], column: int, convert: Callable[[str], Any]) -> tuple[int, str]:
        """Return the index and text of the first row that is not converted yet and cannot be."""
        for line, row in enumerate(rows):
            try:
                if row and isinstance(row[column], str):
                    convert(row[column])
            except Exception:  # noqa: BLE001 - a user's function
                return line, row[column]
        return 0, "a field"


def _converter(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    if kind is str:
        return str
    parse = _boolean if kind is bool else kind

    def convert(text: str) -> Any:
        return parse(text) if text else None

    convert.__name__ = _name(kind)
    return convert


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"it must be one of {', '.join(_BOOLEANS)}") from None


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _advised(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"{error}; is a quote not closed? If not, raise csv.field_size_limit"
    return str(error)


@dataclass(frozen=True, slots=True)
class JsonRows:
    r"""Reads one JSON value per line; empty lines are skipped.

    With a schema, which is a type such as a dataclass, a TypedDict or a msgspec.Struct, each value is checked and
    converted to it.

    >>> import pathlib, tempfile
    >>> from headgate.connectors.files.lines import FileSplit, Lines
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "prices.json")
    ...     _ = path.write_text('{"name": "tea", "price": 2.5}\n')
    ...     list(JsonRows().batches(Lines(FileSplit(str(path)))))
    [[{'name': 'tea', 'price': 2.5}]]
    """

    schema: Any = Any

    def batches(self, lines: Lines) -> Iterator[list[Any]]:
        """Yield the values of a split."""
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.schema)
        batch_decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[self.schema])  # type: ignore[name-defined]
        with closing(lines.batches()) as batches:
            for at, first, batch in batches:
                values: list[Any] = []
                with suppress(msgspec.DecodeError, UnicodeError):  # a line is empty or wrong: decode them one by one
                    values = batch_decoder.decode(f"[{','.join(batch)}]")
                if len(values) != len(batch):
                    values = list(self._one_by_one(decoder, lines, at, first, batch))
                if values:
                    yield values

    @staticmethod
    def _one_by_one(
        decoder: msgspec.json.Decoder[Any], lines: Lines, at: int, first: int, batch: list[str]
    ) -> Iterator[Any]:
        for line, text in enumerate(batch):
            if not text or text.isspace():
                continue
            try:
                yield decoder.decode(text)
            except (msgspec.DecodeError, UnicodeError) as error:
                what = f"no JSON value of its own: {error}"
                raise lines.fault(at, first + line, what) from error
