"""Where streams begin: the sources of an environment."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from headgate.api.hints import result_hint
from headgate.api.stream import DataStream
from headgate.graph.stream_graph import Edge, StreamGraph
from headgate.record.registry import is_record_batch
from headgate.task.basic import PassOn
from headgate.task.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.api.environment import StreamExecutionEnvironment

__all__ = ["Beginning"]

T = TypeVar("T")


class Beginning:
    """How a stream can begin; see `StreamExecutionEnvironment`.

    >>> import headgate as hg
    >>> isinstance(hg.environment(local=True), Beginning)
    True
    """

    def __init__(self) -> None:
        self._graph = StreamGraph()

    def from_source(
        self, source: Source[T], watermark_strategy: Any = None, source_name: str | None = None
    ) -> DataStream[T]:
        """A stream of what a source gives; see `Source` for how to write one.

        >>> import headgate as hg
        >>> class Countdown(hg.Source):
        ...     def splits(self, parallelism):
        ...         return [3]
        ...     def read(self, split, offset, place):
        ...         yield list(range(split - offset, 0, -1))
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_source(Countdown()).execute_and_collect())
        [3, 2, 1]
        """
        if not isinstance(source, Source):
            raise TypeError(f"from_source wants a Source, not {source!r}")
        name = source_name or type(source).__name__
        node = self._graph.add(
            name, PassOn, source=source, hint="arrow" if is_record_batch(source.hint) else source.hint
        )
        stream: DataStream[T] = DataStream(cast("StreamExecutionEnvironment", self), [Edge(node)], node)
        return stream if watermark_strategy is None else stream.assign_timestamps_and_watermarks(watermark_strategy)

    def from_collection(self, collection: Iterable[T], type_info: object = None) -> DataStream[T]:
        """A stream of values that are at hand in the driver, spread over the subtasks.

        Args:
            collection: The values; they travel to the workers with the plan.
            type_info: Their type, which decides about the serializer.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection(["to", "be"]).execute_and_collect())
        ['be', 'to']
        """
        from headgate.api.sources import CollectionSource  # noqa: PLC0415 - only where it is used

        source: Source[T] = CollectionSource(list(collection))
        if type_info is not None:
            source.hint = type_info
        return self.from_source(source, source_name="collection")

    def generate(
        self, function: Callable[..., Any], count: int | None = None, *, output_type: object = None, **options: Any
    ) -> DataStream[Any]:
        """What a function makes of 0, 1, 2 ...; or what a generator function yields in each subtask.

        Args:
            function: Called with each number; a generator function is called with the subtask's number, and how many
                there are if it takes that.
            count: How many records there are; None: as many as it makes, or no end.
            output_type: Their type, if the function's type hints do not say so.
            options: Of `GeneratorSource`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.generate(lambda n: n * n, count=4).execute_and_collect())
        [0, 1, 4, 9]
        """
        from headgate.api.sources import GeneratorSource  # noqa: PLC0415 - only where it is used

        element = inspect.isgeneratorfunction(function) or bool(options.get("per_subtask"))
        hint = result_hint(function, element=element, given=output_type)
        return self.from_source(GeneratorSource(function, count, hint=hint, **options), source_name="generate")

    def rate(
        self,
        records_per_second: float,
        count: int | None = None,
        function: Callable[[int], T] | None = None,
        output_type: object = None,
    ) -> DataStream[Any]:
        """So many records in a second, over all subtasks: 0, 1, 2 ... or what a function makes of them.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.rate(1_000, count=3).execute_and_collect())
        [0, 1, 2]
        """
        from headgate.api.sources import RateSource  # noqa: PLC0415 - only where it is used

        hint = output_type if function is None else result_hint(function, given=output_type)
        return self.from_source(RateSource(records_per_second, count, function, hint=hint), source_name="rate")

    def socket_text(self, host: str, port: int, **options: Any) -> DataStream[str]:
        """Lines of text that a server sends; one subtask connects.

        Args:
            host: Where it listens.
            port: Where it listens.
            options: Of `SocketTextSource`.
        """
        from headgate.api.source_socket import SocketTextSource  # noqa: PLC0415 - only where it is used

        return self.from_source(SocketTextSource(host, port, **options), source_name="socket_text").set_parallelism(1)

    def read_files(self, path: Any, format: str = "text", **options: Any) -> DataStream[Any]:  # noqa: A002 - Spark's word
        r"""Files, read in parallel: 'text' lines, 'csv' or 'json' rows, 'parquet' as an Arrow stream.

        Args:
            path: A file, a directory, a pattern, or several of them.
            format: What is in them.
            options: Of `FileSource`.

        >>> import pathlib, tempfile
        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = pathlib.Path(directory, "words.txt").write_text("to be\nor not\n")
        ...     sorted(env.read_files(directory).execute_and_collect())
        ['or not', 'to be']
        """
        from headgate.api.source_files import FileSource  # noqa: PLC0415 - only where it is used

        return self.from_source(FileSource(path, format, **options), source_name=f"read_files({format})")

    def from_dataframe(
        self, dataframe: Any, form: Literal["tuple", "dict", "row", "arrow"] = "tuple"
    ) -> DataStream[Any]:
        """The rows of a Spark DataFrame, read in the workers as Spark computes them, not collected.

        Args:
            dataframe: The DataFrame.
            form: What a row is: a 'tuple', a 'dict', or Spark's 'row'; 'arrow' gives an Arrow stream.
        """
        return self.from_source(self._dataframe_source(dataframe, form), source_name="dataframe")

    def _dataframe_source(self, dataframe: Any, form: str) -> Source[Any]:
        """The environment knows whether there is Spark."""
        raise NotImplementedError
