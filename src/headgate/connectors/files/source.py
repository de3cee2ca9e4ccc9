"""FileSource: the files of a source and their splits. `files.lines`, `files.rows` and `files.parquet` read records.

`splits` examines the files in the driver, `read` opens them in the workers: the paths must refer to the same files
there. Invariant: the splits cover every file, and each record is in exactly one of them.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.connectors.files.lines import FileSplit, Lines, check_encoding, compression_of
from headgate.connectors.files.parquet import ParquetRows
from headgate.connectors.files.rows import CsvRows, JsonRows
from headgate.connectors.generators import BATCH_RECORDS, skip
from headgate.errors import ConfigError
from headgate.functions.source import Source, Wait
from headgate.task.operators.calls import retains_nothing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headgate.functions.place import Place

__all__ = ["FileSource"]

_FORMATS = ("text", "csv", "json", "parquet")
_MIN_SPLIT_BYTES = 2**20
_MAX_SPLIT_BYTES = 64 * 2**20
_ARROW_ROWS = 8192


class FileSource(Source[Any]):
    r"""The records of files: lines as str, CSV and JSON lines as dicts, Parquet as dicts, tuples or record batches.

    `path` is a file, a directory (its files, except those whose names start with '.' or '_'), a pattern such as
    'logs/**/*.gz', or a list of these. Several subtasks read a large file: text and JSON lines by byte ranges, Parquet
    by row groups, CSV by byte ranges with `quoted_newlines=False`, if no field contains a newline. One subtask reads a
    file that is compressed by gzip, bzip2 or zstd.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     for name, text in ("a.txt", "to be\nor\n"), ("b.txt", "not to be\n"):
    ...         _ = pathlib.Path(directory, name).write_text(text)
    ...     source = FileSource(directory + "/*.txt")
    ...     [batch for split in source.splits(2) for batch in source.read(split, 0, None)]
    [['to be', 'or'], ['not to be']]

    Options:
        split_bytes: the approximate size of a split; by default the files' size by the parallelism, 1 to 64 MiB.
        compression: 'infer' (the default, by the suffix of the name), None, 'gzip', 'bz2' or 'zstd'.
        encoding, errors: of text, CSV and JSON: as for `bytes.decode`. A byte order mark of UTF-8 is skipped.
        max_line_bytes: of text and JSON: the maximum length of a line; a longer one is an error.
        schema: of CSV: types or functions by column, `{"price": float}`; of JSON: the type of each value.
        header, columns, delimiter, quotechar, quoted_newlines: of CSV: see `CsvRows`.
        columns: of Parquet: the columns to read.
        rows: of CSV and Parquet: 'dict' or 'tuple'.
        arrow: of Parquet: each record is a pyarrow.RecordBatch of up to `batch_rows` rows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        format: str = "text",  # noqa: A002 - Spark's word
        **options: Any,
    ) -> None:
        if format not in _FORMATS:
            raise ConfigError(f"format {format!r}: there are {', '.join(_FORMATS)}")
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        # Workers may have another working directory.
        self._paths = [os.path.abspath(os.fspath(one)) for one in paths]
        self._format = format
        self._split_bytes: int | None = options.pop("split_bytes", None)
        if self._split_bytes is not None and self._split_bytes < 1:
            raise ConfigError(f"split_bytes is {self._split_bytes}: a split has at least one byte")
        if format == "parquet":
            self._parquet = _parquet(options)
        else:
            self._compression: str | None = options.pop("compression", "infer")
            compression_of("", self._compression)
            self._encoding = check_encoding(options.pop("encoding", "utf-8"))
            self._errors: str = options.pop("errors", "strict")
            self._max_line_bytes: int = options.pop("max_line_bytes", 64 * 2**20)
        self._csv = _csv(options) if format == "csv" else None
        self._json = JsonRows(options.pop("schema", Any)) if format == "json" else None
        if options:
            raise ConfigError(f"{format} files have no option {', '.join(sorted(options))}: see FileSource")
        converters = {} if self._csv is None else self._csv.schema
        self.fresh = all(map(retains_nothing, converters.values()))
        self.hint = self._known_hint()

    def _known_hint(self) -> object:
        if self._format == "text":
            return str
        if self._format == "parquet" and self._parquet.form == "arrow":
            return "arrow"
        if self._csv is not None and not self._csv.schema and not self._csv.tuples:
            return dict[str, str]
        return None

    def splits(self, parallelism: int) -> Sequence[FileSplit]:
        """Return the files, and parts of large files."""
        files = self.files()
        if self._format == "parquet":
            groups = {path: self._parquet.sizes(path) for path in files}
            target = self._target(sum(map(sum, groups.values())), parallelism)
            return [part for path, sizes in groups.items() for part in self._parquet.parts(path, target, sizes)]
        lengths = {path: Path(path).stat().st_size for path in files}
        target = self._target(sum(lengths.values()), parallelism)
        return [part for path, length in lengths.items() for part in self._ranges(path, length, target)]

    def files(self) -> list[str]:
        """Return the files that exist now, each once; those of a directory or pattern in the order of their names."""
        found: dict[str, None] = {}
        for path in self._paths:
            if os.path.isdir(path):
                inside = sorted(one for one in Path(path).iterdir() if one.name[0] not in "._" and one.is_file())
                matches = [str(one) for one in inside]
            elif os.path.exists(path):  # before the pattern: the name of a file may contain '*'
                matches = [path]
            else:
                matches = sorted(one for one in glob.glob(path, recursive=True) if os.path.isfile(one))
            if not matches:
                raise FileNotFoundError(f"there is no file {path}, and none that matches it as a pattern")
            found.update(dict.fromkeys(matches))
        return list(found)

    def _target(self, total: int, parallelism: int) -> int:
        if self._split_bytes is not None:
            return self._split_bytes
        return max(_MIN_SPLIT_BYTES, min(_MAX_SPLIT_BYTES, -(-total // parallelism)))

    def _ranges(self, path: str, length: int, target: int) -> list[FileSplit]:
        whole = compression_of(path, self._compression) or (self._csv is not None and self._csv.quoted_newlines)
        if whole:
            return [FileSplit(path)]
        parts = -(-length // target)
        return [FileSplit(path, i * length // parts, (i + 1) * length // parts) for i in range(parts)]

    def read(self, split: FileSplit, offset: int, place: Place) -> Iterator[list[Any] | Wait]:  # noqa: ARG002
        """Yield the records of a split, in batches of at most 1,000."""
        if self._format == "parquet":
            return self._parquet.batches(split, offset)
        return skip(self._batches(split), offset)

    def _batches(self, split: FileSplit) -> Iterator[list[Any]]:
        compression = compression_of(split.path, self._compression)
        lines = Lines(split, compression, self._encoding, self._errors, self._max_line_bytes)
        rows = self._csv or self._json
        return (batch for _, _, batch in lines.batches()) if rows is None else rows.batches(lines)


def _csv(options: dict[str, Any]) -> CsvRows:
    given = {
        name: options.pop(name)
        for name in ("header", "schema", "delimiter", "quotechar", "quoted_newlines")
        if name in options
    }
    return CsvRows(columns=_names(options), tuples=_form(options) == "tuple", **given)


def _parquet(options: dict[str, Any]) -> ParquetRows:
    form = "arrow" if options.pop("arrow", False) else _form(options)
    rows = options.pop("batch_rows", _ARROW_ROWS if form == "arrow" else BATCH_RECORDS)
    return ParquetRows(form, _names(options), rows)


def _names(options: dict[str, Any]) -> tuple[str, ...] | None:
    columns = options.pop("columns", None)
    return None if columns is None else tuple(columns)


def _form(options: dict[str, Any]) -> str:
    form: str = options.pop("rows", "dict")
    if form not in {"dict", "tuple"}:
        raise ConfigError(f"rows {form!r}: there are dict, tuple")
    return form
