"""DataFrames as sources: their rows reach the source's subtasks as Arrow batches, through Spark's own stream.

In the driver, `partition_for_workers` makes a DataFrame whose partition i is the input of worker i. A single DataFrame
with one partition per worker is used as it is; otherwise Spark shuffles it first. Several DataFrames are shuffled as
one, each batch a row of (source, bytes of an Arrow stream); in BATCH, which reads one source after another, the rows of
the first source are first. In a worker, a `DataFrameSource` takes its batches from its queue (`batch_queues`).

No rows are collected in the driver.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import ConfigError
from headgate.functions.source import Source, Wait
from headgate.spark.batch_queues import SOURCE_COLUMN, source_queue
from headgate.spark.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headgate.functions.place import Place
    from headgate.graph.plan import Plan, Vertex

__all__ = ["DataFrameSource", "partition_for_workers", "sources_of"]

FORMS: Final = ("tuple", "dict", "row", "arrow")
_TAKE_S: Final = 0.05  # a subtask waits so long for a batch before its timers run

# Parts of a physical plan that keep the partitions of their input, so a barrier stage may contain them.
_NARROW: Final = frozenset(
    {
        "ColumnarToRow",
        "Filter",
        "InputAdapter",
        "LocalTableScan",
        "Project",
        "Range",
        "RowToColumnar",
        "Scan ExistingRDD",
    }
)


class DataFrameSource(Source[Any]):
    """The rows of a Spark DataFrame; `form`: tuples, dicts, `pyspark.sql.Row`s, or unchanged Arrow batches.

    The DataFrame stays in the driver; a worker finds the source's queue by its name.

    >>> source = DataFrameSource(None, form="arrow")  # None stands for a DataFrame
    >>> source.splits(2), source.hint
    ([0, 1], 'arrow')
    """

    fed = True
    fresh = True

    def __init__(self, dataframe: DataFrame, form: str = "tuple") -> None:
        if form not in FORMS:
            raise ConfigError(f"rows of a DataFrame come as {', '.join(FORMS)}, not as {form!r}")
        self.name = f"dataframe-{secrets.token_hex(8)}"
        self.form = form
        self.hint = "arrow" if form == "arrow" else None
        self.dataframe: DataFrame | None = dataframe

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataframe": None}

    def __deepcopy__(self, memo: object) -> DataFrameSource:
        return self

    def splits(self, parallelism: int) -> list[int]:
        """Return one split per subtask: the rows that Spark sends to its worker."""
        return list(range(parallelism))

    def read(self, split: int, offset: int, place: Place) -> Iterator[list[Any] | Wait]:  # noqa: ARG002
        """Yield the rows that arrive at this worker."""
        queue, rows = source_queue(self.name), _rows_of(self.form)
        while not queue.ended:
            batch = queue.take(_TAKE_S)
            if batch is None:
                yield Wait(0.0)
            elif batch.num_rows:
                yield rows(batch)


def _rows_of(form: str) -> Callable[[pa.RecordBatch], list[Any]]:
    def tuples(batch: pa.RecordBatch) -> list[Any]:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def dicts(batch: pa.RecordBatch) -> list[Any]:
        rows: list[Any] = batch.to_pylist()
        return rows

    def named(batch: pa.RecordBatch) -> list[Any]:
        from pyspark.sql import Row  # noqa: PLC0415 - imported when first needed

        row = Row(*batch.schema.names)
        return [row(*values) for values in tuples(batch)]

    return {"tuple": tuples, "dict": dicts, "row": named, "arrow": lambda batch: [batch]}[form]


def sources_of(plan: Plan) -> list[DataFrameSource]:
    """Return the DataFrames that a plan reads; workers use the same order.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import JobId
    >>> sources_of(Plan(JobId("1"), "nothing", (), (), workers=1, settings=Settings()))
    []
    """
    return [source for _, source in _found(plan)]


def _found(plan: Plan) -> list[tuple[Vertex, DataFrameSource]]:
    return [
        (vertex, one.source)
        for vertex in plan.vertices
        for one in vertex.operators
        if isinstance(one.source, DataFrameSource)
    ]


def partition_for_workers(spark: SparkSession, plan: Plan, sources: Sequence[DataFrameSource]) -> DataFrame:
    """Return a DataFrame with one partition per worker, which has the rows of all its sources.

    >>> from types import SimpleNamespace
    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import JobId
    >>> plan = Plan(JobId("1"), "no DataFrame", (), (), workers=2, settings=Settings())
    >>> partition_for_workers(SimpleNamespace(range=range), plan, [])  # doctest: +SKIP
    DataFrame[id: bigint]
    """
    if not sources:
        return spark.range(0, plan.workers, 1, plan.workers)
    frames = []
    for source in sources:
        if source.dataframe is None:
            raise ConfigError("this DataFrame was used in another process: make the pipeline where it runs")
        frames.append(source.dataframe)
    found = _found(plan)
    everywhere = [vertex.workers(plan) == range(plan.workers) for vertex, _ in found]
    if len(frames) == 1 and everywhere[0]:
        return frames[0] if _partitions(frames[0]) == plan.workers else frames[0].repartition(plan.workers)
    tagged = None
    for number, (vertex, _) in enumerate(found):
        workers = vertex.workers(plan)
        one = frames[number].mapInArrow(_tagging(number, workers.start, len(workers)), _TAGGED)
        tagged = one if tagged is None else tagged.unionAll(one)
    assert tagged is not None, "there is a source"
    distributed = tagged.repartitionById(plan.workers, tagged["worker"]).select(SOURCE_COLUMN, "batch")
    return distributed.sortWithinPartitions(SOURCE_COLUMN) if plan.batch and len(frames) > 1 else distributed


_TAGGED: Final = f"worker int, {SOURCE_COLUMN} long, batch binary"


def _tagging(number: int, first: int, count: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that makes each batch one row, for the source's workers in turn."""

    def tag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - it runs in a Spark worker
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        count_batches = 0 if context is None else context.partitionId()
        names = ["worker", SOURCE_COLUMN, "batch"]
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            to = pa.array([first + count_batches % count], pa.int32())
            row = [to, pa.array([number], pa.int64()), pa.array([sink.getvalue().to_pybytes()], pa.binary())]
            yield pa.RecordBatch.from_arrays(row, names=names)
            count_batches += 1

    return tag


def _partitions(frame: DataFrame) -> int | None:
    """Return its number of partitions if that is fixed and a barrier stage may contain it; otherwise None."""
    if is_connect(frame.sparkSession):
        return None
    plan = frame._jdf.queryExecution().executedPlan()
    if not _is_narrow(plan):
        return None
    return int(plan.execute().getNumPartitions())


def _is_narrow(plan: Any) -> bool:
    name = str(plan.nodeName())
    known = name in _NARROW or name.startswith(
        ("WholeStageCodegen", "Scan parquet", "Scan csv", "Scan json", "Scan text")
    )
    children = plan.children()
    return known and all(_is_narrow(children.apply(i)) for i in range(children.size()))
