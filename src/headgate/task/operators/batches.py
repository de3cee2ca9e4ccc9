"""Functions of whole batches, and conversion from and to Arrow. Called on the task's thread.

In an Arrow stream each value is one `pyarrow.RecordBatch`, without event times. pyarrow and pandas are imported with
the first batch: pipelines without Arrow do not import them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headgate.functions.basic import method_of
from headgate.task.operator import Operator
from headgate.task.operators.basic import FunctionOperator
from headgate.task.operators.calls import gather_items_for, retains_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from headgate.record.element import Event
    from headgate.task.operator import Times, Values

__all__ = ["FromArrow", "MapBatches", "ToArrow"]

_Form = Literal["list", "arrow", "pandas"]
_RowForm = Literal["tuple", "dict"]


class MapBatches(FunctionOperator):
    """Calls a function with whole batches: lists, Arrow record batches, or pandas frames of Arrow record batches.

    The length of a batch is not fixed, and the function may return a list of any length. If the length stays the same,
    the results keep the event times by position; otherwise they have none, because it is unknown which result belongs
    to which value. Empty batches are dropped.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(MapBatches(sorted)) as harness:
    ...     harness.process(["to", "be", "or"])
    >>> harness.values
    ['be', 'or', 'to']
    """

    def __init__(self, function: Any, form: _Form = "list") -> None:
        super().__init__(function)
        if form not in {"list", "arrow", "pandas"}:
            raise ValueError(f"batches come as list, arrow or pandas, not as {form!r}")
        self._form = form

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        call = method_of(self.function, "map")
        self._gather = gather_items_for(call, object_reuse=self.place.object_reuse)
        copies = not self.place.object_reuse and not retains_nothing(call)
        self._call: Callable[[Any], Any] = call if self._form != "pandas" else _with_pandas(call, copies=copies)

    def process(self, values: Values, times: Times) -> None:
        """Call the function for the list, or for each record batch."""
        if self._form == "list":
            before = len(values)
            with self.user_code():
                mapped = self._gather(self._call(values))
            self.out.emit(mapped, times if len(mapped) == before else None)
            return
        with self.user_code():
            batches = [batch for value in values for batch in _record_batches(self._call(value)) if batch.num_rows]
        self.out.emit(batches)


def _with_pandas(call: Callable[[Any], Any], *, copies: bool) -> Callable[[Any], Any]:
    import pyarrow as pa  # noqa: PLC0415 - see the module

    def through_pandas(batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = call(batch.to_pandas())
        # Arrow shares the memory of a numeric column: without a copy, the function could change an emitted batch.
        return pa.RecordBatch.from_pandas(frame.copy() if copies else frame, preserve_index=False)

    return through_pandas


def _record_batches(found: Any) -> Sequence[Any]:
    """Return a function's result as record batches."""
    import pyarrow as pa  # noqa: PLC0415 - see the module

    if isinstance(found, pa.RecordBatch):
        return (found,)
    if isinstance(found, pa.Table):
        batches: list[Any] = found.to_batches()
        return batches
    raise TypeError(f"a function of Arrow batches must give a RecordBatch or a Table, not {type(found).__name__}")


class ToArrow(Operator):
    """Collects rows into Arrow record batches of up to `batch_rows`: tuples, dicts, objects with fields, or scalars.

    A batch is emitted when it is full, when the task has no input at hand, and before a watermark or event. Without a
    schema, the first batch determines names and types: the keys of dicts, the fields of named tuples and other objects,
    `_1`, `_2` and so on for tuples, one column `value` for scalars, as in Spark. A key that a dict lacks becomes null.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(ToArrow(batch_rows=2)) as harness:
    ...     harness.process([("to", 2), ("be", 2), ("or", 1)]); harness.end()
    >>> [batch.to_pydict() for batch in harness.values]
    [{'_1': ['to', 'be'], '_2': [2, 2]}, {'_1': ['or'], '_2': [1]}]
    """

    def __init__(self, schema: pa.Schema | None = None, batch_rows: int = 1024) -> None:
        if batch_rows < 1:
            raise ValueError(f"a record batch has one row or more, not {batch_rows}")
        self._schema = schema
        self._batch_rows = batch_rows
        self._rows: Values = []

    def process(self, values: Values, times: Times) -> None:  # noqa: ARG002 - Arrow streams have no event times
        """Collect rows, and emit full batches."""
        rows, size = self._rows, self._batch_rows
        rows.extend(values)
        if len(rows) >= size:
            full = len(rows) - len(rows) % size
            self._rows = rows[full:]
            self._emit([rows[start : start + size] for start in range(0, full, size)])

    def watermark(self, timestamp_ms: int) -> None:
        """Emit the collected rows before the watermark."""
        self.flush()
        self.out.emit_watermark(timestamp_ms)

    def event(self, event: Event) -> None:
        """Emit the collected rows before the event."""
        self.flush()
        self.out.emit_event(event)

    def flush(self) -> None:
        """Emit the collected rows."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._emit([rows])

    def finish(self) -> None:
        """Emit the collected rows."""
        self.flush()

    def _emit(self, groups: list[Values]) -> None:
        with self.user_code():
            batches = [self._batch(rows) for rows in groups]
        self.out.emit(batches)

    def _batch(self, rows: Values) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - see the module

        schema = self._schema
        names = _names_in(rows) if schema is None else schema.names
        columns = _columns(rows, names)
        try:
            if schema is None:
                batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)
                self._schema = batch.schema
                return batch
            arrays = [pa.array(column, type=kind) for column, kind in zip(columns, schema.types, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            shown = "no schema was given" if schema is None else ", ".join(str(field) for field in schema)
            raise TypeError(f"rows like {rows[0]!r:.200} do not fit into columns ({shown}): {error}") from error
        return batch


def _names_in(rows: Values) -> list[str]:
    """Return the column names of rows without a schema."""
    first = rows[0]
    if isinstance(first, dict):
        return list(dict.fromkeys(name for row in rows for name in row))
    names = _field_names(first)
    if names is not None:
        return list(names)
    if isinstance(first, tuple | list):
        return [f"_{number}" for number in range(1, len(first) + 1)]
    return ["value"]


def _field_names(row: Any) -> Sequence[str] | None:
    kind = type(row)
    fields = getattr(kind, "_fields", None) or getattr(kind, "__struct_fields__", None)
    if fields is None:
        fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else tuple(fields)


def _columns(rows: Values, names: list[str]) -> Sequence[Sequence[Any]]:
    first = rows[0]
    if isinstance(first, dict):
        return [[row.get(name) for row in rows] for name in names]
    if isinstance(first, tuple | list):
        columns = list(zip(*rows, strict=True))
        if len(columns) != len(names):
            raise TypeError(f"a row like {first!r:.200} has {len(columns)} fields; the columns are {', '.join(names)}")
        return columns
    if _field_names(first) is not None:
        return [[getattr(row, name) for row in rows] for name in names]
    if len(names) != 1:
        raise TypeError(f"a row like {first!r:.200} is one value; the columns are {', '.join(names)}")
    return [rows]


class FromArrow(Operator):
    """Emits the rows of Arrow record batches as tuples or dicts; with form "tuple", a single column as bare values.

    >>> import pyarrow as pa
    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(FromArrow("tuple")) as harness:
    ...     harness.process([pa.record_batch({"word": ["to", "be"], "n": [2, 2]})])
    >>> harness.values
    [('to', 2), ('be', 2)]
    """

    def __init__(self, form: _RowForm = "tuple") -> None:
        if form not in {"tuple", "dict"}:
            raise ValueError(f"rows come as tuple or dict, not as {form!r}")
        self._form = form

    def process(self, values: Values, times: Times) -> None:  # noqa: ARG002 - Arrow streams have no event times
        """Emit the rows of each record batch."""
        rows: Values = []
        with self.user_code():
            for batch in values:
                columns = [column.to_pylist() for column in batch.columns]
                if self._form == "dict":
                    names = batch.schema.names
                    rows.extend(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
                elif len(columns) == 1:
                    rows.extend(columns[0])
                else:
                    rows.extend(zip(*columns, strict=True))
        self.out.emit(rows)
