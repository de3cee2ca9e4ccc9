"""DataStream: a stream of records and its operators, by PyFlink's names.

The methods are called in the driver and only add nodes to the environment's graph; nothing runs before `execute`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from headgate.api.options import OperatorOptions
from headgate.api.results import Inbox, Results
from headgate.api.sink import DataStreamSink
from headgate.api.user_functions import checked, operator_name, result_hint
from headgate.functions.sink import Sink
from headgate.graph.plan import Ship, ShipKind
from headgate.graph.stream_graph import Edge
from headgate.record.registry import is_record_batch
from headgate.task.operators.basic import Filter, FlatMap, Map, SinkOperator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from headgate.api.connected import ConnectedStreams
    from headgate.api.environment import StreamExecutionEnvironment
    from headgate.api.joined import JoinedStreams
    from headgate.api.keyed import KeyedStream
    from headgate.api.split import SplitStream
    from headgate.api.windowed import AllWindowedStream
    from headgate.functions.basic import FilterFunction, FlatMapFunction, MapFunction, OutputSelector, OutputTag
    from headgate.functions.process import ProcessFunction
    from headgate.graph.stream_graph import Node
    from headgate.task.operator import Operator

__all__ = ["DataStream"]

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")
U = TypeVar("U")

_BATCH_ROWS = 10_000


class DataStream(OperatorOptions, Generic[T]):
    """A stream of records. Nothing runs before `execute` of its environment, or `execute_and_collect`.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> words = env.from_collection(["to be", "or not to be"]).flat_map(str.split)
    >>> counts = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)
    >>> sorted(dict(counts.execute_and_collect()).items())
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    """

    def __init__(self, env: StreamExecutionEnvironment, edges: Sequence[Edge], node: Node | None = None) -> None:
        self._env = env
        self._edges = tuple(edges)
        self._node = node

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(edge.node.name for edge in self._edges)}>"

    @property
    def hint(self) -> object:
        """The declared type of the records; None: not declared, or not the same in all parts of a union."""
        first = self._edges[0].hint
        return first if all(edge.hint == first for edge in self._edges) else None

    @property
    def is_arrow(self) -> bool:
        """True if the values are Arrow record batches instead of rows."""
        return any(is_record_batch(edge.hint) for edge in self._edges)

    # Functions of records.

    def map(self, function: Callable[[T], R] | MapFunction[T, R], output_type: object = None) -> DataStream[R]:
        """Return one record for each record.

        Args:
            function: A callable, or a `MapFunction`.
            output_type: The type of the results, if the function has no type hints; it selects the serializer.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).map(lambda n: 2 * n).execute_and_collect())
        [2, 4, 6]
        """
        self._rows("map")
        checked("map", function, "map")
        hint = result_hint(function, "map", given=output_type)
        return self._then(operator_name("map", function), self._making(Map, function), hint=hint)

    def flat_map(
        self, function: Callable[[T], Iterable[R]] | FlatMapFunction[T, R], output_type: object = None
    ) -> DataStream[R]:
        """Return any number of records for each record: the function returns an iterable, or is a generator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection(["to be", "or not"]).flat_map(str.split).execute_and_collect())
        ['be', 'not', 'or', 'to']
        """
        self._rows("flat_map")
        checked("flat_map", function, "flat_map")
        hint = result_hint(function, "flat_map", element=True, given=output_type)
        return self._then(operator_name("flat_map", function), self._making(FlatMap, function), hint=hint)

    def filter(self, function: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """Return the records for which the function returns a true value.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection(range(6)).filter(lambda n: n % 2).execute_and_collect())
        [1, 3, 5]
        """
        self._rows("filter")
        checked("filter", function, "filter")
        return self._then(operator_name("filter", function), self._making(Filter, function), hint=self.hint)

    def key_by(self, key: Callable[[T], K] | str | Sequence[str], key_type: object = None) -> KeyedStream[K, T]:
        """Return the stream by key: records with equal keys are sent to the same subtask of the next operator.

        Args:
            key: A function of the record; for an Arrow stream the name of a column, or several.
            key_type: The type of the key, if the function has no type hints.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> by_length = env.from_collection("to be or not".split()).key_by(len)
        >>> sorted(by_length.count().execute_and_collect())
        [(2, 1), (2, 2), (2, 3), (3, 1)]
        """
        from headgate.api.keyed import KeyedStream  # noqa: PLC0415 - imports this module

        if self.is_arrow:
            columns = (key,) if isinstance(key, str) else key
            if callable(columns) or not columns or not all(isinstance(name, str) for name in columns):
                raise TypeError(f"key_by of an Arrow stream wants the names of columns, not {key!r}")
            ship = Ship(ShipKind.HASH_COLUMNS, columns=tuple(columns))
            return KeyedStream(self._env, [replace(edge, ship=ship) for edge in self._edges], None)
        if not callable(key):
            raise TypeError(
                f"key_by wants a function of the record, not {key!r}: names of columns are for Arrow streams (to_arrow)"
            )
        ship = Ship(ShipKind.HASH, key=key)
        keyed = [replace(edge, ship=ship) for edge in self._edges]
        return KeyedStream(self._env, keyed, key, result_hint(key, given=key_type))

    def process(self, function: ProcessFunction[T, R], output_type: object = None) -> DataStream[R]:
        """Return any number of records for each record, by a function with context: see `ProcessFunction`.

        >>> import headgate as hg
        >>> odd = hg.OutputTag("odd", int)
        >>> class Split(hg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield (odd, value) if value % 2 else value
        >>> env = hg.environment(local=True, parallelism=2)
        >>> even = env.from_collection(range(6)).process(Split())
        >>> sorted(even.union(even.get_side_output(odd).map(lambda n: -n)).execute_and_collect())
        [-5, -3, -1, 0, 2, 4]
        """
        from headgate.task.operators.process import Process  # noqa: PLC0415 - imported when used

        self._rows("process")
        checked("process", function, "process_element")
        if hasattr(function, "on_timer"):
            raise TypeError("process: a KeyedProcessFunction needs keys: use key_by before it")
        hint = result_hint(function, "process_element", element=True, given=output_type)
        return self._then(operator_name("process", function), partial(Process, function), hint=hint)

    # Streams together, and apart.

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """Return the records of several streams in one stream.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 3]).union(env.from_collection([2])).execute_and_collect())
        [1, 2, 3]
        """
        edges = list(self._edges)
        for other in others:
            self._same_environment("union", other)
            if other.is_arrow != self.is_arrow:
                raise TypeError(
                    "union: one is an Arrow stream and the other has rows: use to_arrow() or from_arrow() first"
                )
            edges.extend(other._edges)
        return DataStream(self._env, edges)

    def connect(self, other: DataStream[U]) -> ConnectedStreams[T, U]:
        """Return two streams, possibly of different types, for one operator that reads both.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
        >>> sorted(both.co_map(str, str.upper).execute_and_collect())
        ['1', '2', 'A']
        """
        from headgate.api.connected import ConnectedStreams  # noqa: PLC0415 - imports this module

        self._same_environment("connect", other)
        return ConnectedStreams(self, other)

    def join(self, other: DataStream[U]) -> JoinedStreams[T, U]:
        """Return a join: pairs of records of two streams with equal keys in the same window, see `JoinedStreams`.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        >>> env = hg.environment(local=True, parallelism=2)
        >>> timed = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(strategy)
        >>> keyed = timed.key_by(lambda pair: pair[0])
        >>> with_itself = keyed.join(keyed).window(hg.TumblingEventTimeWindows.of(10))
        >>> sorted(with_itself.apply(lambda one, other: one[0] + other[0]).execute_and_collect())
        ['aa', 'bb']
        """
        from headgate.api.joined import JoinedStreams  # noqa: PLC0415 - imports this module

        self._same_environment("join", other)
        return JoinedStreams(self, other)

    def get_side_output(self, tag: OutputTag[R]) -> DataStream[R]:
        """Return a side output of this stream's operator: the values of `yield tag, value`, or late data of a window.

        >>> import headgate as hg
        >>> short = hg.OutputTag("short", str)
        >>> class Split(hg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield (short, value) if len(value) < 3 else value
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection("or not".split()).process(Split()).get_side_output(short).execute_and_collect())
        ['or']
        """
        node = self._operator_node("get_side_output")
        node.side_hints.setdefault(tag.name, tag.hint)
        return DataStream(self._env, [Edge(node, tag=tag.name)])

    def split(self, selector: Callable[[T], Iterable[str] | str | None] | OutputSelector[T]) -> SplitStream[T]:
        """Return a stream whose records have names, for `select`.

        Args:
            selector: A function of the record, or an `OutputSelector`: returns the record's name, or several, or None.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> numbers = env.from_collection(range(6)).split(lambda n: ["odd" if n % 2 else "even", f"mod-3-{n % 3}"])
        >>> list(numbers.select("even").execute_and_collect())
        [0, 2, 4]
        >>> list(numbers.select("even", "mod-3-1").execute_and_collect())
        [0, 1, 2, 4]
        """
        from headgate.api.split import SplitStream  # noqa: PLC0415 - imports this module

        self._rows("split")
        checked("split", selector, "select")
        return SplitStream(self, operator_name("split", selector), selector)

    # Time and windows.

    def assign_timestamps_and_watermarks(self, watermark_strategy: Any) -> DataStream[T]:
        """Return the stream with event times and watermarks.

        Right after an operator or source it has as many subtasks as that. So a source with one subtask keeps its order,
        and its watermark is computed from every record, not from every n-th.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        >>> env = hg.environment(local=True, parallelism=1)
        >>> timed = env.from_collection([("a", 1000), ("b", 2500)]).assign_timestamps_and_watermarks(strategy)
        >>> seconds = timed.window_all(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        >>> sorted(seconds.apply(lambda window, pairs: [(window.start, len(pairs))]).execute_and_collect())
        [(1000, 1), (2000, 1)]
        """
        from headgate.task.operators.timestamps import AssignTimestamps  # noqa: PLC0415 - imported when used

        self._rows("assign_timestamps_and_watermarks")
        timed = self._then("timestamps", partial(AssignTimestamps, watermark_strategy), hint=self.hint)
        if self._node is not None:
            timed._operator_node("timestamps").parallelism = self._node.parallelism
        return timed

    def window_all(self, window_assigner: Any) -> AllWindowedStream[T]:
        """Return all records grouped by windows, in one subtask. `key_by` and `window` group by key, in parallel.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
        >>> env = hg.environment(local=True, parallelism=2)
        >>> timed = env.from_collection([1, 5, 12]).assign_timestamps_and_watermarks(strategy)
        >>> sorted(timed.window_all(hg.TumblingEventTimeWindows.of(10)).reduce(max).execute_and_collect())
        [5, 12]
        """
        from headgate.api.windowed import AllWindowedStream  # noqa: PLC0415 - imports this module

        self._rows("window_all")
        to_one: DataStream[T] = DataStream(
            self._env, [replace(edge, ship=Ship(ShipKind.GLOBAL)) for edge in self._edges]
        )
        return AllWindowedStream(to_one, window_assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream[T]:
        """Return all records grouped by windows of `size` records, in one subtask.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection(range(5)).count_window_all(2).reduce(max).execute_and_collect())
        [1, 3]
        """
        from headgate.api.windowed import count_windows  # noqa: PLC0415 - imports this module

        return self.window_all(count_windows(size, slide))

    # Many calls at once.

    def map_async(
        self,
        function: Callable[[T], Awaitable[R]] | MapFunction[T, Awaitable[R]],
        capacity: int = 100,
        *,
        ordered: bool = True,
        timeout_s: float | None = None,
        output_type: object = None,
    ) -> DataStream[R]:
        """Return one record for each record, by an async function that runs for many records at the same time.

        Args:
            function: An async function, called in an event loop of the subtask.
            capacity: The maximum number of concurrent calls in a subtask.
            ordered: Keep the order of the records. If False, a result is emitted as soon as it is available, but never
                across a watermark.
            timeout_s: The maximum time of a call; a longer one fails the job.
            output_type: The type of the results, if the function has no type hints.

        >>> import asyncio
        >>> import headgate as hg
        >>> async def look_up(name):
        ...     await asyncio.sleep(0)
        ...     return len(name)
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection(["to", "be", "not"]).map_async(look_up).execute_and_collect())
        [2, 2, 3]
        """
        from headgate.task.operators.async_map import MapAsync  # noqa: PLC0415 - imported when used

        self._rows("map_async")
        checked("map_async", function, "map")
        make = partial(MapAsync, function, capacity, ordered, timeout_s)
        return self._then(
            operator_name("map_async", function), make, hint=result_hint(function, "map", given=output_type)
        )

    # Functions of whole batches, and Arrow.

    def map_batches(
        self,
        function: Callable[[Any], Any],
        form: Literal["list", "arrow", "pandas"] = "list",
        output_type: object = None,
    ) -> DataStream[Any]:
        """Return the results of a function that is called with whole batches.

        Args:
            function: Takes a batch and returns one, of any length.
            form: The form of a batch: a 'list' of records; for an Arrow stream a RecordBatch ('arrow') or a DataFrame
                of pandas ('pandas').
            output_type: The type of the records it returns, if they are rows.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> squares = env.from_collection(range(4)).map_batches(lambda batch: [n * n for n in batch])
        >>> sorted(squares.execute_and_collect())
        [0, 1, 4, 9]
        """
        from headgate.task.operators.batches import MapBatches  # noqa: PLC0415 - imported when used

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
        """Return the rows, which are tuples or dicts, as Arrow record batches.

        Args:
            schema: A `pyarrow.Schema`; by default that of the first rows, with columns `_1`, `_2` ... of tuples.
            batch_rows: The maximum number of rows in a batch; a batch has fewer if no more are at hand.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> rows = env.from_collection([{"word": "to", "n": 1}, {"word": "be", "n": 2}])
        >>> upper = rows.to_arrow().map_batches(lambda frame: frame.assign(n=frame.n * 10), form="pandas")
        >>> list(upper.from_arrow("dict").execute_and_collect())
        [{'word': 'to', 'n': 10}, {'word': 'be', 'n': 20}]
        """
        from headgate.task.operators.batches import ToArrow  # noqa: PLC0415 - imported when used

        self._rows("to_arrow")
        return self._then("to_arrow", partial(ToArrow, schema, batch_rows), hint="arrow")

    def from_arrow(self, form: Literal["tuple", "dict"] = "tuple", output_type: object = None) -> DataStream[Any]:
        """Return the rows of Arrow record batches.

        Args:
            form: The form of a row: 'tuple' or 'dict'.
            output_type: The type of a row; it selects the serializer.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> batches = env.from_collection([("to", 1), ("be", 2)]).to_arrow().key_by("_1")
        >>> sorted(batches.from_arrow(output_type=tuple[str, int]).execute_and_collect())
        [('be', 2), ('to', 1)]
        """
        from headgate.task.operators.batches import FromArrow  # noqa: PLC0415 - imported when used

        self._batches("from_arrow")
        if form not in {"tuple", "dict"}:
            raise ValueError(f"from_arrow: form is 'tuple' or 'dict', not {form!r}")
        return self._then("from_arrow", partial(FromArrow, form), hint=output_type)

    # Shipping of records to the next operator.

    def rebalance(self) -> DataStream[T]:
        """Send records to all subtasks of the next operator in turn.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).rebalance().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.REBALANCE))

    def rescale(self) -> DataStream[T]:
        """Send records in turn to a group of subtasks of the next operator, which needs fewer channels.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> numbers = env.from_collection([1, 2, 3])
        >>> sorted(numbers.rescale().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.RESCALE))

    def shuffle(self) -> DataStream[T]:
        """Send each record to a random subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).shuffle().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.SHUFFLE))

    def forward(self) -> DataStream[T]:
        """Send records to the subtask with the same index; both operators must have the same parallelism.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> list(env.from_collection([1, 2, 3]).forward().map(str).execute_and_collect())
        Traceback (most recent call last):
        headgate.errors.ConfigError: collection -> map(str): forward needs the same parallelism on both sides, not ...
        """
        return self._shipped(Ship(ShipKind.FORWARD))

    def broadcast(self) -> DataStream[T]:
        """Send every record to every subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2]).broadcast().map(str).execute_and_collect())
        ['1', '1', '2', '2']
        """
        return self._shipped(Ship(ShipKind.BROADCAST))

    def global_(self) -> DataStream[T]:
        """Send every record to the first subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).global_().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.GLOBAL))

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key_selector: Callable[[T], Any] | None = None
    ) -> DataStream[T]:
        """Send each record to the subtask that a function selects.

        Args:
            partitioner: Called with the record, or its key, and the number of subtasks; returns an index below that.
            key_selector: Returns the key of a record; None: the partitioner receives the record.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> by_parity = env.from_collection(range(4)).partition_custom(lambda n, subtasks: n % 2 % subtasks)
        >>> sorted(by_parity.map(str).execute_and_collect())
        ['0', '1', '2', '3']
        """
        checked("partition_custom", partitioner)
        function = partitioner if key_selector is None else partial(_by_key, partitioner, key_selector)
        return self._shipped(Ship(ShipKind.CUSTOM, function=function))

    # Sinks.

    def sink_to(self, sink: Sink[T]) -> DataStreamSink:
        """Write the records to a sink, in the workers, or in the driver if its attribute `in_driver` is True.

        >>> import headgate as hg
        >>> class Shout(hg.Sink):
        ...     def write(self, values):
        ...         for value in values:
        ...             print(value.upper())
        >>> env = hg.environment(local=True, parallelism=1)
        >>> shouted = env.from_collection(["to", "be"]).sink_to(Shout())
        >>> job = env.execute()
        TO
        BE
        """
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to wants a Sink, not {sink!r}")
        return self._sink(type(sink).__name__, sink)

    def for_each(self, function: Callable[[T], object]) -> DataStreamSink:
        """Call a function for each record, in the workers.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> printed = env.from_collection(["to", "be"]).for_each(print)
        >>> job = env.execute()
        to
        be
        """
        from headgate.connectors.for_each import ForEachSink  # noqa: PLC0415 - imported when used

        checked("for_each", function)
        return self._sink(operator_name("for_each", function), ForEachSink(function))

    def print(self, prefix: str = "", limit: int | None = None) -> DataStreamSink:
        """Print the records in the driver.

        Args:
            prefix: The start of each line.
            limit: The number of records to print; None: all.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> printed = env.from_collection(["to", "be"]).print()
        >>> job = env.execute()
        to
        be
        """
        from headgate.connectors.print import PrintSink  # noqa: PLC0415 - imported when used

        return self._sink("print", PrintSink(prefix, limit))

    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> Results[T]:
        """Start the pipelines that were added, and return an iterator over this stream's records.

        Args:
            job_name: The job's name on the page, in progress and in logs.
            limit: The number of records after which the job is cancelled; None: all records.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection("to be or not to be".split()).execute_and_collect())
        ['be', 'be', 'not', 'or', 'to', 'to']
        """
        from headgate.connectors.collect import CollectSink  # noqa: PLC0415 - imported when used

        inbox = Inbox()
        self._sink("collect", CollectSink(inbox))
        return Results(inbox, self._env.execute_async(job_name), limit, progress=self._env._progress)

    def to_dataframe(self, schema: Any, *, streamed: bool = False) -> Any:
        """Return a Spark DataFrame of this stream's records; the pipeline runs whenever Spark computes it.

        Args:
            schema: DDL such as "word string, n long", or a Spark schema. Records are tuples in its order, dicts,
                objects with its names, or Arrow batches.
            streamed: Pass rows to the next step while the pipeline runs. Spark can then compute the DataFrame only as a
                whole: write, count or collect it. If False, Spark stores the rows on its disks first, and every
                operation works.
        """
        return self._env._to_dataframe(self._edges, schema, streamed=streamed)

    # The graph.

    def _shipped(self, ship: Ship) -> DataStream[T]:
        return DataStream(self._env, [replace(edge, ship=ship) for edge in self._edges])

    def _then(
        self,
        name: str,
        make: Callable[[], Operator],
        *,
        hint: object = None,
        edges: Sequence[Edge] | None = None,
        only_one: bool = False,
    ) -> DataStream[Any]:
        """Add an operator that reads this stream. Return the stream of its results."""
        inputs = self._edges if edges is None else edges
        node = self._env._graph.add(name, make, inputs=inputs, hint=hint, only_one=only_one)
        return DataStream(self._env, [Edge(node)], node)

    def _rows(self, what: str) -> None:
        """Raise if this is an Arrow stream: the operator needs rows."""
        if self.is_arrow:
            raise TypeError(
                f"{what} is for rows, and this is an Arrow stream, whose values are record batches:"
                " use map_batches(f, form='arrow'), or from_arrow() first"
            )

    def _making(self, kind: type[Map | FlatMap | Filter], function: Any) -> Callable[[], Operator]:
        """Return the factory of an operator; a keyed stream returns that of an operator with state."""
        return partial(kind, function)

    def _same_environment(self, what: str, other: object) -> None:
        if not isinstance(other, DataStream):
            raise TypeError(f"{what} wants a DataStream, not {other!r}")
        if other._env is not self._env:
            raise ValueError(f"{what}: both streams must be of the same environment")

    def _batches(self, what: str) -> None:
        if not self.is_arrow:
            raise TypeError(f"{what} is for Arrow streams, and this one has rows: use to_arrow() first")

    def _sink(self, name: str, sink: Sink[Any]) -> DataStreamSink:
        graph = self._env._graph
        in_driver = bool(getattr(sink, "in_driver", False))
        return DataStreamSink(graph.add(name, partial(SinkOperator, sink), inputs=self._edges, in_driver=in_driver))


def _by_key(partitioner: Callable[[Any, int], int], key: Callable[[Any], Any], record: Any, channels: int) -> int:
    return partitioner(key(record), channels)
