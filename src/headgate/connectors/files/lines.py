"""Lines of a file, or of a range of its bytes, for text, CSV and JSON sources. Called on the task's thread.

A line belongs to the range that contains its first byte, so ranges that cover a file contain every line once. A line
ends with a newline, or a carriage return and a newline; the other separators of `str.splitlines` do not end a line.
The line number of an error is counted only after the error.
"""

from __future__ import annotations

import codecs
import sys
import zlib
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from headgate.connectors.generators import BATCH_RECORDS
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["CHUNK_BYTES", "FileSplit", "Lines", "check_encoding", "compression_of", "open_file"]

CHUNK_BYTES = 2**20
"""The size of a read."""

_SEARCH_BYTES = 2**16  # the size of a read that searches the end of one line
_SUFFIXES = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd"}
_READ_ERRORS = (OSError, EOFError, zlib.error)  # raised for a damaged or truncated compressed file


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of a file: a range of its bytes, or of a Parquet file's row groups, or the whole file."""

    path: str
    start: int = 0
    end: int | None = None  # None: the end of the file at the time of reading


def compression_of(path: str, compression: str | None = "infer") -> str | None:
    """Return the compression of a file; with 'infer', by the suffix of its name.

    >>> compression_of("words.txt.gz"), compression_of("words.txt"), compression_of("words", "bz2")
    ('gzip', None, 'bz2')
    """
    if compression == "infer":
        return next((kind for suffix, kind in _SUFFIXES.items() if path.endswith(suffix)), None)
    if compression is not None and compression not in _SUFFIXES.values():
        raise ConfigError(f"compression {compression!r}: there are infer, None, {', '.join(set(_SUFFIXES.values()))}")
    return compression


def open_file(path: str, compression: str | None = None) -> IO[bytes]:
    """Open a file for reading, decompressed.

    >>> import gzip, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "words.gz")
    ...     _ = path.write_bytes(gzip.compress(b"to be"))
    ...     with open_file(str(path), "gzip") as file:
    ...         file.read()
    b'to be'
    """
    opened: Any
    if compression == "gzip":
        import gzip  # noqa: PLC0415 - rarely needed

        opened = gzip.open(path, "rb")  # noqa: SIM115 - the caller closes it
    elif compression == "bz2":
        import bz2  # noqa: PLC0415 - rarely needed

        opened = bz2.open(path, "rb")  # noqa: SIM115 - the caller closes it
    elif compression == "zstd":
        import pyarrow as pa  # noqa: PLC0415 - it takes long to import

        opened = pa.input_stream(path, compression="zstd")
    else:
        opened = open(path, "rb", buffering=0)  # noqa: SIM115 - large reads need no second buffer
    return opened  # type: ignore[no-any-return]


def check_encoding(encoding: str) -> str:
    """Return the canonical name of an encoding; raise ConfigError if its newline is not one byte.

    >>> check_encoding("UTF8")
    'utf-8'
    >>> check_encoding("utf-16")
    Traceback (most recent call last):
    headgate.errors.ConfigError: encoding utf-16: a newline is not one byte in it; convert the file to UTF-8 first
    """
    try:
        name = codecs.lookup(encoding).name
        newline = "\n".encode(name)
    except LookupError:
        raise ConfigError(f"encoding {encoding!r} is not known to Python") from None
    if name == "utf-8-sig":  # a byte order mark at the start of a file is skipped for utf-8, too
        return "utf-8"
    if newline != b"\n":
        raise ConfigError(f"encoding {name}: a newline is not one byte in it; convert the file to UTF-8 first")
    return name


@dataclass(frozen=True, slots=True)
class Lines:
    r"""The lines of a split.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "words.txt")
    ...     _ = path.write_text("to\nbe\nor\nnot\n")
    ...     [lines for _, _, lines in Lines(FileSplit(str(path), 4, 13)).batches()]
    [['or', 'not']]
    """

    split: FileSplit
    compression: str | None = None
    encoding: str = "utf-8"
    errors: str = "strict"
    max_line_bytes: int = 64 * 2**20

    def blocks(self) -> Generator[tuple[int, bytes], None, None]:
        """Yield blocks of whole lines, each with its offset; only the last of the file may lack a newline."""
        path, start = self.split.path, self.split.start
        end = sys.maxsize if self.split.end is None else self.split.end
        with self.open() as file:
            if start > 0:
                start = self._line_start(file, start)
            at, pieces, held = start, [], 0  # pieces of an incomplete line
            position = start
            while position < end:
                chunk = self._read(file, min(CHUNK_BYTES, end - position))
                if not chunk:
                    if self.split.end is not None:
                        raise OSError(f"{path} has become shorter: it ends at byte {position}, not {end}")
                    break
                position += len(chunk)
                cut = chunk.rfind(b"\n") + 1
                if cut:
                    pieces.append(chunk[:cut])
                    yield at, self._checked(at, b"".join(pieces))
                    at, pieces, held = position - len(chunk) + cut, [], 0
                if cut < len(chunk):
                    pieces.append(chunk[cut:])
                    held += len(chunk) - cut
                    self._check_length(held, at)
            if held and self.split.end is not None:  # the last line ends after the range
                pieces.append(self._line_rest(file, at, held))
            if held:
                yield at, self._checked(at, b"".join(pieces))

    def batches(self) -> Generator[tuple[int, int, list[str]], None, None]:
        """Yield lines without their ends, in batches, each with its block's offset and its first line's index there."""
        bom = codecs.BOM_UTF8 if self.encoding == "utf-8" else b""
        with closing(self.blocks()) as blocks:
            for at, block in blocks:
                lines = self._split(at, block.removeprefix(bom) if at == 0 else block)
                for first in range(0, len(lines), BATCH_RECORDS):
                    yield at, first, lines[first : first + BATCH_RECORDS] if len(lines) > BATCH_RECORDS else lines

    def _split(self, at: int, block: bytes) -> list[str]:
        """Return the lines of a block."""
        try:
            text = block.decode(self.encoding, self.errors)
        except UnicodeDecodeError as error:
            raise self.fault(at, block.count(b"\n", 0, error.start), str(error)) from error
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    def fault(self, at: int, line: int, what: str) -> ValueError:
        """Return an error that names the file and the line: the `line`-th after the one at offset `at`."""
        with self.open() as file:
            while at > 0 and (chunk := file.read(min(CHUNK_BYTES, at))):
                line += chunk.count(b"\n")
                at -= len(chunk)
        return ValueError(f"{self.split.path}, line {line + 1}: {what}")

    def open(self) -> IO[bytes]:
        """Open the whole file, decompressed."""
        return open_file(self.split.path, self.compression)

    def _read(self, file: IO[bytes], size: int) -> bytes:
        try:
            return file.read(size)
        except _READ_ERRORS as error:
            kind = f" as {self.compression}" if self.compression else ""
            raise OSError(f"{self.split.path} cannot be read{kind}: {error}") from error

    def _line_start(self, file: IO[bytes], start: int) -> int:
        """Return the offset of the first line that starts at `start` or later, and seek to it."""
        file.seek(start - 1)
        position = start - 1
        while chunk := self._read(file, _SEARCH_BYTES):
            newline = chunk.find(b"\n") + 1
            if newline:
                file.seek(position + newline)
                return position + newline
            position += len(chunk)
        return sys.maxsize  # no line starts there

    def _line_rest(self, file: IO[bytes], at: int, held: int) -> bytes:
        pieces = []
        while chunk := self._read(file, _SEARCH_BYTES):
            newline = chunk.find(b"\n") + 1
            pieces.append(chunk[:newline] if newline else chunk)
            if newline:
                break
            held += len(chunk)
            self._check_length(held, at)
        return b"".join(pieces)

    def _checked(self, at: int, block: bytes) -> bytes:
        """Return the block, or raise if a line is too long. A block shorter than the limit needs no check."""
        if len(block) > self.max_line_bytes:
            for line, length in enumerate(map(len, block.split(b"\n"))):
                if length > self.max_line_bytes:
                    raise self.fault(at, line, f"longer than {self.max_line_bytes} bytes (max_line_bytes)")
        return block

    def _check_length(self, length: int, at: int) -> None:
        if length > self.max_line_bytes:
            raise self.fault(at, 0, f"longer than {self.max_line_bytes} bytes (max_line_bytes)")
