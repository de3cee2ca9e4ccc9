"""Whole batches: functions that take many records at once, and Arrow streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headgate.api.core import checked, operator_name
from headgate.api.ends import Ending
from headgate.api.hints import result_hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.api.stream import DataStream

__all__ = ["Batched"]

T = TypeVar("T")

_BATCH_ROWS = 10_000


class Batched(Ending[T]):
    """What can be done with whole batches of a stream; see `DataStream`.

    >>> from headgate.api import DataStream
    >>> issubclass(DataStream, Batched)
    True
    """

    def map_batches(
        self,
        function: Callable[[Any], Any],
        form: Literal["list", "arrow", "pandas"] = "list",
        output_type: object = None,
    ) -> DataStream[Any]:
        """Call a function with a whole batch at once.

        Args:
            function: Takes a batch and returns one, of any length.
            form: What a batch is: a 'list' of records; of an Arrow stream a RecordBatch ('arrow') or a DataFrame of
                pandas ('pandas').
            output_type: The type of the records it returns, where they are rows.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> squares = env.from_collection(range(4)).map_batches(lambda batch: [n * n for n in batch])
        >>> sorted(squares.execute_and_collect())
        [0, 1, 4, 9]
        """
        from headgate.task.batches import MapBatches  # noqa: PLC0415 - only where it is used

        if form not in {"list", "arrow", "pandas"}:
            raise ValueError(f"map_batches: form is 'list', 'arrow' or 'pandas', not {form!r}")
        if form == "list":
            self._rows("map_batches with form='list'")
        else:
            self._batches(f"map_batches with form={form!r}")
        checked("map_batches", function, "map")
        hint = result_hint(function, "map", element=True, given=output_type) if form == "list" else "arrow"
        return self._then(operator_name("map_batches", function), partial(MapBatches, function, form), hint=hint)

    def to_arrow(self, schema: Any = None, batch_rows: int = _BATCH_ROWS) -> DataStream[Any]:
        """Rows, which are tuples or dicts, as Arrow record batches.

        Args:
            schema: A `pyarrow.Schema`; by default that of the first rows, where columns of tuples are `_1`, `_2` ...
            batch_rows: The most rows of a batch; fewer where no more are at hand.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> rows = env.from_collection([{"word": "to", "n": 1}, {"word": "be", "n": 2}])
        >>> upper = rows.to_arrow().map_batches(lambda frame: frame.assign(n=frame.n * 10), form="pandas")
        >>> list(upper.from_arrow("dict").execute_and_collect())
        [{'word': 'to', 'n': 10}, {'word': 'be', 'n': 20}]
        """
        from headgate.task.batches import ToArrow  # noqa: PLC0415 - only where it is used

        self._rows("to_arrow")
        return self._then("to_arrow", partial(ToArrow, schema, batch_rows), hint="arrow")

    def from_arrow(self, form: Literal["tuple", "dict"] = "tuple", output_type: object = None) -> DataStream[Any]:
        """Arrow record batches as rows.

        Args:
            form: What a row is: a 'tuple', or a 'dict'.
            output_type: Its type, which decides about the serializer.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> batches = env.from_collection([("to", 1), ("be", 2)]).to_arrow().key_by("_1")
        >>> sorted(batches.from_arrow(output_type=tuple[str, int]).execute_and_collect())
        [('be', 2), ('to', 1)]
        """
        from headgate.task.batches import FromArrow  # noqa: PLC0415 - only where it is used

        self._batches("from_arrow")
        if form not in {"tuple", "dict"}:
            raise ValueError(f"from_arrow: form is 'tuple' or 'dict', not {form!r}")
        return self._then("from_arrow", partial(FromArrow, form), hint=output_type)

    def _batches(self, what: str) -> None:
        if not self.is_arrow:
            raise TypeError(f"{what} is for Arrow streams, and this one has rows: use to_arrow() first")
