"""FileSink: each subtask writes its own files, and readers find only complete files.

A file is written under a hidden name in its directory, and renamed when it is complete. After a failure, files that are
not renamed are deleted. Called on the task's thread; every subtask has a copy of the sink.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headgate.connectors.files.formats import CsvWriter, JsonWriter, ParquetWriter, TextWriter
from headgate.errors import ConfigError
from headgate.functions.sink import Sink

if TYPE_CHECKING:
    from headgate.connectors.files.formats import RowWriter
    from headgate.functions.place import Place

__all__ = ["FileSink"]

_SUFFIXES = {"text": ".txt", "csv": ".csv", "json": ".json", "parquet": ".parquet"}
_OPTIONS = {"text": (), "csv": ("columns", "header", "delimiter"), "json": (), "parquet": ("schema", "columns")}
_PART_FILE = re.compile(r"part-(\d{5})-\d{5}\.[a-z]+")


@dataclass(slots=True)
class _Open:
    """The file that is written now."""

    hidden: Path
    name: str
    file: IO[bytes]
    writer: RowWriter
    rows: int = 0


class FileSink(Sink[Any]):
    r"""Writes records to files in a directory: `part-<subtask>-<number>.<format>`.

    Formats are 'text' (a line for each value), 'csv' and 'parquet' (of dicts or tuples; Parquet also of record batches)
    and 'json' (a line for each value). A new file is started after `roll_rows` rows or about `roll_bytes` bytes.
    Record batches are not divided.

    `commit` is the time at which files get their names: 'finish', after the subtask's last record, or 'roll', as soon
    as a file is full, for pipelines without an end. `if_exists` decides about files of an earlier job: 'error', or
    'replace', after the subtask's last record.

    Options: `columns`, `header`, `delimiter` of CSV; `schema` (a pyarrow.Schema) and `columns` of Parquet.

    >>> import logging, pathlib, tempfile
    >>> from headgate.functions.place import Place
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     sink = FileSink(directory, "csv", roll_rows=2)
    ...     sink.open(Place("write", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user")))
    ...     sink.write([{"word": "to", "n": 2}, {"word": "be", "n": 2}, {"word": "or", "n": 1}])
    ...     sink.finish(); sink.close()
    ...     [(path.name, path.read_text()) for path in sorted(pathlib.Path(directory).iterdir())]
    [('part-00000-00000.csv', 'word,n\nto,2\nbe,2\n'), ('part-00000-00001.csv', 'word,n\nor,1\n')]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        format: str = "text",  # noqa: A002 - Spark's word
        *,
        roll_rows: int | None = None,
        roll_bytes: int | None = None,
        commit: str = "finish",
        if_exists: str = "error",
        **options: Any,
    ) -> None:
        if format not in _SUFFIXES:
            raise ConfigError(f"format {format!r}: there are {', '.join(_SUFFIXES)}")
        for name, value, values in (
            ("commit", commit, ("finish", "roll")),
            ("if_exists", if_exists, ("error", "replace")),
        ):
            if value not in values:
                raise ConfigError(f"{name} {value!r}: there are {', '.join(values)}")
        if (roll_rows is not None and roll_rows < 1) or (roll_bytes is not None and roll_bytes < 1):
            raise ConfigError(f"roll_rows {roll_rows}, roll_bytes {roll_bytes}: a file has at least one of each")
        unknown = set(options) - set(_OPTIONS[format])
        if unknown:
            raise ConfigError(f"{format} files have no option {', '.join(sorted(unknown))}: see FileSink")
        self._directory = Path(directory).absolute()  # workers may have another working directory
        self._format = format
        self._roll_rows = roll_rows
        self._roll_bytes = roll_bytes
        self._commit_at_roll = commit == "roll"
        self._replace = if_exists == "replace"
        self._options = options
        self._subtask = 0
        self._parallelism = 1
        self._open: _Open | None = None
        self._full: list[tuple[Path, str]] = []  # complete, but not renamed
        self._written: set[str] = set()
        self._token = ""

    def open(self, place: Place) -> None:
        """Create the directory. Raises FileExistsError for files of an earlier job, unless they are replaced."""
        self._subtask, self._parallelism = place.subtask, place.parallelism
        self._token = secrets.token_hex(8)  # an earlier attempt of the same job may still be running
        self._directory.mkdir(parents=True, exist_ok=True)
        if not self._replace and (old := self._old()):
            raise FileExistsError(
                f"{self._directory} has {old[0].name} of an earlier job: empty it, or say if_exists='replace'"
            )

    def write(self, values: list[Any]) -> None:
        """Write a batch, to several files if needed."""
        start = 0
        while start < len(values):
            into = self._open or self._begin()
            end = len(values)
            if self._roll_rows is not None and not _is_arrow(values[start]):
                end = min(end, start + self._roll_rows - into.rows)
            part = values[start:end] if end - start < len(values) else values
            try:
                size = into.writer.write(part)
            except OSError as error:
                raise OSError(error.errno, error.strerror or str(error), str(into.hidden)) from error
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError  # subclasses may not accept a text
                where = f"{self._directory / into.name}, in {len(part)} records after row {into.rows}"
                raise kind(f"{where}: {error}") from error
            into.rows += sum(batch.num_rows for batch in part) if _is_arrow(part[0]) else len(part)
            start = end
            full = self._roll_rows is not None and into.rows >= self._roll_rows
            if full or (self._roll_bytes is not None and size >= self._roll_bytes):
                self._complete(into)

    def finish(self) -> None:
        """Complete the last file, and rename all files."""
        if self._open is not None:
            self._complete(self._open)
        self._publish()
        if self._replace:
            for old in self._old():
                old.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the files that are not renamed, which exist only after a failure."""
        into, self._open = self._open, None
        if into is not None:
            into.file.close()
            into.hidden.unlink(missing_ok=True)
        while self._full:
            self._full.pop()[0].unlink(missing_ok=True)

    def _begin(self) -> _Open:
        number = len(self._written) + len(self._full)
        name = f"part-{self._subtask:05d}-{number:05d}{_SUFFIXES[self._format]}"
        hidden = self._directory / f".{name}.{self._token}.tmp"
        file = hidden.open("xb")
        self._open = _Open(hidden, name, file, self._writer(file))
        return self._open

    def _writer(self, file: IO[bytes]) -> RowWriter:
        match self._format:
            case "csv":
                return CsvWriter(file, **self._options)
            case "json":
                return JsonWriter(file)
            case "parquet":
                return ParquetWriter(file, **self._options)
        return TextWriter(file)

    def _complete(self, into: _Open) -> None:
        """Write the file to disk before it is renamed, so that a named file is complete also after a power failure."""
        into.writer.close()
        into.file.flush()
        os.fsync(into.file.fileno())
        into.file.close()
        self._open = None
        self._full.append((into.hidden, into.name))
        if self._commit_at_roll:
            self._publish()

    def _publish(self) -> None:
        while self._full:
            hidden, name = self._full[0]
            hidden.replace(self._directory / name)
            self._written.add(name)
            self._full.pop(0)

    def _old(self) -> list[Path]:
        """Return the files of this subtask from earlier jobs; subtask 0 includes those beyond the parallelism."""
        old = []
        for path in sorted(self._directory.iterdir()):
            match = _PART_FILE.fullmatch(path.name)
            if match is None or path.name in self._written:
                continue
            subtask = int(match.group(1))
            if subtask == self._subtask or (self._subtask == 0 and subtask >= self._parallelism):
                old.append(path)
        return old


def _is_arrow(value: object) -> bool:
    """Return True for a record batch, without importing pyarrow."""
    return type(value).__module__ == "pyarrow.lib"
