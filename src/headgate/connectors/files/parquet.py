"""Records of Parquet files; a split is a range of row groups. pyarrow is imported by the first call.

The driver calls `parts`, which reads the footers of the files; the task's thread calls `batches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.connectors.files.lines import FileSplit
from headgate.connectors.generators import BATCH_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ParquetRows"]


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Reads rows as dicts or tuples, or record batches.

    >>> import pathlib, tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = str(pathlib.Path(directory, "prices.parquet"))
    ...     pq.write_table(pa.table({"name": ["tea", "milk"], "price": [2.5, 1.0]}), path, row_group_size=1)
    ...     rows = ParquetRows(form="tuple")
    ...     parts = rows.parts(path, 1)
    ...     [list(rows.batches(part, 0)) for part in parts]
    [[[('tea', 2.5)]], [[('milk', 1.0)]]]
    """

    form: str = "dict"  # or 'tuple', 'arrow'
    columns: tuple[str, ...] | None = None  # None: all
    batch_rows: int = BATCH_RECORDS

    def sizes(self, path: str) -> list[int]:
        """Return the bytes of each row group before compression."""
        import pyarrow as pa  # noqa: PLC0415 - it takes long to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - it takes long to import

        try:
            metadata = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{path} cannot be read as Parquet: {error}") from error
        return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]

    def parts(self, path: str, target_bytes: int, sizes: list[int] | None = None) -> list[FileSplit]:
        """Return ranges of row groups of about `target_bytes` each."""
        parts, start, held, end = [], 0, 0, 0
        for group, size in enumerate(self.sizes(path) if sizes is None else sizes):
            if held and held + size > target_bytes:
                parts.append(FileSplit(path, start, group))
                start, held = group, 0
            held += max(1, size)
            end = group + 1
        return [*parts, FileSplit(path, start, end)] if held else parts

    def batches(self, split: FileSplit, offset: int) -> Iterator[list[Any]]:
        """Yield the rows of a split from an offset on; with form 'arrow' an offset counts record batches."""
        import pyarrow as pa  # noqa: PLC0415 - it takes long to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - it takes long to import

        assert split.end is not None, "a Parquet split without an end"
        try:
            with pq.ParquetFile(split.path) as file:
                groups = list(range(split.start, split.end))
                while self.form != "arrow" and groups and file.metadata.row_group(groups[0]).num_rows <= offset:
                    offset -= file.metadata.row_group(groups.pop(0)).num_rows
                if not groups:
                    return
                columns = None if self.columns is None else self._known(file.schema_arrow.names, split.path)
                for batch in file.iter_batches(self.batch_rows, row_groups=groups, columns=columns):
                    size = 1 if self.form == "arrow" else batch.num_rows
                    if offset >= size:
                        offset -= size
                        continue
                    yield self._records(batch)[offset:]
                    offset = 0
        except (OSError, pa.ArrowException) as error:
            raise OSError(f"{split.path} cannot be read as Parquet: {error}") from error

    def _records(self, batch: Any) -> list[Any]:
        if self.form == "arrow":
            return [batch]
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        if self.form == "tuple":
            return list(rows)
        names = batch.schema.names
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _known(self, names: list[str], path: str) -> list[str]:
        assert self.columns is not None, "called without columns"
        unknown = set(self.columns) - set(names)
        if unknown:
            raise ValueError(f"{path} has no column {', '.join(sorted(unknown))}: its columns are {', '.join(names)}")
        return list(self.columns)
