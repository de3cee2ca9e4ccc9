"""Writers of records to a file: text, CSV, JSON lines, Parquet. Each writes one file of one subtask.

Used by `files.sink`, on the task's thread. `write` returns the approximate size of the file so far; `close` completes
the file, which the caller opens and closes.
"""

from __future__ import annotations

import csv
import io
from typing import IO, TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CsvWriter", "JsonWriter", "ParquetWriter", "RowWriter", "TextWriter"]


class RowWriter(Protocol):
    """The interface of the writers."""

    def write(self, values: list[Any]) -> int:
        """Write a batch. Return the bytes so far."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


class TextWriter:
    r"""Writes `str(value)` as a line for each value.

    >>> file = io.BytesIO()
    >>> TextWriter(file).write(["to", 2])
    5
    >>> file.getvalue()
    b'to\n2\n'
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, values: list[Any]) -> int:
        """See `RowWriter`."""
        if values:
            self._file.write(("\n".join(map(str, values)) + "\n").encode())
        return self._file.tell()

    def close(self) -> None:
        """See `RowWriter`."""


class JsonWriter:
    r"""Writes a line of JSON for each value of a type that msgspec supports, such as dataclasses and dates.

    >>> file = io.BytesIO()
    >>> JsonWriter(file).write([{"word": "to", "n": 2}])
    20
    >>> file.getvalue()
    b'{"word":"to","n":2}\n'
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, values: list[Any]) -> int:
        """See `RowWriter`."""
        self._file.write(self._encode(values))
        return self._file.tell()

    def close(self) -> None:
        """See `RowWriter`."""


class CsvWriter:
    """Writes a row for each dict, tuple or list, after a header if the names of the columns are known.

    The names are `columns`, or the keys of the first dict, or the fields of the first named tuple.

    >>> file = io.BytesIO()
    >>> _ = CsvWriter(file).write([{"word": "to", "n": 2}, {"word": "be, or", "n": 1}])
    >>> print(file.getvalue().decode(), end="")
    word,n
    to,2
    "be, or",1
    """

    def __init__(
        self, file: IO[bytes], columns: Sequence[str] | None = None, *, header: bool = True, delimiter: str = ","
    ) -> None:
        self._file = file
        self._columns = None if columns is None else list(columns)
        self._header = header
        self._text = io.StringIO(newline="")
        self._writer = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._begun = False

    def write(self, values: list[Any]) -> int:
        """See `RowWriter`."""
        if not values:
            return self._file.tell()
        if not self._begun:
            self._begin(values[0])
        if isinstance(values[0], dict):
            rows = [self._row(value) for value in values]
        else:
            rows = values
            wrong = {type(row).__name__ for row in values if not isinstance(row, tuple | list)}
            if wrong:
                raise TypeError(f"rows of CSV are all dicts, or all tuples or lists; here is {wrong.pop()}")
            if self._columns is not None and set(map(len, rows)) != {len(self._columns)}:
                raise ValueError(f"a row does not have the {len(self._columns)} columns {', '.join(self._columns)}")
        self._writer.writerows(rows)
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()
        return self._file.tell()

    def _begin(self, first: Any) -> None:
        self._begun = True
        if self._columns is None:
            names = first.keys() if isinstance(first, dict) else getattr(first, "_fields", None)
            self._columns = None if names is None else list(names)
        if self._header and self._columns is not None:
            self._writer.writerow(self._columns)

    def _row(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            raise TypeError(f"a row is a {type(value).__name__}, the first of its batch a dict: they must be alike")
        if self._columns is None:
            raise TypeError("a row is a dict, the first of its file was a tuple: name the columns")
        row = [value.get(name, "") for name in self._columns]
        if len(value) > len(row) or not value.keys() <= set(self._columns):
            extra = ", ".join(str(name) for name in value if name not in self._columns)
            raise ValueError(f"a row has {extra} besides the columns {', '.join(self._columns)}: name all columns")
        return row

    def close(self) -> None:
        """See `RowWriter`."""


class ParquetWriter:
    """Writes dicts, tuples or record batches as rows of Parquet, in row groups of 65,536 rows or 16 MiB.

    The schema is `schema` (a pyarrow.Schema), or that of the first batch.

    >>> file = io.BytesIO()
    >>> writer = ParquetWriter(file)
    >>> _ = writer.write([{"word": "to", "n": 2}]); writer.close()
    >>> import pyarrow.parquet as pq
    >>> pq.read_table(file).to_pylist()
    [{'word': 'to', 'n': 2}]
    """

    ROW_GROUP_ROWS = 2**16
    ROW_GROUP_BYTES = 16 * 2**20

    def __init__(self, file: IO[bytes], schema: Any = None, columns: Sequence[str] | None = None) -> None:
        self._file = file
        self._schema = schema
        self._columns = list(columns) if columns is not None else None if schema is None else list(schema.names)
        self._writer: Any = None
        self._held: list[Any] = []  # record batches of the next row group
        self._held_rows = self._held_bytes = 0

    def write(self, values: list[Any]) -> int:
        """See `RowWriter`."""
        for batch in self._batches(values):
            self._held.append(batch)
            self._held_rows += batch.num_rows
            self._held_bytes += batch.nbytes
            if self._held_rows >= self.ROW_GROUP_ROWS or self._held_bytes >= self.ROW_GROUP_BYTES:
                self._write_group()
        return self._file.tell() + self._held_bytes

    def close(self) -> None:
        """See `RowWriter`."""
        if self._held:
            self._write_group()
        if self._writer is not None:
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - it takes long to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - it takes long to import

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema)
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema), row_group_size=self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0

    def _batches(self, values: list[Any]) -> list[Any]:
        import pyarrow as pa  # noqa: PLC0415 - it takes long to import

        if not values:
            return []
        if isinstance(values[0], pa.RecordBatch):
            batches = [value for value in values if value.num_rows]
        elif isinstance(values[0], dict):
            batches = [pa.RecordBatch.from_pylist(values, schema=self._schema)]
        elif isinstance(values[0], tuple | list):
            names = self._columns or getattr(values[0], "_fields", None) or [f"_{i + 1}" for i in range(len(values[0]))]
            types = [None] * len(names) if self._schema is None else self._schema.types
            arrays = [pa.array(column, kind) for column, kind in zip(zip(*values, strict=True), types, strict=True)]
            batches = [pa.RecordBatch.from_arrays(arrays, names=names)]
        else:
            raise TypeError(f"a row of Parquet is a dict, a tuple or a RecordBatch, not {type(values[0]).__name__}")
        if self._schema is None and batches:
            self._schema = batches[0].schema
        return [batch if batch.schema.equals(self._schema) else batch.cast(self._schema) for batch in batches]
